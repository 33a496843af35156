"""Run `synchronize` of the collection ansible.posix, including for the container of the build."""

import shlex
import sys
from pathlib import Path

from ansible.plugins.action import ActionBase
from ansible.plugins.loader import action_loader

REAL = "ansible.posix.synchronize"
CONTAINER = "headgate_container"
MISSING = (
    "synchronize needs the collection ansible.posix, which this version of Ansible does not have; use copy or fetch"
)
CLIENT = Path(__file__).parents[1] / "headgate_commands.py"


class ActionModule(ActionBase):
    """Present the container as a host of ssh, with our client instead of the program ssh."""

    def run(self, tmp=None, task_vars=None):
        real = action_loader.get(
            REAL,
            task=self._task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        if real is None:
            return {"failed": True, "msg": MISSING}
        if self._connection.transport != CONTAINER or self._task.delegate_to:
            return real.run(tmp, task_vars)
        options = self._task.args.get("rsync_opts") or []
        options = [options] if isinstance(options, str) else list(options)
        user = self._play_context.become_user if self._play_context.become else None
        client = shlex.join([sys.executable, "-I", str(CLIENT), *(["-u", user] if user else [])])
        self._task.args.update(rsync_opts=[*options, f"--rsh={shlex.quote(client)}"], use_ssh_args=False)
        self._task.args.setdefault("rsync_path", "rsync")
        self._connection.transport = "ssh"
        try:
            return real.run(tmp, task_vars)
        finally:
            self._connection.transport = CONTAINER
