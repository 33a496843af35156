"""Data a job returns: `headgate-return` for executables, the same file for Ansible's `zuul_return`."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from headgate.adapters.work.directory import Directory, Strange
from headgate.base.texts import line
from headgate.gate.returned.shape import checked
from headgate.gate.returned.values import SIZE_MAX_BYTES, Unfit, bounded, parsed

RESULT_VARIABLE = "HEADGATE_RESULT"
_JOINED = ("artifacts", "warnings", "redactions")
"""Lists under `zuul` that grow instead of being replaced; so do those of each file under `zuul.file_comments`."""
USAGE = """usage: headgate-return KEY=VALUE...      (dotted keys; values are JSON where they can be read as it)
       headgate-return --json FILE      (- is standard input)
Returns data from a job: zuul.log_url, zuul.artifacts, zuul.child_jobs, zuul.warnings, zuul.file_comments … are read by
Headgate, everything else is given to the jobs that depend on this one."""


def merge(old: dict[str, Any], new: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """New over old, mappings through and through."""
    merged = dict(old)
    for key, value in new.items():
        was = merged.get(key)
        if isinstance(was, dict) and isinstance(value, dict):
            merged[key] = merge(was, value, (*path, key))
        elif isinstance(was, list) and isinstance(value, list) and _grows(path, key):
            merged[key] = was + value
        else:
            merged[key] = value
    return merged


def _grows(path: tuple[str, ...], key: str) -> bool:
    return path == ("zuul", "file_comments") or (path == ("zuul",) and key in _JOINED)


class ReturnError(Exception):
    """What a job returned cannot be used."""


def read(path: Path) -> dict[str, Any]:
    """Return what was returned; nothing when nothing was.  Raises ReturnError."""
    try:
        with Directory.at(path.parent) as work:
            text = work.read(path.name, SIZE_MAX_BYTES)
    except (Strange, OSError) as error:
        raise ReturnError(f"{path.name} cannot be read: {error}") from error
    if text is None:
        return {}
    try:
        found = parsed(text)
        data = found.get("data") if isinstance(found, dict) else None
        if not isinstance(data, dict):
            raise Unfit("it is not an object with `data`")
        checked(data)
    except Unfit as unfit:
        raise ReturnError(f"{path.name}: {unfit}") from unfit
    return data


def add(path: Path, data: dict[str, Any]) -> None:
    """Replaces the file in one step: a reader finds it whole.  One writer at a time.  Raises ReturnError, for what
    Headgate would not take, too; OSError."""
    with Directory.at(path.parent) as work:
        fcntl.flock(work.fd, fcntl.LOCK_EX)
        try:
            bounded(data)
            merged = merge(read(path), data)
            checked(merged)
        except Unfit as unfit:
            raise ReturnError(str(unfit)) from unfit
        work.write(path.name, msgspec.json.encode({"data": merged}), 0o644)


def parse(arguments: list[str]) -> dict[str, Any]:
    """Raises ValueError."""
    if len(arguments) == 2 and arguments[0] == "--json":
        with sys.stdin.buffer if arguments[1] == "-" else open(arguments[1], "rb") as file:
            found = parsed(file.read(SIZE_MAX_BYTES + 1))
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
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # text, of which half characters are refused later
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
    except (OSError, ValueError, RecursionError, ReturnError) as error:
        print(f"headgate-return: {line(str(error))}", file=sys.stderr)
        sys.exit(2)
