"""Show a job graph to people: the order of jobs, their definitions, and what does not run and why."""

from __future__ import annotations

import json
from collections.abc import Iterator

from headgate.base.texts import plain_json
from headgate.cli.offline.difference import short
from headgate.cli.offline.graphs import GraphPlace
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.report import as_text
from headgate.cli.terminal.say import style
from headgate.config.explain import describe
from headgate.config.explain.origins import Explainer
from headgate.config.model import FrozenGraph, FrozenJob

_PHASES = (("pre-run", "pre_run"), ("run", "run"), ("post-run", "post_run"), ("cleanup", "cleanup_run"))


def tree(
    loaded: LoadedTenant, place: GraphPlace, graph: FrozenGraph, files: tuple[str, ...] | None, *, details: bool = False
) -> Iterator[str]:
    """Yield lines for people. `details` adds roles, names of secrets, and variables with their values."""
    name, branch = place.project.name, place.branch
    fast = "  (fail-fast)" if graph.fail_fast else ""
    yield style(f"{place.pipeline} of {name} on {branch}", bold=True) + fast
    if graph.errors:
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
        yield "no job runs"
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
    after = short("dependencies", attributes["dependencies"])
    head = style(job.name, bold=True) + (f"  after {after}" if after else "")
    yield head + (style(f"  [{', '.join(marks)}]", fg="yellow") if marks else "")
    if job.noop:
        yield _row("runs", "nothing: it succeeds at once")
        return
    decision = explainer.decision(job.name)
    yield _row("why", decision.why if decision.matches else f"needed, although {decision.why}")
    label = "defined"
    for text in _defined(job):
        yield _row(label, text)
        label = ""
    for label, key in _PHASES:
        if attributes[key]:
            yield _row(label, short(key, attributes[key]))
    for label, text in _more(attributes):
        if not (details and label == "variables"):
            yield _row(label, text)
    for label, text in _details(job) if details else ():
        yield _row(label, text)


def _more(attributes: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Yield further settings of a job."""
    yield from (("nodes", text) for text in [short("nodeset", attributes["nodeset"])] if text)
    if attributes["timeout"] is not None:
        yield "timeout", f"{attributes['timeout']} s"
    for label, key in (("semaphores", "semaphores"), ("projects", "required_projects"), ("variables", "variables")):
        value = attributes[key]
        if isinstance(value, list) and value:
            yield label, ", ".join(str(one.get("name") or one.get("project")) for one in value)
        elif isinstance(value, dict) and value:
            yield label, ", ".join(value)


def _details(job: FrozenJob) -> Iterator[tuple[str, str]]:
    """Yield what each playbook may use, and every variable."""
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
    """Yield a row for each definition, the base first."""
    variants = [describe.variant(one) for one in job.inheritance]
    width = max((len(one["job"]) for one in variants), default=0)
    for one in variants:
        yield f"{one['job']:{width}}  {one['project']} {one['branch']} {one['path']}:{one['line']}"


def _row(label: str, text: str) -> str:
    return f"{style(f'{label:10}', fg='blue')} {text}"
