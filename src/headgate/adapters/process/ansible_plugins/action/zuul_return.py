"""Return data to the build: run on the executor, not on the node that the task is for."""

import json
import os
import sys
from pathlib import Path

from ansible.module_utils.common.validation import check_type_dict
from ansible.plugins.action import ActionBase

# Ansible in an environment of its own finds Headgate only through this variable.
sys.path += filter(None, os.environ.get("HEADGATE_LIBRARY", "").split(os.pathsep))

from headgate.adapters.process.returns import RESULT_VARIABLE, ReturnError, add
from headgate.base.texts import visible

TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
SEEN = ("warnings", "file_comments")
"""Keys below `zuul` whose values are shown to people."""
NUMBERS = ("line", "start_line", "start_character", "end_line", "end_character")
DIGITS_MAX = 10
KNOWN = {"data", "file", "path", "secret_data", "secret_file"}


class ActionModule(ActionBase):
    """Accept `data` (a mapping), `file` (JSON to read it from), `secret_data` and `secret_file` (the same, but only for
    jobs that depend on this one), `path` (where results are stored)."""

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        arguments = self._task.args
        unknown = sorted(set(arguments) - KNOWN)
        if unknown:
            return {**result, "failed": True, "msg": f"zuul_return: there is no option {', '.join(unknown)}"}
        try:
            data, secret = _returned(arguments, "data", "file"), _returned(arguments, "secret_data", "secret_file")
            add(Path(arguments.get("path") or os.environ[RESULT_VARIABLE]), data, secret)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, ReturnError) as error:
            return {**result, "failed": True, "msg": f"zuul_return: {error}"}
        return {**result, "changed": True}


def _returned(arguments, data, file):
    """Return plain JSON, without Ansible's own types of strings and lists.  Raise ValueError, TypeError, OSError."""
    try:
        found = check_type_dict(arguments.get(data) or {})
    except TypeError as error:
        raise ValueError(f"{data} must be a mapping, or a string that contains one") from error
    if arguments.get(file):
        found = {**json.loads(Path(arguments[file]).read_text()), **found}
    plain = json.loads(json.dumps(found))
    zuul = plain.get("zuul")
    for name in zuul if isinstance(zuul, dict) else ():
        if name in ("pause", "retry") and isinstance(zuul[name], str):
            # Templates turn booleans into strings.
            zuul[name] = TRUTHS.get(zuul[name].lower(), zuul[name])
        elif name in SEEN:
            zuul[name] = _readable(zuul[name])
    return plain


def _readable(value, name=""):
    """Repair what programs print and templates convert: remove colours, and convert strings of digits to numbers."""
    if isinstance(value, dict):
        return {key: _readable(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_readable(inner) for inner in value]
    if isinstance(value, str) and name in NUMBERS and value.isdecimal() and len(value) <= DIGITS_MAX:
        return int(value)
    return visible(value) if isinstance(value, str) else value
