"""Check a project or a template: its own keys, and its section for each pipeline."""

from __future__ import annotations

from typing import Any

from headgate.config.files.check import entries, table
from headgate.config.files.document import Table
from headgate.config.files.source import Wrong
from headgate.config.keys.objects import PROJECT, PROJECT_PIPELINE, TEMPLATE
from headgate.config.kinds.job import check_job
from headgate.config.patterns import BadPattern, compiled


def check_project(kind: str, body: Any, line: int, warnings: list[Wrong]) -> None:
    """Check a project or template. Raise Wrong."""
    if not isinstance(body, Table):
        raise Wrong(f"a {kind} must be a mapping", line)
    own = PROJECT if kind == "project" else TEMPLATE
    head = Table(body.line)
    for key, value in body.items():
        if key in own:
            head[key], head.lines[key] = value, body.at(key)
        else:
            _section(kind, key, value, body.at(key), warnings)
    table(head, own, kind, warnings, line)
    name = body.get("name", "")
    if kind == "project" and name.startswith("^"):
        _pattern(name, body.at("name"), warnings)


def _pattern(name: str, line: int, warnings: list[Wrong]) -> None:
    try:
        legacy = compiled(name).legacy
    except BadPattern as bad:
        raise Wrong(f"the name of a project is wrong: {bad}", line) from bad
    if legacy:
        text = f"the name of a project is a pattern that RE2 does not know: {name!r}: {legacy}"
        warnings.append(Wrong(text, line, "Regex Deprecation", "warning"))


def _section(kind: str, pipeline: str, section: Any, line: int, warnings: list[Wrong]) -> None:
    what = f"pipeline section ({pipeline!r} is no other key of a {kind})"
    table(section, PROJECT_PIPELINE, what, warnings, line)
    for job, at in entries(section.get("jobs"), section.at("jobs")):
        if not isinstance(job, Table):
            continue
        if len(job) != 1:
            raise Wrong("a job of a project is a name, or a mapping of one name to its attributes", at)
        ((name, attributes),) = job.items()
        check_job(attributes, job.at(name), warnings, f"job of this project ({name})", named=False)


def section_jobs(section: Table) -> list[tuple[str, Table, int]]:
    """Return (name, attributes, line) of every job of a checked section."""
    found: list[tuple[str, Table, int]] = []
    for job, at in entries(section.get("jobs"), section.at("jobs")):
        if isinstance(job, Table):
            ((name, attributes),) = job.items()
            found.append((name, attributes, job.at(name)))
        else:
            found.append((job, Table(at), at))
    return found
