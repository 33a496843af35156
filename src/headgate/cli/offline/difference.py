"""What a proposed change to the configuration changes in the job graphs: as JSON, and to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from headgate.cli.offline.graphs import Changed, Place
from headgate.cli.offline.report import error_as_json
from headgate.config.compare import Difference, GraphDifference

NAMES_MAX = 4
"""Jobs or projects listed by name; of more only the number is told."""
VALUE_MAX_CHARS = 100


def as_json(changes: Sequence[Changed]) -> list[dict[str, Any]]:
    """One element a graph that is not the same."""
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
            "reordered": found.order,
            "errors": {
                "new": [error_as_json(error) for error in found.errors_new],
                "gone": [error_as_json(error) for error in found.errors_gone],
            },
        }
        for place, found in changes
    ]


def as_text(changes: Sequence[Changed]) -> Iterator[str]:
    """What changes, each thing once, with all the places where it does."""
    blocks: dict[tuple[str, ...], tuple[dict[str, None], list[Place]]] = {}
    for place, found in changes:
        for mark, name, details in _told(found):
            # jobs that change alike are told together; a new job is told by itself
            names, where = blocks.setdefault((mark, *(() if mark == "~" else (name,)), *details), ({}, []))
            names[name] = None
            if not where or where[-1] != place:
                where.append(place)
    for (mark, *told), (names, where) in sorted(blocks.items(), key=lambda block: list(_MARKS).index(block[0][0])):
        details = told if mark == "~" else told[1:]
        yield "\n".join(_block(mark, list(names), where, details))
    yield _summary(changes)


def _told(found: GraphDifference) -> Iterator[tuple[str, str, list[str]]]:
    """(mark, name, details) of everything in one graph."""
    for job in found.new:
        yield "+", job["name"], list(_gist(job))
    for job in found.gone:
        yield "-", job["name"], []
    for name, differences in found.changed.items():
        yield "~", name, [line for d in differences for line in _lines(d)]
    if found.order:
        yield "~", "the order of the jobs", []
    for error in found.errors_new:
        yield "!", error.text, [f"{'at':16}{error.project} {error.branch} {error.path}:{error.line}"]
    for error in found.errors_gone:
        yield "ok", error.text, []


def _gist(job: Mapping[str, Any]) -> Iterator[str]:
    """What is to be known first of a new job."""
    if job["parent_chain"]:
        yield f"{'parents':16}{' ← '.join(job['parent_chain'])}"
    for key in ("run", "dependencies", "nodeset"):
        if text := short(key, job[key]):
            yield f"{key:16}{text}"
    if not job["voting"]:
        yield f"{'voting':16}false"


def _lines(d: Difference) -> Iterator[str]:
    key = d.path.split(".")[0]
    if isinstance(d.old, list) and isinstance(d.new, list):
        old, new = [short(key, [v]) for v in d.old], [short(key, [v]) for v in d.new]
        gone, come = [v for v in old if v not in new], [v for v in new if v not in old]
        if gone or come:
            head = d.path
            for mark, value in (*(("-", v) for v in gone), *(("+", v) for v in come)):
                yield f"{head:16}{mark} {value}"
                head = ""
            return
        if sorted(old) == sorted(new) and old != new:
            yield f"{d.path:16}in another order: {', '.join(new)}"
            return
        yield f"{d.path:16}{_json(d.old)} → {_json(d.new)}"
    elif d.old is None:
        yield f"{d.path:16}+ {short(key, d.new)}"
    elif d.new is None:
        yield f"{d.path:16}- {short(key, d.old)}"
    else:
        yield f"{d.path:16}{short(key, d.old)} → {short(key, d.new)}"


def short(key: str, value: Any) -> str:  # JSON
    """An attribute in the fewest words."""
    if isinstance(value, list):
        return ", ".join(short(key, one) for one in value)
    if not isinstance(value, dict):
        return "nothing" if value in (None, "") else str(value) if isinstance(value, str) else _json(value)
    if key in ("pre_run", "run", "post_run", "cleanup_run"):
        return f"{value['project'].rpartition('/')[2]}/{value['path']}@{value['branch']}"
    if key == "dependencies":
        return f"{value['name']}{' (soft)' if value['soft'] else ''}"
    if key == "nodeset":
        nodes = ", ".join(f"{_names(node['name'])} ({node['label']})" for node in value["nodes"])
        return ": ".join(text for text in (value["name"], nodes) if text)
    named = "name" in value and not any(inner for name, inner in value.items() if name != "name")
    return str(value["name"]) if named else _json(value)


def _names(name: Any) -> str:  # one, or a list
    return name if isinstance(name, str) else "/".join(name)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"


_MARKS = {"!": "red", "+": "green", "-": "red", "~": "yellow", "ok": "green"}
"""In the order in which they are told."""
_WORDS = {"+": "new job ", "-": "gone job ", "~": "", "!": "error: ", "ok": "error mended: "}


def _block(mark: str, names: Sequence[str], where: Sequence[Place], details: Sequence[str]) -> Iterator[str]:
    colour = _MARKS[mark]
    head = click.style(f"{mark:2}", fg=colour, bold=True)
    what = click.style(_listed(names, "jobs"), bold=True)
    yield f"{head}{_WORDS[mark]}{what}  {click.style(_where(where), dim=True)}"
    for line in details:
        tint = {"+": "green", "-": "red"}.get(line[16:18].strip())
        yield f"    {click.style(line[:16], fg='blue')}{click.style(line[16:], fg=tint)}"


def _where(places: Sequence[Place]) -> str:
    """`in check, gate of app; post of app, lib`"""
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


def _summary(changes: Sequence[Changed]) -> str:
    found = [c.difference for c in changes]
    counts = {
        "new": sum(len(d.new) for d in found),
        "gone": sum(len(d.gone) for d in found),
        "changed": sum(len(d.changed) for d in found),
    }
    jobs = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    errors = sum(len(d.errors_new) for d in found)
    if not changes:
        return "no job graph changes"
    graphs = f"{len(changes):,} job graph{'s' if len(changes) > 1 else ''} change{'s' if len(changes) == 1 else ''}"
    text = f"{graphs}: jobs {jobs}" if jobs else graphs
    return f"{text}; {click.style(f'{errors:,} with errors', fg='red')}" if errors else text
