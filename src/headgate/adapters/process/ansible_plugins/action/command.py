"""Run `command` and `shell`, with their output in the log while they run.

The module writes the output of the command into a file on the node.  Meanwhile a thread reads the file: directly if the
node is this machine, otherwise over a separate connection, with any connection plugin that can run a command.
"""

import copy
import os
import shlex
import threading
import uuid

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import merge_hash

STREAMED = "_headgate_streamed"
DISABLED = "zuul_console_disabled"
"""Variable with which a job defers the output of commands until they have ended."""
STREAMS_VARIABLE = "HEADGATE_STREAMS"
LOCAL_INTERVAL_S = 0.1
REMOTE_INTERVAL_S = 1.0
PIECE_SIZE_MAX_BYTES = 1_000_000
LINE_SIZE_MAX_BYTES = 60_000
"""Size above which a line is printed in pieces."""


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        self._supports_async = True
        result = super().run(tmp, task_vars)
        wrap_async = self._task.async_val and not self._connection.has_native_async
        arguments = dict(self._task.args)
        tail = None
        # no_log promises that no output is shown; an asynchronous task returns before there is any.
        followed = not self._task.no_log and not self._task.async_val and not self._task.check_mode
        variables = task_vars or {}
        if followed and not boolean(self._templar.template(variables.get(DISABLED, False)), strict=False):
            host = variables.get("inventory_hostname", "localhost")
            if self._task.delegate_to:
                host = f"{host} -> {self._task.delegate_to}"
            # The name is random, so that nobody on the node can predict it.
            tail = Tail(self._connection, f"/tmp/headgate-{uuid.uuid4().hex}", host)
            arguments["_stream"] = tail.path
            arguments["_stream_become"] = self._become()
            tail.begin()
        if os.environ.get(STREAMS_VARIABLE) == "together":
            arguments["_together"] = True
        try:
            done = self._execute_module(
                module_name="ansible.legacy.command", module_args=arguments, task_vars=task_vars, wrap_async=wrap_async
            )
            for ours in ("_stream", "_stream_become", "_together"):
                # Registered results must look like those of the standard module.
                done.get("invocation", {}).get("module_args", {}).pop(ours, None)
            result = merge_hash(result, done)
        finally:
            if tail is not None and tail.end(self._low_level_execute_command):
                result[STREAMED] = True
        if not wrap_async:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result

    def _become(self):
        """Return the method by which the task becomes another user than the one who follows its output; empty if it
        does not."""
        become, user = self._connection.become, self._get_remote_user()
        if become is None or (user and self.get_become_option("become_user") == user):
            return ""
        # A plugin without a name is a method that the module does not know.
        return become.name or "other"


class Tail:
    """Follow one file on the node, line by line, until `end` is called."""

    def __init__(self, connection, path, host):
        self.path, self._host = path, host
        self._local = connection.transport == "local"
        # Use a copy, since the connection itself is busy with the module, and a plugin stores the state of its command.
        self._connection = None if self._local else copy.copy(connection)
        self._read, self._rest = 0, b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def begin(self):
        self._thread.start()

    def end(self, execute):
        """Read the rest, remove the file, and return whether anything was read."""
        self._over.set()
        self._thread.join()
        if self._local:
            self._take(self._here(None))
        else:
            # Read the rest over the task's own connection: following the file may have failed, or begun too late.
            found = execute(f"tail -c +{self._read + 1} {shlex.quote(self.path)} 2>/dev/null", sudoable=True)
            self._take(found.get("stdout", "").encode(errors="surrogateescape"))
        if self._rest:
            self._take(b"\n")
        try:
            os.unlink(self.path) if self._local else execute(f"rm -f {shlex.quote(self.path)}")
        except PermissionError:  # the file belongs to the user that the task became
            execute(f"rm -f {shlex.quote(self.path)}")
        except FileNotFoundError:
            pass
        return self._read > 0

    def _follow(self):
        while not self._over.wait(LOCAL_INTERVAL_S if self._local else REMOTE_INTERVAL_S):
            try:
                self._take(self._here(PIECE_SIZE_MAX_BYTES) if self._local else self._there())
            except Exception as error:  # the task must not fail because of it; `end` reads the missed output
                Display().vvv(f"{self._host}: the output cannot be followed: {error}")

    def _here(self, size):
        try:
            with open(self.path, "rb") as file:
                file.seek(self._read)
                return file.read(size)
        except FileNotFoundError:
            return b""

    def _there(self):
        path = shlex.quote(self.path)
        command = f"tail -c +{self._read + 1} {path} 2>/dev/null | head -c {PIECE_SIZE_MAX_BYTES}"
        return self._connection.exec_command(command, sudoable=False)[1]

    def _take(self, chunk):
        self._read += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        # Otherwise a program that never prints a newline would fill the memory of the playbook.
        while len(self._rest) > LINE_SIZE_MAX_BYTES:
            lines.append(self._rest[:LINE_SIZE_MAX_BYTES])
            self._rest = self._rest[LINE_SIZE_MAX_BYTES:]
        if lines:
            texts = (line.decode(errors="backslashreplace").rstrip("\r") for line in lines)
            Display().display("\n".join(f"{self._host} | {text}" for text in texts))
