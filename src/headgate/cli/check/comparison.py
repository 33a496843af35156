"""Hold the result of `headgate check --against`, and format it as JSON or as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from headgate.base.texts import listed
from headgate.cli.offline.graphs import GraphPlace
from headgate.cli.terminal.say import style
from headgate.config.explain.describe import AttributeDifference

VALUE_MAX_CHARS = 160


class Compared(NamedTuple):
    """Compare one graph; without differences, it is the same."""

    tenant: str
    place: GraphPlace
    jobs: int
    differences: tuple[AttributeDifference, ...]
    unknown: str = ""
    """Text of the server when it does not know the pipeline, project or branch; empty when it does."""

    @property
    def where(self) -> tuple[str, str, str]:
        return self.tenant, self.place.project.project, self.place.branch


class Apart(NamedTuple):
    """Name a branch that was not compared, and the reason."""

    tenant: str
    project: str
    branch: str
    why: str


class HeldComparison(NamedTuple):
    """Hold the result of a comparison."""

    graphs: list[Compared]
    apart: list[Apart]


def as_json(held: HeldComparison) -> dict[str, Any]:
    return {
        "graphs": len(held.graphs),
        "jobs": sum(one.jobs for one in held.graphs),
        "differing": [
            {
                "tenant": one.tenant,
                "pipeline": one.place.pipeline,
                "project": one.place.project.project,
                "branch": one.place.branch,
                "differences": [{"path": d.path, "ours": d.old, "theirs": d.new} for d in one.differences],
            }
            for one in held.graphs
            if one.differences
        ],
        "not_compared": [one._asdict() for one in held.apart],
    }


def as_text(held: HeldComparison, url: str, limit: int) -> Iterator[str]:
    """Yield each difference once, with the graphs that have it; then the branches that were not compared; then the
    counts."""
    # A difference in a base job appears in thousands of graphs, so each is shown once.
    where: dict[tuple[str, str, str], list[str]] = {}
    for one in held.graphs:
        graph = f"{one.place.pipeline} of {one.place.project.name}@{one.place.branch}"
        for d in one.differences:
            where.setdefault((d.path, _short(d.old), _short(d.new)), []).append(f"{one.tenant}: {graph}")
    shown = list(where.items())[: limit or None]
    for (path, mine, other), graphs in shown:
        yield f"{style('~', fg='yellow', bold=True)} {style(path, bold=True)}  {listed(graphs, 3)}"
        yield f"    {style('here', fg='blue')}   {mine}\n    {style('there', fg='blue')}  {other}\n"
    if left := len(where) - len(shown):
        yield f"{left:,} more differences are not shown; --limit 0 shows all\n"
    yield from _not_compared(held.apart, limit)
    differing = sum(bool(one.differences) for one in held.graphs)
    branches = len({one.where for one in held.graphs})
    graphs_and = f"{len(held.graphs):,} job graphs of {branches:,} branches"
    what = f"{graphs_and} and {sum(one.jobs for one in held.graphs):,} jobs compared with {url}"
    good = style("all are the same", fg="green", bold=True)
    ends = f"; {len(held.apart):,} not compared, see above" if held.apart else ""
    yield f"{what}: {style(f'{differing:,} graphs differ', fg='red', bold=True) if differing else good}{ends}"


def _not_compared(apart: Sequence[Apart], limit: int) -> Iterator[str]:
    """Yield each reason once, with the branches that were not compared for it."""
    why: dict[str, list[str]] = {}
    for one in apart:
        why.setdefault(one.why, []).append(f"{one.tenant}: {one.project}{f'@{one.branch}' if one.branch else ''}")
    for reason, branches in why.items():
        names = listed(branches, limit or len(branches))
        yield f"{style('not compared', fg='yellow', bold=True)}  {names}\n    {_short(reason)}\n"


def _short(value: Any) -> str:
    if value is None:
        return "nothing"
    # Text that is not printable becomes JSON, whose escapes are harmless in a terminal.
    text = value if isinstance(value, str) and value.isprintable() else json.dumps(value)
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"
