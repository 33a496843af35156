"""Data a job returns: `headgate-return` for executables, the same file for Ansible's `zuul_return`."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

RESULT_VARIABLE = "HEADGATE_RESULT"
SIZE_MAX_BYTES = 256_000
"""It is kept in the store, and given to every later job."""
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


class ReturnError(Exception):
    """What a job returned cannot be used."""


def read(path: Path) -> dict[str, Any]:
    """What was returned; nothing when nothing was.  Raises ReturnError, never follows a link a job has laid."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ReturnError(f"{path.name} cannot be read: {error.strerror}") from error
    with open(file, "rb") as opened:
        text = opened.read(SIZE_MAX_BYTES + 1) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    if len(text) > SIZE_MAX_BYTES:
        raise ReturnError(f"the job returned more than {SIZE_MAX_BYTES // 1000} kB of data, which is the limit")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ReturnError(f"{path.name} is no JSON: {error}") from error
    data = found.get("data") if isinstance(found, dict) else None
    if not isinstance(data, dict):
        raise ReturnError(f"{path.name} is not an object with `data`")
    return data


def add(path: Path, data: dict[str, Any]) -> None:
    """Replaces the file in one step: a reader finds it whole.  One writer at a time.  Raises ReturnError, OSError."""
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fresh = path.with_name(path.name + ".new")
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
    except (OSError, ValueError, ReturnError) as error:
        print(f"headgate-return: {error}", file=sys.stderr)
        sys.exit(2)
