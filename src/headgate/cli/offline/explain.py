"""Implement `headgate explain`: show where each attribute of a job comes from, and what uses the job."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from headgate.base.errors import UserError
from headgate.base.hints import nearest, with_hint
from headgate.base.texts import listed, plain_json
from headgate.cli.groups import CommandGroup
from headgate.cli.offline import report
from headgate.cli.offline.graphs import GraphPlace, default_branch, places, short, spoken
from headgate.cli.offline.reader import LoadedTenant, ReadingError, ReadingOptions, given
from headgate.cli.terminal.say import say, style
from headgate.config.check.findings import Cause, causes, left_out
from headgate.config.check.uses import Uses, uses
from headgate.config.explain.origins import Attribute, Elements, Explained, Explainer, Origin, OriginStep, explained
from headgate.config.files.checks import as_list, deep_plain, plain
from headgate.config.freeze.sections import FreezeTarget, attached, job_applies, of
from headgate.config.operator.model import ConfigErrors
from headgate.config.parse import Stanza
from headgate.config.patterns import Undecided

LISTED_MAX = 40
"""Maximum number of rows of one kind in the text output; JSON has all."""
BROKEN_MAX = 5
"""Maximum number of causes to show for errors that a removal would cause."""
VALUE_MAX_CHARS = 60
LEFT_OUT_MAX = 5
"""Maximum number of definitions for other branches to show."""


class ExplainTarget(NamedTuple):
    """Name a job in a graph or, without a place, outside any graph."""

    loaded: LoadedTenant
    job: str
    place: GraphPlace | None
    branch: str
    others: int
    """Number of other graphs with the job."""

    @property
    def target(self) -> FreezeTarget:
        return FreezeTarget(self.branch)


@click.group(cls=CommandGroup)
def command() -> None:
    """Show where attributes of jobs come from, and what uses a job."""


@command.command()
@given
@click.argument("name")
@click.option("--project", help="Explain the job as this project runs it. Default: the first project that runs it.")
@click.option("--pipeline", help="Explain the job as it runs in this pipeline.")
@click.option("--branch", help="The branch. Default: the project's default branch.")
@click.option("--attribute", metavar="NAME", help="Show only this attribute, or one variable: vars.NAME.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def job(
    given: ReadingOptions,
    name: str,
    project: str | None,
    pipeline: str | None,
    branch: str | None,
    attribute: str | None,
    json_: bool,
) -> None:
    """Show where each attribute of the job NAME comes from: which variant, in which file, on which line."""
    try:
        tenants = given.tenants()
        target = chosen(tenants, name, project, pipeline, branch)
        at = (target.place.pipeline, target.place.project.project) if target.place is not None else ("", "")
        found = explained(target.loaded.layout, name, target.target, *at)
    except ConfigErrors as refused:
        say("\n\n".join(report.as_text(refused.errors)), err=True)
        sys.exit(1)
    except (UserError, Undecided) as error:
        raise ReadingError(str(error)) from error
    if attribute is not None:
        found = found._replace(attributes=_only(found, attribute))
    if json_:
        say(plain_json(msgspec.json.format(msgspec.json.encode(_as_json(target, found))).decode()))
    else:
        say("\n".join(shown(target, found)))
        report.remind(target.loaded)
    if found.errors or not found.variants:
        sys.exit(1)


def _only(found: Explained, wanted: str) -> tuple[Attribute | Elements, ...]:
    """Return the attribute, spelt as in the configuration or in the output, with everything below it. Raise
    ReadingError if there is none."""
    known = {word: one for one in found.attributes for word in (one.path, spoken(one.path))}
    # Use ids as keys: both spellings of an attribute may match.
    fits = {id(one): one for word, one in known.items() if word == wanted or word.startswith(f"{wanted}.")}
    if not fits:
        names = sorted({spoken(one.path).partition(".")[0] for one in found.attributes})
        hint = nearest(wanted, names) or f"these are set: {', '.join(names)}"
        raise ReadingError(with_hint(f"job {found.job} has no attribute {wanted!r}", hint))
    return tuple(fits.values())


def chosen(
    tenants: Mapping[str, LoadedTenant], name: str, project: str | None, pipeline: str | None, branch: str | None
) -> ExplainTarget:
    """Choose the job in the first tenant that has it. Raise UserError."""
    wrong: list[str] = []
    for loaded in tenants.values():
        layout = loaded.layout
        if not layout.variants(name):
            wrong_one = left_out(layout).get(f"job {name}")
            lost = f"its definition is ignored because of the error at {report.place(wrong_one)}" if wrong_one else ""
            # An ignored definition explains more than a similar name.
            hint = lost or nearest(name, layout.jobs)
            wrong.append(with_hint(f"tenant {loaded.tenant.name} has no job {name!r}", hint))
            continue
        having = [place for place in places(loaded, pipeline, project, branch) if _runs(loaded, place, name)]
        if having:
            return ExplainTarget(loaded, name, having[0], having[0].branch, len(having) - 1)
        if project or pipeline:
            where = " of ".join(word for word in (pipeline, project) if word)
            # The job may run elsewhere, which people may have meant.
            running = [
                f"{p.pipeline} of {p.project.name}" for p in places(loaded, None, None, None) if _runs(loaded, p, name)
            ]
            runs = f"; it runs in {listed(running, 5)}" if running else "; no project runs it"
            wrong.append(f"tenant {loaded.tenant.name}: {where} does not run the job {name!r}{runs}")
            continue
        # No project runs the job, so its first definition says where it belongs.
        first = layout.variants(name)[0].source
        source = layout.source(first.project)
        return ExplainTarget(loaded, name, None, branch or first.branch or default_branch(loaded, source), 0)
    raise UserError("\n".join(wrong) or "there is no tenant")


def _runs(loaded: LoadedTenant, place: GraphPlace, name: str) -> bool:
    found = of(loaded.layout, place.pipeline, place.project.project, FreezeTarget(place.branch))
    return name in attached(found)


# --- JSON


def _as_json(target: ExplainTarget, found: Explained) -> dict[str, Any]:
    place = target.place
    return {
        "tenant": target.loaded.tenant.name,
        "job": target.job,
        "pipeline": place.pipeline if place is not None else None,
        "project": place.project.project if place is not None else None,
        "branch": target.branch,
        "variants": [variant._asdict() for variant in found.variants],
        "attributes": {one.path: _attribute(one) for one in found.attributes},
        "errors": [report.error_as_json(error) for error in found.errors],
    }


def _attribute(one: Attribute | Elements) -> dict[str, Any]:
    settings = [{"value": s.value, **s.origin._asdict()} for s in one.settings]
    if isinstance(one, Elements):
        return {"elements": settings}
    return {**settings[-1], "instead_of": settings[:-1]}


# --- text


def shown(target: ExplainTarget, found: Explained) -> Iterator[str]:
    """Yield the lines of the text output."""
    place = target.place
    where = f"in {place.pipeline} of {place.project.name} on {target.branch}" if place else f"on {target.branch}"
    others = f"{target.others} more graph{'s' if target.others > 1 else ''}"
    more = f"  (and in {others}; select with --project and --pipeline)" if target.others else ""
    yield f"{style(target.job, bold=True)}  {where}{style(more, dim=True)}"
    if place is None:
        yield "no project runs this job; this shows its own definitions"
    yield ""
    yield from _variants(target, found)
    if not found.variants:
        yield f"the job is not in the graph: {_why_not(target)}"
        return
    yield ""
    yield from _attributes(found)
    for block in report.as_text(found.errors):
        yield f"\n{block}"


def _why_not(target: ExplainTarget) -> str:
    if target.place is None:
        return f"none of its definitions, or of those of its parents, is for branch {target.branch}"
    place = target.place
    return Explainer(target.loaded.layout, place.pipeline, place.project.project, target.branch).why_not(target.job)


def _variants(target: ExplainTarget, found: Explained) -> Iterator[str]:
    rows = [(str(variant.step), _named(variant), _place(variant)) for variant in found.variants]
    left = list(_left_out(target, found))
    more = len(left) - LEFT_OUT_MAX
    # Show one more definition instead of a line `and 1 more`.
    left = left if more <= 1 else left[:LEFT_OUT_MAX]
    width = max((len(name) for _, name, _ in (*rows, *left)), default=0)
    yield "variants, each overrides those above:"
    for number, name, text in rows:
        yield f"  {style(f'{number:>2}', fg='cyan')}  {name:{width}}  {text}"
    if left:
        yield "not for this branch:"
    for _, name, text in left:
        yield style(f"      {name:{width}}  {text}", dim=True)
    if more > 1:
        yield style(f"      and {more} more", dim=True)


def _named(variant: Origin) -> str:
    return f"{variant.job}, attached" if variant.attaching else variant.job


def _place(variant: Origin) -> str:
    return f"{variant.project} {variant.branch} {variant.path}:{variant.line}" if variant.project else "built in"


def _left_out(target: ExplainTarget, found: Explained) -> Iterator[tuple[str, str, str]]:
    """Yield the job's definitions that do not apply."""
    layout = target.loaded.layout
    used = {(v.project, v.branch, v.path, v.line) for v in found.variants}
    for stanza in layout.variants(target.job):
        source = stanza.source
        # The definition that was used has already been shown.
        if (source.project, source.branch, source.path, stanza.body.line) not in used:
            branches = deep_plain(as_list(plain(stanza.body.get("branches"))))
            wanted = ", ".join(str(rule) for rule in branches) or source.branch
            why = f"  (for {wanted})" if not job_applies(layout, stanza, target.target) else ""
            yield "", target.job, f"{source.place}:{stanza.body.line}{why}"


