"""Accept the task with which base jobs ask that the output of commands is read while they run.

Here it is read through the connection that Ansible has (see `command`), so that nothing listens on a node: a server
there would have no authentication, and show the output of every task to anyone who reaches its port.
"""

from ansible.plugins.action import ActionBase

KNOWN = {"path", "port", "state"}
ANYWAY = "nothing is started: the output of commands is read through the connection of Ansible"


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        unknown = sorted(set(self._task.args) - KNOWN)
        if unknown:
            return {**result, "failed": True, "msg": f"zuul_console: there is no option {', '.join(unknown)}"}
        return {**result, "changed": False, "msg": ANYWAY}
