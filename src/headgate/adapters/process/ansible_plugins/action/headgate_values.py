"""Evaluate the variables of a job without any rights, for playbooks that have rights."""

import contextlib
import json

from ansible.plugins.action import ActionBase
from ansible.vars.clean import namespace_facts

OWN_VARIABLE = "headgate_values"
GATHERED = {"gather_subset": ["!all", "min"]}
ONCE = {"timeout": 10, "reconnection_retries": 0}
"""Settings for the connection to a host that may be unreachable."""


class ActionModule(ActionBase):
    """Write the values of each host's variables into one file for each host, without variables that cannot be
    evaluated.
    """

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        host = task_vars["inventory_hostname"]
        arguments = task_vars[OWN_VARIABLE]
        found, left = {}, []
        if host in arguments["facts"]:
            self._gather(task_vars, left)
        for name in arguments["names"][host]:
            try:
                # Convert each value on its own: a value that is not JSON is left out, and does not spoil the file.
                found[name] = json.loads(json.dumps(self._templar.template(task_vars[name])))
            except Exception as error:  # a template may fail in any way
                left.append(f"{name} is left out: {' '.join(str(error).split())}")
        with open(arguments["files"][host], "w") as file:
            json.dump(found, file)
        return {**result, "changed": False, "warnings": left}

    def _gather(self, task_vars, left):
        """Add the facts of the host to the variables, which may name its home or its user."""
        for option, value in ONCE.items():
            with contextlib.suppress(Exception):  # other connections have other options
                self._connection.set_option(option, value)
        try:
            gathered = self._execute_module("ansible.legacy.setup", module_args=GATHERED, task_vars=task_vars)
        except Exception as error:  # the first playbook that needs the host will report it
            gathered = {"msg": str(error)}
        facts = gathered.get("ansible_facts")
        if facts:
            self._templar.available_variables = {**facts, **task_vars, **namespace_facts(facts)}
        else:
            left.append(f"there are no facts of the host: {' '.join(str(gathered.get('msg')).split())}")