def _attributes(found: Explained) -> Iterator[str]:
    rows = [row for one in found.attributes for row in _rows(one)]
    name_width = max((len(row.name) for row in rows), default=0)
    value_width = min(VALUE_MAX_CHARS, max((len(row.value) for row in rows), default=0))
    for row in rows:
        text = f"{row.value:{value_width}}  {style(f'{row.number:>2}', fg='cyan')}  {row.place}"
        label = style(f"{row.name:{name_width}}", fg="blue")
        yield f"  {label}  {style(text, dim=True) if row.over else text.rstrip()}"


class _Row(NamedTuple):
    name: str
    value: str
    number: str
    place: str
    over: bool = False
    """Whether a later variant overrides it."""


def _rows(one: Attribute | Elements) -> Iterator[_Row]:
    name = spoken(one.path)
    if isinstance(one, Elements):
        for setting in one.settings:
            yield _row(name, setting, one.path)
            name = ""
        return
    *earlier, last = one.settings
    yield _row(name, last, one.path)
    for setting in reversed(earlier):
        yield _row("", setting, one.path)._replace(over=True, value=f"not {_short(one.path, setting.value)}")


def _row(name: str, setting: OriginStep, path: str) -> _Row:
    origin = setting.origin
    place = (
        ""
        if not origin.path
        else f"{origin.path}:{origin.line}"
        if origin.step
        else f"{_place(origin)} (vars of the project)"
    )
    return _Row(name, _short(path, setting.value), str(origin.step or "·"), place)


