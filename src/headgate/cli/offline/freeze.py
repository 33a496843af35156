"""Implement `headgate freeze`: show the jobs that a change runs, or how a new configuration would alter them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import msgspec

from headgate.base.errors import UserError
from headgate.base.texts import plain_json
from headgate.cli.offline import graphs
from headgate.cli.offline.reader import LoadedTenant, ReadingError, ReadingOptions, given
from headgate.cli.offline.report import as_text, error_as_json, remind
from headgate.cli.terminal.say import say, style
from headgate.config.check.uses import reached
from headgate.config.explain import describe
from headgate.config.explain.origins import Explainer
from headgate.config.model import FrozenGraph, FrozenJob
from headgate.config.operator.model import ConfigErrors

_PHASES = (("pre-run", "pre_run"), ("run", "run"), ("post-run", "post_run"), ("cleanup", "cleanup_run"))


def tree(
    loaded: LoadedTenant,
    place: graphs.GraphPlace,
    graph: FrozenGraph,
    files: tuple[str, ...] | None,
    *,
    details: bool = False,
) -> Iterator[str]:
    """Yield the text lines of a job graph; `details` adds roles, names of secrets, and variables."""
    name, branch = place.project.name, place.branch
    fast = "  (fail-fast)" if graph.fail_fast else ""
    yield style(f"{place.pipeline} of {name} on {branch}", bold=True) + fast
    if graph.errors:
        # A graph with errors has no jobs.
        yield from ("\n" + block for block in as_text(graph.errors))
        return
    explainer = Explainer(loaded.layout, place.pipeline, place.project.project, branch, files)
    jobs = [*graph.jobs, *graph.reporters]
    for number, job in enumerate(jobs):
        last = number == len(jobs) - 1
        rows = list(_job(job, explainer, details=details))
        yield f"{'└─' if last else '├─'} {rows[0]}"
        yield from (f"{'  ' if last else '│ '}    {row}" for row in rows[1:])
    if not jobs:
        yield "no jobs run"
    left = explainer.left_out(job.name for job in jobs)
    if left:
        yield "not run:"
        width = max(len(out.job) for out in left)
        yield from (f"   {style(f'{out.job:{width}}', dim=True)}  {out.why}" for out in left)


def _job(job: FrozenJob, explainer: Explainer, *, details: bool) -> Iterator[str]:
    attributes = describe.job(job)
    marks = [] if job.voting else ["non-voting"]
    marks += [job.type] if job.type != "regular" else []
    marks += ["post-review"] if job.post_review else []
    after = graphs.short("dependencies", attributes["dependencies"])
    head = style(job.name, bold=True) + (f"  after {after}" if after else "")
    yield head + (style(f"  [{', '.join(marks)}]", fg="yellow") if marks else "")
    if job.noop:
        yield _row("runs", "nothing; succeeds immediately")
        return
    decision = explainer.decision(job.name)
    # Another job depends on it.
    yield _row("why", decision.why if decision.matches else f"needed, although {decision.why}")
    label = "defined"
    for text in _defined(job):
        yield _row(label, text)
        label = ""
    for label, key in _PHASES:
        if attributes[key]:
            yield _row(label, graphs.short(key, attributes[key]))
    for label, text in _more(attributes):
        if not (details and label == "variables"):
            yield _row(label, text)
    for label, text in _details(job) if details else ():
        yield _row(label, text)


def _more(attributes: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Yield further settings of a job."""
    yield from (("nodes", text) for text in [graphs.short("nodeset", attributes["nodeset"])] if text)
    if attributes["timeout"] is not None:
        yield "timeout", f"{attributes['timeout']} s"
    for label, key in (("semaphores", "semaphores"), ("projects", "required_projects"), ("variables", "variables")):
        value = attributes[key]
        if isinstance(value, list) and value:
            yield label, ", ".join(str(one.get("name") or one.get("project")) for one in value)
        elif isinstance(value, dict) and value:
            yield label, ", ".join(value)


def _details(job: FrozenJob) -> Iterator[tuple[str, str]]:
    """Yield the roles and secrets of each playbook, and every variable."""
    for book in (*job.pre_run, *job.run, *job.post_run):
        roles = (f"{r.name} ({r.project}{', implicit' if r.implicit else ''})" for r in book.roles)
        for label, words in (("roles", list(roles)), ("secrets", [secret.name for secret in book.secrets])):
            if words:
                yield label, f"{book.path}: {', '.join(words)}"
    named = (("vars", job.vars), ("extra-vars", job.extra_vars))
    grouped = (("host-vars", job.host_vars), ("group-vars", job.group_vars))
    for label, variables in (*named, *((f"{k} {name}", v) for k, of in grouped for name, v in of.items())):
        for name, value in sorted(variables.items()):
            yield label, f"{name}: {plain_json(json.dumps(value, ensure_ascii=False))}"


def _defined(job: FrozenJob) -> Iterator[str]:
    """Yield a row for each definition, base job first."""
    variants = [describe.variant(one) for one in job.inheritance]
    width = max((len(one["job"]) for one in variants), default=0)
    for one in variants:
        yield f"{one['job']:{width}}  {one['project']} {one['branch']} {one['path']}:{one['line']}"


def _row(label: str, text: str) -> str:
    return f"{style(f'{label:10}', fg='blue')} {text}"


class Chosen(msgspec.Struct, frozen=True):
    """Select graphs, and the files of the change."""

    pipeline: str | None
    project: str | None
    branch: str | None
    files: tuple[str, ...] | None
    details: bool


