"""Read the data that a job returns: from `headgate-return` of executables, or Ansible's `zuul_return`, in one file."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headgate.adapters.work.directory import Directory, Strange
from headgate.base.errors import ExecutionError
from headgate.base.texts import line
from headgate.gate.state import returns

_FILE_MAX_BYTES = returns.DATA_SIZE_MAX_BYTES + returns.SECRET_SIZE_MAX_BYTES
RESULT_VARIABLE = "HEADGATE_RESULT"
_JOINED = ("artifacts", "warnings", "redactions")
"""Lists under `zuul` that new values extend instead of replacing them, like the lists under `zuul.file_comments`."""
USAGE = """usage: headgate-return KEY=VALUE...      (dotted keys; values that are valid JSON are parsed)
       headgate-return --json FILE      (- is standard input)
       headgate-return --secret --json FILE
Returns data from a job. Headgate reads zuul.log_url, zuul.artifacts, zuul.child_jobs, zuul.warnings, zuul.file_comments
and others; jobs that depend on this one receive everything else. With --secret, only those jobs can see the data."""


def merge(old: dict[str, Any], new: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Merge new data over old, recursively in mappings."""
    merged = dict(old)
    for key, value in new.items():
        old_value = merged.get(key)
        if isinstance(old_value, dict) and isinstance(value, dict):
            merged[key] = merge(old_value, value, (*path, key))
        elif isinstance(old_value, list) and isinstance(value, list) and _grows(path, key):
            merged[key] = old_value + value
        else:
            merged[key] = value
    return merged


def _grows(path: tuple[str, ...], key: str) -> bool:
    return path == ("zuul", "file_comments") or (path == ("zuul",) and key in _JOINED)


class ReturnError(ExecutionError):
    """Report that the data that a job returned cannot be used."""


class ReturnedResults(NamedTuple):
    """Hold the data that a job returned, as JSON."""

    data: dict[str, Any]
    secret: dict[str, Any]
    """Secret data, which no error message may quote."""


def read(path: Path) -> ReturnedResults:
    """Return the data that a job returned; empty if there are none. Raise ReturnError."""
    try:
        with Directory.at(path.parent) as work:
            text = work.read(path.name, _FILE_MAX_BYTES)
    except (Strange, OSError) as error:
        raise ReturnError(f"{path.name} cannot be read: {error}") from error
    if text is None:
        return ReturnedResults({}, {})
    try:
        # Check as strictly as the command: a job may write this file itself, without the command.
        found = returns.parsed(text, _FILE_MAX_BYTES)
        if not isinstance(found, dict) or not isinstance(data := found.get("data"), dict):
            raise returns.Unfit("it is not an object with `data`")
        returns.checked(data)
        return ReturnedResults(data, _secret(found.get("secret_data", {})))
    except returns.Unfit as unfit:
        raise ReturnError(f"{path.name}: {unfit}") from unfit


def _secret(found: object) -> dict[str, Any]:
    """Return secret data if it is valid; otherwise raise Unfit, whose message contains none of it."""
    try:
        returns.bounded(found)
        fits = isinstance(found, dict) and len(msgspec.json.encode(found)) <= returns.SECRET_SIZE_MAX_BYTES
    except returns.Unfit:
        fits = False
    # The message must name no value and no key, which could put the secret into the log.
    if not fits or not isinstance(found, dict):
        size = f"{returns.SECRET_SIZE_MAX_BYTES // 1000} kB"
        raise returns.Unfit(f"the secret data is not a JSON object of at most {size} and {returns.DEPTH_MAX} levels")
    return found


def add(path: Path, data: dict[str, Any], secret: dict[str, Any] | None = None) -> None:
    """Add data to the file, which is replaced atomically, so that readers always find it complete. Raise ReturnError,
    also for data that Headgate would reject; OSError."""
    with Directory.at(path.parent) as work:
        # Playbooks may run `headgate-return` in parallel. Lock the directory, since the file itself is replaced.
        fcntl.flock(work.fd, fcntl.LOCK_EX)
        try:
            returns.bounded(data)
            before, more = read(path), _secret(secret or {})
            merged, hidden = merge(before.data, data), _secret(merge(before.secret, more))
            returns.checked(merged)
        except returns.Unfit as unfit:
            raise ReturnError(str(unfit)) from unfit
        text = {"data": merged, "secret_data": hidden} if hidden else {"data": merged}
        work.write(path.name, msgspec.json.encode(text), 0o600 if hidden else 0o644)


def parse(arguments: list[str]) -> dict[str, Any]:
    """Parse the arguments. Raise ValueError."""
    if len(arguments) == 2 and arguments[0] == "--json":
        with sys.stdin.buffer if arguments[1] == "-" else open(arguments[1], "rb") as file:
            # Read one byte more than allowed, to detect a file that is too large.
            found = returns.parsed(file.read(returns.DATA_SIZE_MAX_BYTES + 1))
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


def _from_file(arguments: list[str]) -> dict[str, Any]:
    """Read secret data from a file. Raise ValueError for any other arguments: a secret must not be on a command
    line."""
    if len(arguments) != 2 or arguments[0] != "--json":
        raise ValueError("secret data must be passed as --secret --json FILE: other users may see command lines")
    return parse(arguments)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):  # a plain string; unpaired surrogates are refused later
        return text


def main() -> None:
    result = os.environ.get(RESULT_VARIABLE)
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    if not result:
        sys.exit(f"headgate-return: {RESULT_VARIABLE} is not set; this program works only inside a job")
    try:
        if sys.argv[1] == "--secret":
            add(Path(result), {}, _from_file(sys.argv[2:]))
        else:
            add(Path(result), parse(sys.argv[1:]))
    except (OSError, ValueError, RecursionError, ReturnError) as error:
        print(f"headgate-return: {line(str(error))}", file=sys.stderr)
        sys.exit(2)
