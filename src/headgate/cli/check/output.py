"""What `headgate check` says: to read, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from headgate.cli.check.inspection import TenantProblem
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.report import block, counts, error_as_json, listed, place, same_on, summary
from headgate.config.check.causes import Cause
from headgate.config.check.findings import CheckedGraph
from headgate.config.model import ConfigError

_TWICE = re.compile(
    r"the (job|template|pipeline|nodeset|secret|image|flavor|label|semaphore|section|provider|queue) (\S+) "
    r"(?:is already defined|does not match its existing definition)"
)
FOLLOWING_MAX = 3
"""Consequences of a cause that are told one by one."""


def as_text(name: str, told: TenantProblem, limit: int) -> Iterator[str]:
    """Yield one block a cause, at most `limit` of them (0: all), then what the tenant comes to."""
    shown = told.causes[:limit] if limit else told.causes
    for cause in shown:
        more = [*_elsewhere(told, cause.error), *notes(cause)]
        yield f"{block(cause.error, more, told.extent(cause.error))}\n"
    if left := len(told.causes) - len(shown):
        what = "cause is" if left == 1 else "causes are"
        yield click.style(
            f"{left:,} more {what} not shown; --limit 0 shows all, --project and --only choose\n", dim=True
        )
    if isinstance(told.loaded, LoadedTenant):
        yield summary(name, told.loaded, told.errors, len(told.causes))
    else:
        yield f"{f'tenant {name}' if name else 'the tenant file'}: cannot be loaded\n"


def _elsewhere(told: TenantProblem, error: ConfigError) -> Iterator[tuple[str, str]]:
    """Where what is defined twice is defined first.  The error itself does not say it: it is to stay the same error
    when lines move there."""
    twice = _TWICE.search(error.text)
    if twice and isinstance(told.loaded, LoadedTenant):
        kind = "project-template" if twice[1] == "template" else twice[1]
        for first in told.loaded.layout.admitted((kind, twice[2]))[:1]:
            yield "note", f"the first definition is at {first.place}"


def notes(cause: Cause) -> Iterator[tuple[str, str]]:
    """(kind, text) of what is wrong because of it."""
    if cause.alike:
        yield "", same_on(cause.alike)
    if cause.also:
        yield "", f"the same is missing at {listed([place(error) for error in cause.also], FOLLOWING_MAX)}"
    for error in cause.follow[:FOLLOWING_MAX]:
        yield "so", f"{place(error)}: {error.text.partition('; did you mean')[0].partition('; known are')[0]}"
    if (more := len(cause.follow) - FOLLOWING_MAX) > 0:
        yield "so", f"{more:,} more error{'s' if more > 1 else ''} of this kind"
    if cause.graphs:
        yield "so", f"no job runs in {_graphs(cause.graphs)}"


def _graphs(graphs: Sequence[CheckedGraph]) -> str:
    """`check, gate of hub/app; post of hub/lib`: pipelines that are the same are told once."""
    of: dict[str, dict[str, None]] = {}
    for graph in graphs:
        of.setdefault(f"{graph.project}@{graph.branch}", {})[graph.pipeline] = None
    alike: dict[tuple[str, ...], list[str]] = {}
    for project, pipelines in of.items():
        alike.setdefault(tuple(pipelines), []).append(project)
    parts = [f"{listed(pipelines)} of {listed(projects, 4)}" for pipelines, projects in alike.items()]
    return "; ".join(parts[:FOLLOWING_MAX]) + (f"; and {len(parts) - FOLLOWING_MAX:,} more" if len(parts) > 3 else "")


def as_json(told: TenantProblem) -> dict[str, Any]:
    """Return every error, those with one cause beside each other; and counts."""
    errors: list[dict[str, Any]] = []
    for cause in told.causes:
        first = len(errors)
        for error in cause.errors:
            graphs = [graph._asdict() for graph in cause.graphs] if error is cause.error else []
            errors.append({**located(told, error), "cause": None if error is cause.error else first, "ends": graphs})
    return {"errors": errors, "counts": {**counts(told.loaded), "errors": failures(told, "error")}}


def located(told: TenantProblem, error: ConfigError) -> dict[str, Any]:
    """Return the error, to the column.  JSON."""
    extent = told.extent(error)
    whole = {**error_as_json(error), "column": 0, "end_line": 0, "end_column": 0}
    if error.line:
        whole |= {"column": extent.column, "end_line": extent.end_line, "end_column": extent.end_column}
    return whole


def failures(told: TenantProblem, severity: str) -> int:
    """Return how many errors are at least that bad."""
    return sum(severity == "warning" or error.severity == "error" for error in told.errors)
