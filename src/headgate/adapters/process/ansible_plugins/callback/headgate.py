"""Write the progress of a playbook as lines of a log: plays, tasks, and `host | line`."""

import contextlib
import datetime
import json
import os

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: headgate
type: stdout
short_description: Lines for the log of a build
description: Prints plays, tasks and their results, line by line, with the host first.
"""
UNREACHABLE_VARIABLE = "HEADGATE_UNREACHABLE"
"""Variable with the path of the file that lists unreachable hosts."""
TOKEN_VARIABLE = "HEADGATE_FAILING"
"""Variable with the line that is printed once a task has failed and nothing rescues it."""
EVENTS_VARIABLE = "HEADGATE_EVENTS"
"""Variable with the path of the file for events, one JSON object on each line."""
EVENTS_SIZE_MAX = 10_000_000
HERE_VARIABLE = "HEADGATE_HERE"
"""Variable with the names of the hosts that are the executor itself, separated by commas."""
CONTAINERS_VARIABLE = "HEADGATE_CONTAINERS"
"""Variable with the names of the hosts that are the job's container."""
SOURCE_VARIABLE, LOGS_VARIABLE, PHASE_VARIABLE = "HEADGATE_LOGS", "ZUUL_LOG_DIR", "ZUUL_EXECUTION_PHASE"
"""Variables with the directory of the logs, the job's own log directory, and the build's phase."""
LOGS = ("job-output.txt", "job-output.json")
PIECE_SIZE_BYTES = 1_000_000
NOT_RUN = (126, 127)
NO_BECOME = (
    "become does not work here: on the executor itself, jobs run in a sandbox, where no process can gain rights;"
    " give the job a node, or do not use become"
)
COMMANDS = (
    "command",
    "shell",
    "ansible.builtin.command",
    "ansible.builtin.shell",
    "raw",
    "script",
    "ansible.builtin.raw",
)
OURS = {"ansible.builtin.command": "command", "ansible.posix.synchronize": "synchronize"}
"""Full name of an action -> our action that replaces it: a `command` whose output is read while it runs (`shell` uses
it, too), and a `synchronize` that reaches containers."""
NO_PYTHON = (
    "the image of this job has no Python, which Ansible's modules need in the container: only raw works without it;"
    " use an image with Python, or install it with raw first"
)
OF_ANY_RESULT = ("changed", "failed", "warnings", "deprecations")
OF_AN_ITEM = ("ansible_loop_var", "ansible_index_var", "ansible_loop")
DEBUG = ("debug", "ansible.builtin.debug")
SAYS_NOTHING = ("(traceback unavailable)", "non-zero return code")
HIDDEN = "the output is hidden because the task says no_log"
TEXT_SIZE_MAX = 20_000


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "headgate"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._left = EVENTS_SIZE_MAX
        self._copies = [LogCopy(name) for name in LOGS if os.environ.get(PHASE_VARIABLE) == "post"]

    def _say(self, text=""):
        self._display.display(text)

    def _happens(self, **event):
        """Append an event and its time to the file for events; leave out lines that would make it too large."""
        place = os.environ.get(EVENTS_VARIABLE)
        if place:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            line = json.dumps({**event, "at": now}, default=str) + "\n"
            if len(line) <= self._left:
                self._left -= len(line)
                with open(place, "a", encoding="utf-8") as file:
                    file.write(line)

    def _comes(self, result, **more):
        """Write the result of a task as an event, for programs; hide the output if the task says no_log."""
        host, task, found = _parts(result)
        shown = _public(found)
        if found.get("_ansible_no_log") or task.no_log:
            shown = {name: found[name] for name in ("changed", "failed", "rc") if name in found} | {"censored": HIDDEN}
        self._happens(of=task._uuid, host=host, result={**shown, **more, "action": task.action})

    def _copy_on(self):
        for copy in self._copies:
            copy.go_on()

    def v2_playbook_on_start(self, playbook):
        for copy in self._copies:
            copy.begin()

    def v2_playbook_on_play_start(self, play):
        self._happens(play={"id": play._uuid, "name": play.get_name().strip()})
        self._say(f"PLAY [{play.get_name().strip()}]")

    def v2_playbook_on_task_start(self, task, is_conditional):
        self._copy_on()
        self._begins(task)
        # Full names skip the configured directories of plugins, and would bypass our actions.
        task.action = OURS.get(task.action, task.action)
        self._say(f"TASK [{task.get_name().strip()}]")

    def _begins(self, task):
        """Write the start of a task, with its role, as an event."""
        role, event = task._role, {"id": task._uuid, "name": (task.name or task.action).strip()}
        if role is not None:
            event["role"] = {"id": role._uuid, "name": role.get_name(), "path": role._role_path}
        self._happens(task=event)

    def v2_playbook_on_cleanup_task_start(self, task):
        self._begins(task)
        self._say(f"CLEANUP TASK [{task.get_name().strip()}]")

    def v2_playbook_on_handler_task_start(self, task):
        self._begins(task)
        self._say(f"RUNNING HANDLER [{task.get_name().strip()}]")

    def v2_playbook_on_no_hosts_matched(self):
        self._say("No host of the inventory matches this play; it is skipped")

    def v2_playbook_on_no_hosts_remaining(self):
        self._say("No host is left to continue with")

    def v2_playbook_on_include(self, included_file):
        self._say(f"included: {included_file._filename}")

    def v2_runner_on_ok(self, result):
        self._comes(result)
        host, task, found = _parts(result)
        if "results" in found and task.loop is not None:
            return  # each item was printed already
        self._print_result(host, task, found, _word(found))

    def v2_runner_item_on_ok(self, result):
        host, task, found = _parts(result)
        self._print_result(host, task, found, f"{_word(found)}: {_item(found)}")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._comes(result, failed=True)
        host, task, found = _parts(result)
        # Print this before the details, so that the gate can act while a long output is still being written.
        if not ignore_errors and not _rescued(task) and TOKEN_VARIABLE in os.environ:
            self._say(os.environ[TOKEN_VARIABLE])
        if "results" in found and task.loop is not None:
            self._say(f"{host} | FAILED{' (ignored)' if ignore_errors else ''}: not every item succeeded")
            return
        self._print_result(host, task, found, f"FAILED{' (ignored)' if ignore_errors else ''}", failed=True)

    def v2_runner_item_on_failed(self, result):
        host, task, found = _parts(result)
        self._print_result(host, task, found, f"FAILED: {_item(found)}", failed=True)

    def v2_runner_on_skipped(self, result):
        self._comes(result)
        host, task, found = _parts(result)
        if task.loop is None or "results" not in found:
            self._say(f"{host} | skipped{_why(found)}")

    def v2_runner_item_on_skipped(self, result):
        host, _, found = _parts(result)
        self._say(f"{host} | skipped: {_item(found)}{_why(found)}")

    def v2_runner_on_unreachable(self, result):
        self._comes(result, unreachable=True)
        host, _, found = _parts(result)
        self._say(f"{host} | UNREACHABLE: {found.get('msg', '')}")
        place = os.environ.get(UNREACHABLE_VARIABLE)
        if place:
            with open(place, "a") as file:
                file.write(f"{host}\n")

    def v2_runner_retry(self, result):
        self._copy_on()
        host, _, found = _parts(result)
        left = found.get("retries", 0) - found.get("attempts", 0)
        self._say(f"{host} | not yet; attempts left: {left}")

    def v2_playbook_on_stats(self, stats):
        self._say("PLAY RECAP")
        for host in sorted(stats.processed):
            counts = stats.summarize(host)
            words = ("ok", "changed", "unreachable", "failures", "skipped", "rescued", "ignored")
            self._say(f"{host} | " + " ".join(f"{word}: {counts.get(word, 0)}" for word in words))
        self._happens(stats={host: stats.summarize(host) for host in stats.processed})

    def _print_result(self, host, task, found, word, *, failed=False):
        if found.get("_ansible_no_log") or task.no_log:
            self._say(f"{host} | {word} ({HIDDEN})")
            return
        for text in _texts(task, found, failed=failed):
            for line in text[:TEXT_SIZE_MAX].splitlines():
                self._say(f"{host} | {line}")
        if failed and task.become and host in os.environ.get(HERE_VARIABLE, "").split(",") and _confined():
            self._say(f"{host} | {NO_BECOME}")
        if failed and _without_python(host, found):
            self._say(f"{host} | {NO_PYTHON}")
        for warning in found.get("warnings") or ():
            self._say(f"{host} | warning: {warning}")
        self._say(f"{host} | {word}{_end(found)}")


