"""Freeze job graphs of many projects; show them, and how proposed files alter them, as JSON or text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from headgate.base.errors import UserError
from headgate.base.hints import nearest, with_hint
from headgate.base.texts import plain_json
from headgate.cli.offline.parallel import spread
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.report import error_as_json
from headgate.cli.offline.repositories import Files, UnreadableRepository, is_repository, on_disk, place_of, read
from headgate.cli.terminal.say import style
from headgate.config.explain import describe
from headgate.config.explain.origins import Explainer
from headgate.config.model import FrozenGraph
from headgate.config.operator.model import TenantProject

Detail = tuple[str, str]
"""An attribute, and how it changes."""

NAMES_MAX = 4
"""Maximum number of jobs or projects to list by name; of further ones, the text shows only the number."""
VALUE_MAX_CHARS = 100
_MARKS = {"!": "red", "+": "green", "-": "red", "~": "yellow", "ok": "green"}
"""Mark -> style, in the order of the output."""
_WORDS = {"+": "new job ", "-": "removed job ", "~": "", "!": "error: ", "ok": "fixed error: "}
_SPOKEN = {
    "variables": "vars",
    "extra_variables": "extra-vars",
    "host_variables": "host-vars",
    "group_variables": "group-vars",
    "parent_chain": "parents",
}
"""Attribute of a frozen job -> key of the configuration, if they differ by more than `_` for `-`."""


class GraphPlace(NamedTuple):
    """Name one graph of a tenant."""

    pipeline: str
    project: TenantProject
    branch: str


def places(loaded: LoadedTenant, pipeline: str | None, project: str | None, branch: str | None) -> list[GraphPlace]:
    """Return the graphs of all matching projects and pipelines, in the order of the tenant file. Raise UserError."""
    layout, name = loaded.layout, loaded.tenant.name
    if pipeline is not None and pipeline not in layout.pipelines:
        text = f"tenant {name} has no pipeline {pipeline!r}"
        raise UserError(with_hint(text, nearest(pipeline, layout.pipelines)))
    source = loaded.project(project) if project is not None else None
    sources = loaded.tenant.projects if source is None else (source,)
    pipelines = list(layout.pipelines) if pipeline is None else [pipeline]
    wanted = [(s, branch or default_branch(loaded, s)) for s in sources if _read(loaded, s, branch)]
    if branch is not None and source is not None and not wanted:
        known = ", ".join(loaded.branches.get(source.project, {})) or "none"
        raise UserError(
            f"tenant {name}: {source.name} has no branch {branch!r} with configuration; branches with one: {known}"
        )
    return [GraphPlace(pipeline, s, at) for s, at in wanted for pipeline in pipelines]


def _read(loaded: LoadedTenant, source: TenantProject, branch: str | None) -> bool:
    """Return whether the configuration of the branch (None: of any branch) is read. A project whose configuration is
    not loaded counts as having every branch."""
    branches = loaded.branches.get(source.project, {})
    return not source.loads or (bool(branches) if branch is None else branch in branches or source.is_dynamic(branch))


def default_branch(loaded: LoadedTenant, source: TenantProject) -> str:
    """Return the default branch that the stanzas name, or else the first branch of the repository."""
    branches = loaded.branches.get(source.project, {})
    named = loaded.layout.default_branch(source.project)
    # The stanzas may name a branch that does not exist, or whose configuration is not read.
    return named if named in branches else next(iter(branches), source.load_branch)


def frozen(loaded: LoadedTenant, place: GraphPlace, files: tuple[str, ...] | None) -> FrozenGraph:
    """Freeze one graph; it is empty if the tenant has no such pipeline."""
    # A proposal may add or remove the pipeline, so one of the two states may lack it.
    if place.pipeline not in loaded.layout.pipelines:
        return FrozenGraph(in_pipeline=False)
    return loaded.layout.freeze(place.pipeline, place.project.project, place.branch, files=files)


def described(loaded: LoadedTenant, place: GraphPlace, files: tuple[str, ...] | None) -> dict[str, Any] | None:
    """Return one element of `headgate freeze --json`, or None if the project has no jobs in the pipeline."""
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
        # Encode in the worker process: that runs in parallel, too, and bytes are cheaper to send than structures.
        return msgspec.json.encode(found), any("error" in job for job in found["jobs"])

    done = [graph for graph in spread(one, wanted) if graph]
    return [text for text, _ in done], any(wrong for _, wrong in done)


def proposal(loaded: LoadedTenant, directory: Path, branch: str | None) -> dict[str, Files]:
    """Return the files of the projects found below `directory`, for `branch` or their default branches. Raise
    UserError.

    A repository replaces all files of its project. Files of a plain directory replace or complement those of the
    project, and an empty file deletes the file of that name.
    """
    found: dict[str, Files] = {}
    for source in loaded.tenant.projects:
        host = source.project.removesuffix(f"/{source.name}")
        try:
            place = place_of(directory, source.connection, host, source.name)
        except UnreadableRepository:
            # The directory need not hold every project.
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
    # An empty file means a deletion, which a plain directory cannot express otherwise.
    return {path: text for path, text in laid.items() if text.strip()}


class ChangedGraph(NamedTuple):
    place: GraphPlace
    difference: describe.GraphDifference


def changed(
    old: LoadedTenant, new: LoadedTenant, pairs: Sequence[GraphPlace], files: tuple[str, ...] | None
) -> Iterator[ChangedGraph]:
    """Yield the graphs that differ between the two states."""

    def one(place: GraphPlace) -> describe.GraphDifference:
        return describe.difference(frozen(old, place, files), frozen(new, place, files))

    for place, difference in zip(pairs, spread(one, pairs), strict=True):
        if difference:
            yield ChangedGraph(place, difference)


def changes_as_json(changes: Sequence[ChangedGraph]) -> list[dict[str, Any]]:
    """Return an element for each graph that differs."""
    return [
        {
            "pipeline": place.pipeline,
            "project": place.project.project,
            "branch": place.branch,
            "new": found.new,
            "gone": [job["name"] for job in found.gone],
            "changed": {
                name: {d.path: {"old": d.old, "new": d.new} for d in differences}
                for name, differences in found.changed.items()
            },
            "reordered": bool(found.order),
            "errors": {
                "new": [error_as_json(error) for error in found.errors_new],
                "gone": [error_as_json(error) for error in found.errors_gone],
            },
        }
        for place, found in changes
    ]


def changes_as_text(changes: Sequence[ChangedGraph]) -> Iterator[str]:
    """Yield each change once, with all graphs that have it."""
    blocks: dict[tuple[str, str, tuple[Detail, ...]], tuple[dict[str, None], dict[GraphPlace, None]]] = {}
    for place, found in changes:
        for mark, name, details in _rows(found):
            # Jobs with the same changes share a block; a new or removed job has its own.
            names, where = blocks.setdefault((mark, "" if mark == "~" else name, tuple(details)), ({}, {}))
            # Dictionaries serve as ordered sets.
            names[name] = where[place] = None
    order = list(_MARKS)
    for (mark, _, same), (names, where) in sorted(blocks.items(), key=lambda block: order.index(block[0][0])):
        yield "\n".join(_block(mark, list(names), list(where), same))
    yield _summary(changes)


def _rows(found: describe.GraphDifference) -> Iterator[tuple[str, str, list[Detail]]]:
    """Yield (mark, name, details) for each difference in one graph."""
    for job in found.new:
        yield "+", job["name"], list(_gist(job))
    for job in found.gone:
        yield "-", job["name"], []
    for name, differences in found.changed.items():
        yield "~", name, [detail for d in differences for detail in _details(d)]
    if found.order:
        yield "~", "the order of the jobs", [("now", _listed(found.order, "jobs"))]
    for error in found.errors_new:
        yield "!", error.text, [("at", f"{error.project} {error.branch} {error.path}:{error.line}")]
    for error in found.errors_gone:
        yield "ok", error.text, []


def _gist(job: Mapping[str, Any]) -> Iterator[Detail]:
    """Yield the most important attributes of a new job."""
    if job["parent_chain"]:
        yield "parent_chain", " ← ".join(job["parent_chain"])
    for key in ("run", "dependencies", "nodeset"):
        if text := short(key, job[key]):
            yield key, text
    if not job["voting"]:
        yield "voting", "false"


def _details(d: describe.AttributeDifference) -> Iterator[Detail]:
    key = d.path.split(".")[0]
    if isinstance(d.old, list) and isinstance(d.new, list):
        old, new = [short(key, [v]) for v in d.old], [short(key, [v]) for v in d.new]
        gone, come = [v for v in old if v not in new], [v for v in new if v not in old]
        for number, text in enumerate((*(f"- {v}" for v in gone), *(f"+ {v}" for v in come))):
            yield "" if number else d.path, text
        # If elements differ, their order matters less.
        if gone or come:
            return
        # The short texts are the same: either only the order differs, or something that they omit; then show all.
        if sorted(old) == sorted(new) and old != new:
            yield d.path, f"reordered: {', '.join(new)}"
        else:
            yield d.path, f"{_json(d.old)} → {_json(d.new)}"
    elif d.old is None:
        yield d.path, f"+ {short(key, d.new)}"
    elif d.new is None:
        yield d.path, f"- {short(key, d.old)}"
    else:
        yield d.path, f"{short(key, d.old) or 'nothing'} → {short(key, d.new) or 'nothing'}"


def spoken(path: str) -> str:
    """Return an attribute in the spelling of the configuration."""
    key, dot, inner = path.partition(".")
    return f"{_SPOKEN.get(key, key.replace('_', '-'))}{dot}{inner}"


def short(key: str, value: Any) -> str:  # JSON
    """Return the value of an attribute as short text."""
    if isinstance(value, list):
        return ", ".join(short(key, one) for one in value)
    if not isinstance(value, dict):
        return (
            "nothing"
            if value in (None, "")
            else _cut(" ".join(value.split()))
            if isinstance(value, str)
            else _json(value)
        )
    if key in ("pre_run", "run", "post_run", "cleanup_run"):
        return f"{value['project'].rpartition('/')[2]}/{value['path']}@{value['branch']}"
    if key == "dependencies":
        return f"{value['name']}{' (soft)' if value['soft'] else ''}"
    if key == "required_projects":
        return "@".join(word for word in (value["project"], value["override_checkout"]) if word)
    if key == "nodeset":
        nodes = ", ".join(f"{_names(node['name'])} ({node['label']})" for node in value["nodes"])
        first = ": ".join(text for text in (value["name"], nodes) if text)
        return " or ".join([first, *(short(key, other) for other in value.get("alternatives", ()))])
    named = "name" in value and not any(inner for name, inner in value.items() if name != "name")
    return str(value["name"]) if named else _json(value)


def _names(name: Any) -> str:  # one value, or a list
    return name if isinstance(name, str) else "/".join(name)


def _json(value: Any) -> str:
    return _cut(plain_json(json.dumps(value, ensure_ascii=False)))


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"


def _block(mark: str, names: Sequence[str], where: Sequence[GraphPlace], details: Sequence[Detail]) -> Iterator[str]:
    head = style(f"{mark:2}", fg=_MARKS[mark], bold=True)
    what = style(_listed(names, "jobs"), bold=True)
    yield f"{head}{_WORDS[mark]}{what}  {style(_where(where), dim=True)}"
    width = max((len(spoken(path)) for path, _ in details), default=0)
    for path, text in details:
        tint = {"+ ": "green", "- ": "red"}.get(text[:2])
        yield f"    {style(f'{spoken(path):{width}}', fg='blue')}  {style(text, fg=tint)}"


def _where(places: Sequence[GraphPlace]) -> str:
    """Return the graphs as text, such as `in check, gate of app; post of app, lib`."""
    pipelines: dict[tuple[str, ...], list[str]] = {}
    by_project: dict[str, list[str]] = {}
    for place in places:
        by_project.setdefault(f"{place.project.name}@{place.branch}", []).append(place.pipeline)
    for project, names in by_project.items():
        pipelines.setdefault(tuple(names), []).append(project)
    return "in " + "; ".join(f"{', '.join(names)} of {_listed(ps, 'projects')}" for names, ps in pipelines.items())


def _listed(names: Iterable[str], what: str) -> str:
    every = list(names)
    if len(every) <= NAMES_MAX:
        return ", ".join(every)
    return f"{', '.join(every[: NAMES_MAX - 1])} and {len(every) - NAMES_MAX + 1:,} more {what}"


def _summary(changes: Sequence[ChangedGraph]) -> str:
    found = [c.difference for c in changes]
    counts = {
        "new": sum(len(d.new) for d in found),
        "removed": sum(len(d.gone) for d in found),
        "changed": sum(len(d.changed) for d in found),
    }
    jobs = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    errors = sum(len(d.errors_new) for d in found)
    if not changes:
        return "no job graph changes"
    graphs = f"{len(changes):,} job graph{'s' if len(changes) > 1 else ''} change{'s' if len(changes) == 1 else ''}"
    text = f"{graphs}: jobs {jobs}" if jobs else graphs
    return f"{text}; {style(f'{errors:,} with errors', fg='red')}" if errors else text
