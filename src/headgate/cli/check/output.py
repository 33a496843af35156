"""Format the report of `headgate check` as text and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from headgate.cli.check.inspection import TenantProblem
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.report import (
    block,
    counts,
    error_as_json,
    notes,
    summary,
)
from headgate.cli.terminal.say import style
from headgate.config.model import ConfigError

_TWICE = re.compile(
    r"the (job|template|pipeline|nodeset|secret|image|flavor|label|semaphore|section|provider|queue) (\S+) "
    r"(?:is already defined|does not match its existing definition)"
)


def as_text(name: str, problem: TenantProblem, limit: int) -> Iterator[str]:
    """Yield a block for each cause, at most `limit` of them (0: all), then the summary of the tenant."""
    shown = problem.causes[:limit] if limit else problem.causes
    for cause in shown:
        more = [*_elsewhere(problem, cause.error), *notes(cause)]
        yield f"{block(cause.error, more, problem.extent(cause.error))}\n"
    if left := len(problem.causes) - len(shown):
        what = "cause is" if left == 1 else "causes are"
        yield style(f"{left:,} more {what} not shown; --limit 0 shows all, --project and --only choose\n", dim=True)
    if isinstance(problem.loaded, LoadedTenant):
        yield summary(name, problem.loaded, problem.errors, len(problem.causes))
    else:
        yield f"{f'tenant {name}' if name else 'the tenant file'}: cannot be loaded\n"


def _elsewhere(problem: TenantProblem, error: ConfigError) -> Iterator[tuple[str, str]]:
    """Note where a name that is defined twice is defined first. The error itself leaves that out, so that it stays
    the same error when lines move there."""
    twice = _TWICE.search(error.text)
    if twice and isinstance(problem.loaded, LoadedTenant):
        kind = "project-template" if twice[1] == "template" else twice[1]
        for first in problem.loaded.layout.admitted((kind, twice[2]))[:1]:
            yield "note", f"the first definition is at {first.place}"


def as_json(problem: TenantProblem) -> dict[str, Any]:
    """Return every error, those with the same cause side by side, and the counts."""
    errors: list[dict[str, Any]] = []
    for cause in problem.causes:
        first = len(errors)
        for error in cause.errors:
            # The graphs belong to the cause: repeated for each consequence they would multiply the output.
            graphs = [graph._asdict() for graph in cause.graphs] if error is cause.error else []
            errors.append({**located(problem, error), "cause": None if error is cause.error else first, "ends": graphs})
    return {"errors": errors, "counts": {**counts(problem.loaded), "errors": failures(problem, "error")}}


def located(problem: TenantProblem, error: ConfigError) -> dict[str, Any]:
    """Return the error as JSON, with its place down to the column."""
    extent = problem.extent(error)
    body = {**error_as_json(error), "column": 0, "end_line": 0, "end_column": 0}
    if error.line:
        body |= {"column": extent.column, "end_line": extent.end_line, "end_column": extent.end_column}
    return body


def failures(problem: TenantProblem, severity: str) -> int:
    """Return the number of errors of at least this severity."""
    return sum(severity == "warning" or error.severity == "error" for error in problem.errors)
