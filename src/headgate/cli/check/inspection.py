"""Inspect each tenant: load it, freeze all its graphs, and group the errors by cause."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from headgate.cli.offline.parallel import spread
from headgate.cli.offline.reader import LoadedTenant, RefusedTenant
from headgate.config.check import findings
from headgate.config.check.uses import reached
from headgate.config.explain.marks import Extent, extent
from headgate.config.model import ConfigError


class CheckScope(NamedTuple):
    """Restrict which errors are reported."""

    projects: tuple[str, ...] = ()
    """Names of projects, as on the command line; empty for all."""
    only: tuple[str, ...] = ()
    """`errors`, `warnings`, or names of errors in upper or lower case, with - for spaces; empty for all."""

    def names(self, error: ConfigError) -> bool:
        words = {word.lower().replace(" ", "-") for word in self.only}
        return not words or not words.isdisjoint((f"{error.severity}s", error.name.lower().replace(" ", "-")))


class TenantProblem(NamedTuple):
    """Describe a tenant and its errors."""

    loaded: LoadedTenant | RefusedTenant
    causes: list[findings.Cause]
    texts: Mapping[str, str]
    """Path -> text of files that belong to no project, such as the tenant file."""

    @property
    def errors(self) -> list[ConfigError]:
        return [error for cause in self.causes for error in cause.errors]

    def extent(self, error: ConfigError) -> Extent:
        return extent(error, self.text(error))

    def text(self, error: ConfigError) -> str:
        """Return the text of the file with the error, or an empty string if the error is in no file."""
        if not error.project or isinstance(self.loaded, RefusedTenant):
            return self.texts.get(error.path, "")
        return self.loaded.files.get(error.project, {}).get(error.branch, {}).get(error.path, "")


def pipelines_of(tenants: Iterable[LoadedTenant]) -> frozenset[str]:
    """Return the pipelines that the tenants define together."""
    return frozenset(name for loaded in tenants for name in loaded.layout.pipelines)


def findings_of(
    loaded: LoadedTenant, pipelines: Collection[str] | None, projects: Collection[str] | None
) -> list[findings.GraphFinding]:
    """Return all findings. If `projects` has canonical names of projects, freeze only their graphs."""
    layout = loaded.layout
    places = list(findings.graphs(layout, projects))
    # Freezing takes nearly all of the time, and graphs are independent of each other, so freeze them in parallel.
    ended = spread(lambda place: findings.frozen(layout, place), places)
    return [
        *map(findings.GraphFinding, loaded.errors),
        *findings.layout_findings(layout, pipelines),
        *(finding for found in ended for finding in found),
    ]


def problems_of(
    loaded: LoadedTenant,
    before: LoadedTenant | None,
    pipelines: Collection[str] | None,
    wanted: CheckScope,
    texts: Mapping[str, str],
) -> TenantProblem:
    """Return the problems of the tenant. With `before`, the state to compare with, return only new problems. Raise
    UserError."""
    projects = _named(loaded, wanted.projects)
    found: Sequence[findings.GraphFinding]
    if before is None:
        found = findings_of(loaded, pipelines, projects)
    else:
        # Freeze, in both states, only the projects that the difference affects: all others have the same graphs.
        touched = reached(before.layout, loaded.layout)
        touched = touched if projects is None else touched & projects
        found = new(findings_of(before, pipelines, touched), findings_of(loaded, pipelines, touched))
    found = [one for one in found if wanted.names(one.error) and _concerns(one, projects)]
    return TenantProblem(loaded, findings.causes(found, findings.left_out(loaded.layout)), texts)


def new(before: Sequence[findings.GraphFinding], after: Sequence[findings.GraphFinding]) -> list[findings.GraphFinding]:
    """Return the findings of `after` that `before` lacks. A finding that only moved within its file is not new."""
    known = {_identity(one) for one in before}
    return [one for one in after if _identity(one) not in known]


def _identity(one: findings.GraphFinding) -> tuple[str, str, str, str, str, tuple[findings.CheckedGraph, ...]]:
    error = one.error
    # Leave out the line: otherwise an error that only moved would count as new.
    return error.name, error.text, error.project, error.branch, error.path, one.graphs


def _concerns(one: findings.GraphFinding, projects: Collection[str] | None) -> bool:
    """Return whether the finding is in one of the projects (None: any), or breaks a graph of one."""
    return projects is None or one.error.project in projects or any(graph.project in projects for graph in one.graphs)


def _named(loaded: LoadedTenant, names: Sequence[str]) -> frozenset[str] | None:
    """Return the canonical names of the projects, or None without names. Raise UserError."""
    return frozenset(loaded.project(name).project for name in names) if names else None
