"""Job graphs of many projects, frozen and shown as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headgate.base.errors import UserError
from headgate.cli.offline.parallel import spread
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.repositories import Files, UnreadableRepository, is_repository, on_disk, place_of, read
from headgate.config.explain import describe
from headgate.config.explain.describe import GraphDifference
from headgate.config.explain.origins import Explainer
from headgate.config.files.source import nearest
from headgate.config.model import FrozenGraph
from headgate.config.tenants import TenantProject


class GraphPlace(NamedTuple):
    """Name one graph of a tenant."""

    pipeline: str
    project: TenantProject
    branch: str


def places(loaded: LoadedTenant, pipeline: str | None, project: str | None, branch: str | None) -> list[GraphPlace]:
    """Return every project in every pipeline that matches, in the order of the tenant file. Raise UserError."""
    layout, name = loaded.layout, loaded.tenant.name
    if pipeline is not None and pipeline not in layout.pipelines:
        raise UserError(f"tenant {name} has no pipeline {pipeline!r}{nearest(pipeline, layout.pipelines)}")
    source = loaded.tenant.find(project) if project is not None else None
    if project is not None and source is None:
        raise UserError(f"tenant {name}: {loaded.tenant.why_not(project)}")
    sources = loaded.tenant.projects if source is None else (source,)
    pipelines = list(layout.pipelines) if pipeline is None else [pipeline]
    wanted = [(s, branch or default_branch(loaded, s)) for s in sources if _read(loaded, s, branch)]
    if branch is not None and source is not None and not wanted:
        known = ", ".join(loaded.branches.get(source.project, {})) or "none"
        raise UserError(f"tenant {name}: no branch {branch!r} of {source.name} is read; those that are: {known}")
    return [GraphPlace(pipeline, s, at) for s, at in wanted for pipeline in pipelines]


def _read(loaded: LoadedTenant, source: TenantProject, branch: str | None) -> bool:
    """Tell whether the configuration of the branch (None: of any) is read. A project that is not loaded has all
    branches."""
    branches = loaded.branches.get(source.project, {})
    return not source.loads or (bool(branches) if branch is None else branch in branches or source.is_dynamic(branch))


def default_branch(loaded: LoadedTenant, source: TenantProject) -> str:
    """Return the default branch that the stanzas name, or otherwise the first of the repository."""
    branches = loaded.branches.get(source.project, {})
    named = loaded.layout.default_branch(source.project)
    # The stanzas may name a branch that does not exist, or whose configuration is not read.
    return named if named in branches else next(iter(branches), source.load_branch)


def frozen(loaded: LoadedTenant, place: GraphPlace, files: tuple[str, ...] | None) -> FrozenGraph:
    if place.pipeline not in loaded.layout.pipelines:
        return FrozenGraph(in_pipeline=False)
    return loaded.layout.freeze(place.pipeline, place.project.project, place.branch, files=files)


def described(loaded: LoadedTenant, place: GraphPlace, files: tuple[str, ...] | None) -> dict[str, Any] | None:
    """Return one element of `headgate freeze --json`, or None when the project has no jobs in the pipeline."""
    graph = frozen(loaded, place, files)
    if not graph.in_pipeline and not graph.errors:
        return None
    return {
        "tenant": loaded.tenant.name,
        "pipeline": place.pipeline,
        "project": place.project.project,
        "branch": place.branch,
        "fail_fast": graph.fail_fast,
        "jobs": [*_jobs(loaded, place, graph, files)],
    }


def _jobs(
    loaded: LoadedTenant, place: GraphPlace, graph: FrozenGraph, files: tuple[str, ...] | None
) -> Iterator[dict[str, Any]]:
    explainer = Explainer(loaded.layout, place.pipeline, place.project.project, place.branch, files)
    for job in describe.jobs(graph):
        yield job if "error" in job else {**job, "files_decision": explainer.decision(job["name"])._asdict()}


def encoded(
    loaded: LoadedTenant, wanted: Sequence[GraphPlace], files: tuple[str, ...] | None
) -> tuple[list[bytes], bool]:
    """Return the graphs as JSON, in order, and whether any of them has errors."""

    def one(place: GraphPlace) -> tuple[bytes, bool] | None:
        found = described(loaded, place, files)
        if found is None:
            return None
        # Encoded in the helping process: bytes are quicker to send than structures, and this part runs in parallel,
        # too.
        return msgspec.json.encode(found), any("error" in job for job in found["jobs"])

    done = [graph for graph in spread(one, wanted) if graph]
    return [text for text, _ in done], any(wrong for _, wrong in done)


def proposal(loaded: LoadedTenant, directory: Path, branch: str | None) -> dict[str, Files]:
    """Return the files of the projects found below `directory`, for `branch` or their default branches. Raise
    UserError.

    A repository there stands for the whole project; files of a plain directory replace those of the project or are
    added to them, and an empty file removes the one of its name.
    """
    found: dict[str, Files] = {}
    for source in loaded.tenant.projects:
        host = source.project.removesuffix(f"/{source.name}")
        try:
            place = place_of(directory, source.connection, host, source.name)
        except UnreadableRepository:
            continue
        name = branch or default_branch(loaded, source)
        found[source.project] = {name: _proposed(place, source, loaded.files[source.project].get(name, {}))}
    if not found:
        raise UserError(f"{directory} has no directory of any project of tenant {loaded.tenant.name}")
    return found


def _proposed(place: Path, source: TenantProject, now: dict[str, str]) -> dict[str, str]:
    if is_repository(place):
        try:
            return next(iter(read(place, source.config_paths).values()), {})
        except UnreadableRepository as error:
            raise UserError(str(error)) from error
    laid = {**now, **on_disk(place, source.config_paths)}
    # An empty file stands for a deletion, which a directory beside the repository cannot show otherwise.
    return {path: text for path, text in laid.items() if text.strip()}


class ChangedGraph(NamedTuple):
    place: GraphPlace
    difference: GraphDifference


def changed(
    old: LoadedTenant, new: LoadedTenant, pairs: Sequence[GraphPlace], files: tuple[str, ...] | None
) -> Iterator[ChangedGraph]:
    """Yield the graphs that differ between both."""

    def one(place: GraphPlace) -> GraphDifference:
        return describe.difference(frozen(old, place, files), frozen(new, place, files))

    for place, difference in zip(pairs, spread(one, pairs), strict=True):
        if difference:
            yield ChangedGraph(place, difference)
