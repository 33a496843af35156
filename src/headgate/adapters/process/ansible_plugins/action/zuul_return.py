"""Runs on the executor whatever host the task is for: the data goes to the build, not to the node."""

import json
import os
import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

sys.path += filter(None, os.environ.get("HEADGATE_LIBRARY", "").split(os.pathsep))  # where Ansible is another's

from headgate.adapters.process.returning import RESULT_VARIABLE, ReturnError, add

KNOWN = {"data", "file", "path"}
SECRET = "what a job returns is kept where others can read it, so secrets cannot be returned"


class ActionModule(ActionBase):
    """Arguments: `data` (a mapping), `file` (JSON to read it from), `path` (where results are kept)."""

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        unknown = sorted(set(arguments) - KNOWN)
        if unknown:
            why = f"; {SECRET}" if set(unknown) & {"secret_data", "secret_file"} else ""
            return {**result, "failed": True, "msg": f"zuul_return: there is no option {', '.join(unknown)}{why}"}
        data = dict(arguments.get("data") or {})
        try:
            if arguments.get("file"):
                data = {**json.loads(Path(arguments["file"]).read_text()), **data}
            plain = json.loads(json.dumps(data))  # Ansible's own kinds of text and lists are none of JSON's
            add(Path(arguments.get("path") or os.environ[RESULT_VARIABLE]), plain)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, ReturnError) as error:
            return {**result, "failed": True, "msg": f"zuul_return: {error}"}
        return {**result, "changed": True}
