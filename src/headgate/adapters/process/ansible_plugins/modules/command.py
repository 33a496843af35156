"""Run `command` and `shell` as documented, but with output that can be read while they run."""

import datetime
import glob
import os
import shlex

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = """
module: command
short_description: Execute commands whose output can be read while they run
options:
  _stream: {type: str, description: File for the output while the command runs; this module creates it.}
  _stream_become: {type: str, description: Method by which the task became another user than the reader; empty if none.}
  _together: {type: bool, description: Standard error is registered as output, in the order in which both were printed.}
"""
ARGUMENTS = {
    "_raw_params": {},
    "_uses_shell": {"type": "bool", "default": False},
    "_stream": {},
    "_stream_become": {"default": ""},
    "_together": {"type": "bool", "default": False},
    "argv": {"type": "list", "elements": "str"},
    "chdir": {"type": "path"},
    "cmd": {},
    "creates": {"type": "path"},
    "executable": {},
    "expand_argument_vars": {"type": "bool", "default": True},
    "removes": {"type": "path"},
    "stdin": {},
    "stdin_add_newline": {"type": "bool", "default": True},
    "strip_empty_ends": {"type": "bool", "default": True},
}
COMMANDS = ["_raw_params", "cmd", "argv"]


class Tee:
    """Wrap the reading end of a pipe; what is read from it is also written to the stream, and appended to `read`."""

    def __init__(self, pipe, stream, read):
        self._pipe, self._stream, self._all = pipe, stream, read

    def fileno(self):
        return self._pipe.fileno()

    def read(self, size):
        chunk = self._pipe.read(size)
        if chunk and self._stream is not None:
            os.write(self._stream, chunk)
        self._all.append(chunk)
        return chunk

    def close(self):
        self._pipe.close()


def opened(path, become):
    """Return the descriptor of a new file that its reader can read, and others only if that is unavoidable."""
    # With sudo, the reader is the user who called it, and root can give the file to that user.
    follower = os.environ.get("SUDO_UID", "") if become == "sudo" and os.geteuid() == 0 else ""
    # With other methods, the process can neither give the file away nor find out who reads it.
    mode = 0o600 if not become or follower.isdigit() else 0o644
    # The file is in /tmp of the node, where any user who learns its name may have created a link.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    stream = os.open(path, flags, mode)
    if follower.isdigit():
        try:
            os.fchown(stream, int(follower), -1)
        except OSError:  # root of a user namespace in which the caller has no id
            os.fchmod(stream, 0o644)
    return stream


def streaming(path, read, become):
    """Return the callback that `run_command` calls once the process has started.  It appends all output to `read` and,
    if there is a `path`, to a new file for the reader."""
    stream = opened(path, become) if path else None

    def begin(process):
        # run_command reads the two pipes through these objects, so its own result is complete, too.
        process.stdout, process.stderr = Tee(process.stdout, stream, read), Tee(process.stderr, stream, read)

    return begin


def needless(params, mode):
    """Return why the command need not run; empty if it must."""
    if params["creates"] and glob.glob(params["creates"]):
        return f"{mode} not run command since '{params['creates']}' exists"
    if params["removes"] and not glob.glob(params["removes"]):
        return f"{mode} not run command since '{params['removes']}' does not exist"
    return ""


def run(module, command, result):
    """Run the command, and add the outcome to `result`."""
    params = module.params
    start = datetime.datetime.now()
    try:
        rc, out, err = _run(module, command)
    except OSError as error:
        module.fail_json(**{**result, "rc": error.errno, "msg": f"The command cannot be run: {error}"})
    end = datetime.datetime.now()
    if params["strip_empty_ends"]:
        out, err = out.rstrip("\r\n"), err.rstrip("\r\n")
    result.update(rc=rc, stdout=_text(out), stderr=_text(err), start=str(start), end=str(end), delta=str(end - start))


def _text(out):
    """Escape bytes that are not UTF-8, as in logs: newer versions of Ansible fail tasks with such bytes."""
    return out.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _run(module, command):
    params, read = module.params, []
    followed = params["_stream"] or params["_together"]
    begin = streaming(params["_stream"], read, params["_stream_become"]) if followed else None
    code, out, err = module.run_command(
        command,
        executable=params["executable"] if params["_uses_shell"] else None,
        use_unsafe_shell=params["_uses_shell"],
        data=params["stdin"],
        binary_data=not params["stdin_add_newline"],
        expand_user_and_vars=params["expand_argument_vars"],
        before_communicate_callback=begin,
        handle_exceptions=False,
    )
    return (code, b"".join(read).decode("utf-8", "surrogateescape"), "") if params["_together"] else (code, out, err)


def main():
    module = AnsibleModule(
        argument_spec=ARGUMENTS, required_one_of=[COMMANDS], mutually_exclusive=[COMMANDS], supports_check_mode=True
    )
    params = module.params
    command = params["_raw_params"] or params["cmd"] or params["argv"]
    if isinstance(command, str) and not params["_uses_shell"]:
        command = shlex.split(command)
    result = {"changed": False, "cmd": command, "rc": None, "stdout": "", "stderr": "", "msg": ""}
    result.update(start=None, end=None, delta=None)
    if params["chdir"]:
        try:
            os.chdir(params["chdir"])
        except OSError as error:
            module.fail_json(**{**result, "msg": f"Unable to change directory before execution: {error}"})
    why = needless(params, "Would" if module.check_mode else "Did")
    if why:
        module.exit_json(**{**result, "msg": why, "stdout": f"skipped: {why}", "rc": 0})
    if module.check_mode:
        unsure = params["creates"] is None and params["removes"] is None
        msg = "Command would have run if not in check mode"
        module.exit_json(**{**result, "changed": not unsure, "skipped": unsure, "msg": msg, "rc": 0})
    result["changed"] = True
    run(module, command, result)
    if result["rc"] != 0:
        module.fail_json(**{**result, "msg": "non-zero return code"})
    module.exit_json(**result)


if __name__ == "__main__":
    main()
