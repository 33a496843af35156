"""Data a job returns: `headgate-return` for executables, the same file for Ansible's `zuul_return`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

RESULT_VARIABLE = "HEADGATE_RESULT"
_JOINED = ("artifacts", "warnings", "redactions", "file_comments")
"""Lists under `zuul` that grow instead of being replaced."""
USAGE = """usage: headgate-return KEY=VALUE...      (dotted keys; values are JSON where they can be read as it)
       headgate-return --json FILE      (- is standard input)
Returns data from a job: zuul.log_url, zuul.artifacts, zuul.child_jobs, zuul.warnings are read by Headgate,
everything else is given to the jobs that depend on this one."""


def merge(old: dict[str, Any], new: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """New over old, mappings through and through."""
    merged = dict(old)
    for key, value in new.items():
        was = merged.get(key)
        if isinstance(was, dict) and isinstance(value, dict):
            merged[key] = merge(was, value, (*path, key))
        elif path == ("zuul",) and key in _JOINED and isinstance(was, list) and isinstance(value, list):
            merged[key] = was + value
        else:
            merged[key] = value
    return merged


def read(path: Path) -> dict[str, Any]:
    """What was returned; nothing when nothing was, or when it is no JSON object."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    data = found.get("data") if isinstance(found, dict) else None
    return data if isinstance(data, dict) else {}


def add(path: Path, data: dict[str, Any]) -> None:
    """Replaces the file in one step: a reader finds it whole."""
    fresh = path.with_name(path.name + f".{os.getpid()}")
    fresh.write_text(json.dumps({"data": merge(read(path), data)}))
    fresh.replace(path)


def parse(arguments: list[str]) -> dict[str, Any]:
    """Raises ValueError."""
    if len(arguments) == 2 and arguments[0] == "--json":
        text = sys.stdin.read() if arguments[1] == "-" else Path(arguments[1]).read_text()
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("the JSON must be an object")
        return found
    data: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not all(key.split(".")):
            raise ValueError(f"{argument!r} is not KEY=VALUE")
        inner: Any = _value(value)
        for part in reversed(key.split(".")):
            inner = {part: inner}
        data = merge(data, inner)
    return data


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    result = os.environ.get(RESULT_VARIABLE)
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    if not result:
        sys.exit(f"headgate-return: {RESULT_VARIABLE} is not set; this works inside a job only")
    try:
        add(Path(result), parse(sys.argv[1:]))
    except (OSError, ValueError) as error:
        print(f"headgate-return: {error}", file=sys.stderr)
        sys.exit(2)