@click.command()
@given
@click.option("--pipeline", help="Show only this pipeline.")
@click.option("--project", help="Show only this project.")
@click.option("--branch", help="The branch. Default: the default branch of each project.")
@click.option("--all", "every", is_flag=True, help="Show every project in every pipeline.")
@click.option("--file", "files", multiple=True, help="A file that the change touches; repeatable.")
@click.option("--details", is_flag=True, help="Also show roles, names of secrets, and variables with their values.")
@click.option("--json", "json_", is_flag=True, help="Print JSON with all details, as in docs/reference/json.md.")
@click.option(
    "--diff",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Show how files below DIR (DIR/<connection>/<project>/… or DIR/<project>/…) would alter the job graphs. An "
    "empty file deletes the file of that name; a repository replaces all files of its project.",
)
def command(
    given: ReadingOptions,
    pipeline: str | None,
    project: str | None,
    branch: str | None,
    every: bool,
    files: tuple[str, ...],
    details: bool,
    json_: bool,
    diff: Path | None,
) -> None:
    """Print the job graph of a change: which jobs run, which do not, and why.

    The exit status is 0 without errors, 1 if a graph has configuration errors or a repository cannot be read, and 2 if
    nothing could be frozen.
    """
    if not (pipeline or project or every or diff):
        raise click.UsageError("select graphs with --project and --pipeline, or with --all")
    chosen = Chosen(pipeline, project, branch, files or None, details)
    try:
        tenants = given.tenants()
        if diff is not None:
            good = _diff(tenants, chosen, diff, json_)
        else:
            good = _json(tenants, chosen) if json_ else _tree(tenants, chosen)
    except ConfigErrors as refused:
        say("\n\n".join(as_text(refused.errors)), err=True)
        sys.exit(1)
    except UserError as error:
        raise ReadingError(str(error)) from error
    # The graphs may lack what these repositories define.
    unread = [error for loaded in tenants.values() for error in loaded.unread if error.severity == "error"]
    for block in as_text(unread):
        say(f"\n{block}", err=True)
    for loaded in tenants.values() if not json_ else ():
        remind(loaded)
    if unread or not good:
        sys.exit(1)


def _places(loaded: LoadedTenant, chosen: Chosen) -> list[graphs.GraphPlace]:
    """Return the graphs of the selected pipeline, project and branch. Raise UserError."""
    return graphs.places(loaded, chosen.pipeline, chosen.project, chosen.branch)


def _having(tenants: Mapping[str, LoadedTenant], chosen: Chosen) -> Iterator[LoadedTenant]:
    """Yield the tenants that have the project and the pipeline. Raise UserError if none has."""
    # With several tenants, only one needs to have the project or pipeline.
    wrong: list[UserError] = []
    for loaded in tenants.values():
        try:
            _places(loaded, chosen)
        except UserError as error:
            wrong.append(error)
        else:
            yield loaded
    if wrong and len(wrong) == len(tenants):
        raise wrong[0]


def _json(tenants: Mapping[str, LoadedTenant], chosen: Chosen) -> bool:
    found: list[bytes] = []
    good = True
    for loaded in _having(tenants, chosen):
        wanted = _places(loaded, chosen)
        texts, wrong = graphs.encoded(loaded, wanted, chosen.files)
        found += texts
        good = good and not wrong
    # The graphs are already encoded, so join them as text.
    array = b"[" + b",\n".join(found) + b"]"
    one = chosen.project and chosen.pipeline
    say(plain_json((msgspec.json.format(array) if one else array).decode()))
    return good


def _tree(tenants: Mapping[str, LoadedTenant], chosen: Chosen) -> bool:
    good, shown = True, 0
    for loaded in _having(tenants, chosen):
        for place in _places(loaded, chosen):
            graph = graphs.frozen(loaded, place, chosen.files)
            # With --all, most projects take no part in most pipelines.
            if not graph.in_pipeline and not graph.errors:
                continue
            say(("\n" if shown else "") + "\n".join(tree(loaded, place, graph, chosen.files, details=chosen.details)))
            shown += 1
            good = good and not graph.errors
    if not shown:
        what = f"{chosen.project or 'no project'} runs no jobs in {chosen.pipeline or 'any pipeline'}"
        say(f"{what}: no matching project stanza attaches jobs there")
    return good


def _diff(tenants: Mapping[str, LoadedTenant], chosen: Chosen, directory: Path, json_: bool) -> bool:
    report: dict[str, object] = {}
    good = True
    for loaded in _having(tenants, chosen):
        name = loaded.tenant.name
        new = loaded.with_files(graphs.proposal(loaded, directory, chosen.branch))
        projects = reached(loaded.layout, new.layout)
        # Take the graphs of both states: projects and pipelines may be new or gone.
        pairs = dict.fromkeys(
            place for state in (loaded, new) for place in _places(state, chosen) if place.project.project in projects
        )
        changes = list(graphs.changed(loaded, new, list(pairs), chosen.files))
        fresh, mended = describe.new_errors(loaded.errors, new.errors), describe.new_errors(new.errors, loaded.errors)
        good = good and not any(error.severity == "error" for error in fresh)
        good = good and not any(change.difference.errors_new for change in changes)
        if json_:
            errors = {"new": [error_as_json(e) for e in fresh], "gone": [error_as_json(e) for e in mended]}
            report[name] = {"errors": errors, "graphs": graphs.changes_as_json(changes)}
            continue
        for block in as_text(fresh):
            say(f"{block}\n")
        for error in mended:
            say(f"{style('ok', fg='green', bold=True)} fixed: {error.text} ({error.project})\n")
        say("\n\n".join(graphs.changes_as_text(changes)))
    if json_:
        say(plain_json(msgspec.json.format(msgspec.json.encode(report)).decode()))
    return good
