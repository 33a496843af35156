"""`headgate explain uses`: which jobs inherit from a job, what runs or needs it, and what would break without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from headgate.base.errors import UserError
from headgate.base.texts import listed, plain_json
from headgate.cli.offline.reader import LoadedTenant, ReadingError, ReadingOptions, given
from headgate.cli.offline.report import block, error_as_json, notes
from headgate.cli.terminal.say import say, style
from headgate.config.check.findings import Cause, causes
from headgate.config.check.uses import Uses
from headgate.config.check.uses import uses as uses_of
from headgate.config.files.source import nearest
from headgate.config.parse import Stanza
from headgate.config.tenants import ConfigErrors

LISTED_MAX = 40
"""Rows of one kind that are shown; JSON has all."""
BROKEN_MAX = 5


@click.command()
@given
@click.argument("name")
@click.option("--json", "json_", is_flag=True, help="As JSON.")
def command(given: ReadingOptions, name: str, json_: bool) -> None:
    """Show what inherits from the job NAME, attaches it, or depends on it, and what would break without it."""
    try:
        tenants = given.tenants()
        having = {tenant: loaded for tenant, loaded in tenants.items() if loaded.layout.variants(name)}
        if not having:
            known = [job for loaded in tenants.values() for job in loaded.layout.jobs]
            raise UserError(f"no tenant has a job {name!r}{nearest(name, known)}")
    except (UserError, ConfigErrors) as error:
        raise ReadingError(str(error)) from error
    found = {tenant: uses_of(loaded.layout, name) for tenant, loaded in having.items()}
    if json_:
        report = {tenant: _as_json(one) for tenant, one in found.items()}
        say(plain_json(msgspec.json.format(msgspec.json.encode(report)).decode()))
        return
    for tenant, one in found.items():
        say("\n".join(_as_text(having[tenant], name, one)))


def _as_json(found: Uses) -> dict[str, Any]:
    return {
        "children": [{"job": c.name, "generation": c.generation, **_place(c.stanza)} for c in found.children],
        "attached": [
            {"pipeline": a.pipeline, "kind": a.stanza.kind, "name": a.stanza.name, **_place(a.stanza, a.line)}
            for a in found.attached
        ],
        "needed_by": [{"job": n.name, **_place(n.stanza)} for n in found.needed],
        "projects": sorted(found.projects),
        "without": [{**error_as_json(f.error), "ends": [graph._asdict() for graph in f.graphs]} for f in found.without],
    }


def _place(stanza: Stanza, line: int = 0) -> dict[str, Any]:
    source = stanza.source
    return {"project": source.project, "branch": source.branch, "path": source.path, "line": line or stanza.line}


def _as_text(loaded: LoadedTenant, name: str, found: Uses) -> Iterator[str]:
    yield f"{style(name, bold=True)}  in tenant {loaded.tenant.name}"
    yield from _listed(
        "inherited by", [(f"{'  ' * (c.generation - 1)}{c.name}", c.stanza.place) for c in found.children]
    )
    attached = [(f"{a.pipeline} of {_who(a.stanza)}", f"{a.stanza.source.place}:{a.line}") for a in found.attached]
    yield from _listed("attached by", attached)
    yield from _listed("needed by", [(n.name, n.stanza.place) for n in found.needed])
    if found.projects:
        yield f"part of job graphs of {listed(sorted(found.projects), 6)}"
    broken = causes(found.without, {})
    yield style("without it nothing would be wrong", fg="green") if not broken else _verdict(broken)
    for cause in broken[:BROKEN_MAX]:
        yield f"\n{block(cause.error, list(notes(cause)))}"
    if more := len(broken) - BROKEN_MAX if len(broken) > BROKEN_MAX else 0:
        yield f"\nand {more:,} more; --json has all"


def _verdict(broken: Sequence[Cause]) -> str:
    errors = sum(len(cause.errors) for cause in broken)
    graphs = {graph for cause in broken for graph in cause.graphs}
    text = f"without it: {errors:,} error{'s' if errors != 1 else ''}, {len(graphs):,} job graphs would not run"
    return style(text, fg="red")


def _who(stanza: Stanza) -> str:
    if stanza.kind == "project-template":
        return f"template {stanza.name}"
    return stanza.name or stanza.source.project


def _listed(what: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not rows:
        return
    yield f"{what}:"
    width = max(len(name) for name, _ in rows[:LISTED_MAX])
    yield from (f"  {name:{width}}  {style(place, dim=True)}" for name, place in rows[:LISTED_MAX])
    if len(rows) > LISTED_MAX:
        yield f"  and {len(rows) - LISTED_MAX:,} more"
