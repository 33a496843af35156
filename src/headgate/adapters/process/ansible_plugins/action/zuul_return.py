"""Runs on the executor whatever host the task is for: the data goes to the build, not to the node."""

import json
import os
import sys
from pathlib import Path

from ansible.plugins.action import ActionBase

sys.path += filter(None, os.environ.get("HEADGATE_LIBRARY", "").split(os.pathsep))  # where Ansible is another's

from headgate.adapters.process.returns import RESULT_VARIABLE, ReturnError, add

KNOWN = {"data", "file", "path", "secret_data", "secret_file"}


class ActionModule(ActionBase):
    """Arguments: `data` (a mapping), `file` (JSON to read it from), `secret_data` and `secret_file` (the same, for the
    jobs that depend on this one alone), `path` (where results are kept)."""

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        unknown = sorted(set(arguments) - KNOWN)
        if unknown:
            return {**result, "failed": True, "msg": f"zuul_return: there is no option {', '.join(unknown)}"}
        try:
            data, secret = _said(arguments, "data", "file"), _said(arguments, "secret_data", "secret_file")
            add(Path(arguments.get("path") or os.environ[RESULT_VARIABLE]), data, secret)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, ReturnError) as error:
            return {**result, "failed": True, "msg": f"zuul_return: {error}"}
        return {**result, "changed": True}


def _said(arguments, data, file):
    """Plain JSON: Ansible's own kinds of text and lists are none.  Raises ValueError, TypeError, OSError."""
    found = arguments.get(data) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{data} must be a mapping")
    if arguments.get(file):
        found = {**json.loads(Path(arguments[file]).read_text()), **found}
    return json.loads(json.dumps(found))