def _short(path: str, value: Any) -> str:
    text = " ".join(short(path.split(".")[0], value).split())
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"


# --- uses


@command.command("uses")
@given
@click.argument("name")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def uses_command(given: ReadingOptions, name: str, json_: bool) -> None:
    """Show what inherits from the job NAME, attaches it or depends on it, and which errors its removal would cause."""
    try:
        tenants = given.tenants()
        having = {tenant: loaded for tenant, loaded in tenants.items() if loaded.layout.variants(name)}
        if not having:
            known = [job for loaded in tenants.values() for job in loaded.layout.jobs]
            raise UserError(with_hint(f"no tenant has a job {name!r}", nearest(name, known)))
    except (UserError, ConfigErrors) as error:
        raise ReadingError(str(error)) from error
    found = {tenant: uses(loaded.layout, name) for tenant, loaded in having.items()}
    if json_:
        answer = {tenant: _uses_as_json(one) for tenant, one in found.items()}
        say(plain_json(msgspec.json.format(msgspec.json.encode(answer)).decode()))
        return
    for tenant, one in found.items():
        say("\n".join(_uses_as_text(having[tenant], name, one)))


def _uses_as_json(found: Uses) -> dict[str, Any]:
    return {
        "children": [{"job": c.name, "generation": c.generation, **_place_of_use(c.stanza)} for c in found.children],
        "attached": [
            {"pipeline": a.pipeline, "kind": a.stanza.kind, "name": a.stanza.name, **_place_of_use(a.stanza, a.line)}
            for a in found.attached
        ],
        "needed_by": [{"job": n.name, **_place_of_use(n.stanza)} for n in found.needed],
        "projects": sorted(found.projects),
        "without": [
            {**report.error_as_json(f.error), "ends": [graph._asdict() for graph in f.graphs]} for f in found.without
        ],
    }


def _place_of_use(stanza: Stanza, line: int = 0) -> dict[str, Any]:
    source = stanza.source
    return {"project": source.project, "branch": source.branch, "path": source.path, "line": line or stanza.line}


def _uses_as_text(loaded: LoadedTenant, name: str, found: Uses) -> Iterator[str]:
    yield f"{style(name, bold=True)}  in tenant {loaded.tenant.name}"
    yield from _listed(
        "inherited by", [(f"{'  ' * (c.generation - 1)}{c.name}", c.stanza.place) for c in found.children]
    )
    attached = [(f"{a.pipeline} of {_who(a.stanza)}", f"{a.stanza.source.place}:{a.line}") for a in found.attached]
    yield from _listed("attached by", attached)
    yield from _listed("needed by", [(n.name, n.stanza.place) for n in found.needed])
    if found.projects:
        yield f"in job graphs of {listed(sorted(found.projects), 6)}"
    broken = causes(found.without, {})
    yield style("without this job, there would be no errors", fg="green") if not broken else _verdict(broken)
    for cause in broken[:BROKEN_MAX]:
        yield f"\n{report.block(cause.error, list(report.notes(cause)))}"
    if more := len(broken) - BROKEN_MAX if len(broken) > BROKEN_MAX else 0:
        yield f"\nand {more:,} more; --json has all"


def _verdict(broken: Sequence[Cause]) -> str:
    errors = sum(len(cause.errors) for cause in broken)
    graphs = {graph for cause in broken for graph in cause.graphs}
    text = f"without this job: {errors:,} error{'s' if errors != 1 else ''}, {len(graphs):,} job graphs would not run"
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