class LogCopy:
    """Replace the link to the log in the job's log directory with a copy of the log so far, so that a job that uploads
    its logs while the build runs also uploads the log. The job may change or replace the copy."""

    def __init__(self, name):
        self._name, self._read, self._made = name, 0, None

    def begin(self):
        """Replace the link, or the copy of an earlier playbook, with a new copy."""
        try:
            with self._directory() as directory:
                os.stat(self._name, dir_fd=directory, follow_symlinks=False)  # fails if the job has removed it
                self._lay(f".{os.urandom(8).hex()}", directory)
        except (OSError, KeyError):
            self._made = None

    def _lay(self, fresh, directory):
        """Write the copy under a random name first; leave nothing behind if that fails."""
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=directory), "wb") as file:
                self._take(file)
                self._made = os.fstat(file.fileno()).st_ino
            # A rename replaces a link and never follows it.
            os.replace(fresh, self._name, src_dir_fd=directory, dst_dir_fd=directory)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(fresh, dir_fd=directory)
            raise

    def go_on(self):
        """Append the lines that were written to the log since the last call."""
        if self._made is None or self._name.endswith(".json"):  # the executor writes the JSON file after the playbook
            return
        try:
            with self._directory() as directory:
                found = os.open(self._name, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
                with open(found, "wb") as file:
                    # The job may have moved its own file here: append only to the file that this object created.
                    if os.fstat(file.fileno()).st_ino == self._made:
                        self._take(file)
        except (OSError, KeyError):
            self._made = None

    def _take(self, file):
        with open(os.path.join(os.environ[SOURCE_VARIABLE], self._name), "rb") as stored:
            stored.seek(self._read)
            while chunk := stored.read(PIECE_SIZE_BYTES):
                file.write(chunk)
                self._read += len(chunk)

    @contextlib.contextmanager
    def _directory(self):
        """Open the directory of the job's logs unless it is a link: other playbooks of the build may write there."""
        directory = os.open(os.environ[LOGS_VARIABLE], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            yield directory
        finally:
            os.close(directory)


def _parts(result):
    """Return the host name, the task and the result."""
    return result._host.get_name(), result._task, result._result


def _public(found):
    """Return a result, and those of its items, without the task's arguments, which may be secret."""
    public = {name: value for name, value in found.items() if not name.startswith("_") and name != "invocation"}
    items = public.get("results")
    if isinstance(items, list):
        public["results"] = [_public(item) if isinstance(item, dict) else item for item in items]
    return public


def _without_python(host, found):
    """Return whether a task failed because its container has no Python for Ansible's modules."""
    if found.get("rc") not in NOT_RUN or host not in os.environ.get(CONTAINERS_VARIABLE, "").split(","):
        return False
    return "interpreter" in str(found.get("msg")) or "python" in str(found.get("module_stderr"))


def _confined():
    """Return whether no process here can gain rights; False if that cannot be determined."""
    try:
        with open("/proc/self/status") as file:
            return "NoNewPrivs:\t1" in file.read()
    except OSError:
        return False


def _rescued(task):
    """Return whether the task is in a block that continues after a failure.  A task that is not found in the rescue or
    always section counts as rescued; the end of the playbook shows whether it was."""
    child, parent = task, getattr(task, "_parent", None)
    while parent is not None:
        if getattr(parent, "rescue", None) and not any(_same(child, one) for one in (*parent.rescue, *parent.always)):
            return True
        child, parent = parent, getattr(parent, "_parent", None)
    return False


def _same(one, other):
    return getattr(one, "_uuid", None) == getattr(other, "_uuid", None)


def _word(found):
    return "changed" if found.get("changed") else "ok"


def _item(found):
    item = found.get("_ansible_item_label", found.get("item", ""))
    return item if isinstance(item, str) else json.dumps(item, default=str)


def _why(found):
    why = found.get("skip_reason") or found.get("msg")
    condition = found.get("false_condition")
    return f" ({why}: {condition})" if why and condition else f" ({why})" if why else ""


def _texts(task, found, *, failed):
    """Yield the parts of a result that are shown before the line with its status."""
    if task.action in DEBUG and not failed:
        shown = _requested(found)
        if list(shown) == ["msg"]:
            yield shown["msg"] if isinstance(shown["msg"], str) else json.dumps(shown["msg"], indent=2, default=str)
        else:
            yield json.dumps(shown, indent=2, default=str)
        return
    if not found.get("_headgate_streamed") and (failed or task.action in COMMANDS):
        for key in ("module_stdout", "module_stderr", "stdout", "stderr"):
            if isinstance(found.get(key), str) and found[key]:
                yield found[key]
    if failed:
        if "assertion" in found:
            yield f"not true: {found['assertion']}"
        for key in ("exception", "msg", "reason"):
            if found.get(key) and found[key] not in SAYS_NOTHING:
                yield str(found[key])


def _requested(found):
    """Return the text that a task shows; the item of a loop is included only if there is nothing else."""
    ours = (*OF_ANY_RESULT, *OF_AN_ITEM, found.get("ansible_index_var"))
    shown = {k: v for k, v in found.items() if not k.startswith("_") and k not in ours}
    if len(shown) > 1:
        shown.pop(found.get("ansible_loop_var", "item"), None)
    return shown


def _end(found):
    """Return the end of a command's last line: its exit status unless that is 0, and the time it took."""
    status = f", exit status {found['rc']}" if found.get("rc") else ""
    took = str(found.get("delta") or "")
    if took.count(":") != 2:
        return status
    hours, minutes, seconds = took.split(":")
    longer = f"{hours}:{minutes}:" if (hours, minutes) != ("0", "00") else ""
    return f"{status}, took {longer}{float(seconds):.2f} s"
