"""Evaluates the variables of a job, where nobody has any rights, for playbooks that have some."""

import json

from ansible.plugins.action import ActionBase

OWN_VARIABLE = "headgate_values"


class ActionModule(ActionBase):
    """Writes what the variables of each host come to into a file of its own; one that comes to nothing is left out."""

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        host = task_vars["inventory_hostname"]
        asked = task_vars[OWN_VARIABLE]
        found, left = {}, []
        for name in asked["names"][host]:
            try:
                found[name] = json.loads(json.dumps(self._templar.template(task_vars[name])))
            except Exception as error:  # whatever somebody's template does: it is not there
                left.append(f"{name} is left out: {' '.join(str(error).split())}")
        with open(asked["files"][host], "w") as file:
            json.dump(found, file)
        return {**result, "changed": False, "warnings": left}
