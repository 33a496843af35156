"""Accept the task with which base jobs start a server that shows the output of commands while they run.

Headgate needs no such server: it reads the output over Ansible's connection (see `command`), so that nothing listens on
a node. A server there would have no authentication, and show the output of every task to anyone who reaches its port.
"""

from ansible.plugins.action import ActionBase

KNOWN = {"path", "port", "state"}
ANYWAY = "no server is started: Headgate reads the output of commands over Ansible's connection"


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        unknown = sorted(set(self._task.args) - KNOWN)
        if unknown:
            return {**result, "failed": True, "msg": f"zuul_console: there is no option {', '.join(unknown)}"}
        return {**result, "changed": False, "msg": ANYWAY}
