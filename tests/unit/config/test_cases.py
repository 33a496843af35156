"""Test the rules of the language with small cases: see the files in `cases`.

A case has the contents of repositories (`ops` is a config-project that already has the pipelines check and gate and
the job base; `app` and `lib` are untrusted; `app@stable` is another branch) and the expected results. `jobs` maps
pipeline project[@branch|@refs/…] to the names of the jobs in its graph, or to their frozen attributes; `files` lists
the files of the change, if they are known; `frozen` maps the same keys to a part of the message of the error that
freezing ends with; `errors` lists `name | project branch path:line | part of the text` of all errors, in order;
`idle`: settings without effect are reported, too; `layout` has further properties of the layout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from headgate.config.files.source import NO_EFFECT
from headgate.config.layout import Layout
from headgate.config.model import ConfigError, FrozenGraph, FrozenJob

from .places import TENANTS, layout

PLACE = Path(__file__).parent / "cases"
FILES = (
    "reading", "jobs", "merging", "matching", "graphs", "objects", "errors", "severity", "drivers", "nodepool",
    "effects",
)  # fmt: skip
CASES = [
    pytest.param(case, id=f"{file}: {case['case']}")
    for file in FILES
    for case in yaml.load((PLACE / f"{file}.yaml").read_text(), yaml.CSafeLoader)
]
WORDS = {"case", "tenants", "says", "jobs", "files", "frozen", "errors", "layout", "why", "idle"}


@pytest.mark.parametrize("case", CASES)
def test_the_configuration_of_each_case_has_the_expected_layout_and_errors(case: dict[str, Any]) -> None:
    assert set(case) <= WORDS
    made = layout(case["says"], case.get("tenants", TENANTS))
    wanted = case.get("errors", [] if "layout" not in case else None)
    if wanted is not None:
        assert _rows(tuple(e for e in made.errors if "idle" in case or e.name != NO_EFFECT), wanted) == wanted
    files = tuple(case["files"]) if "files" in case else None
    for jobs, expected in case.get("jobs", {}).items():
        graph = _freeze(made, jobs, files)
        assert graph.errors == ()
        found = {job.name: _shown(job) for job in (*graph.jobs, *graph.reporters)}
        if isinstance(expected, list):
            assert list(found) == expected
        else:
            assert {n: {k: found[n].get(k) for k in keys} for n, keys in expected.items()} == expected
    for jobs, expected in case.get("frozen", {}).items():
        errors = _freeze(made, jobs, files).errors
        assert expected in "\n".join(f"{e.name} | {_place(e)} | {e.text}" for e in errors)
    for question, answer in case.get("layout", {}).items():
        name, *words = question.split()
        found_out = getattr(made, name)
        plain = _json(found_out(*words) if callable(found_out) else found_out)
        if words and not callable(found_out):
            plain = {key: plain[words[0]].get(key) for key in answer} if isinstance(answer, dict) else plain[words[0]]
        assert plain == answer


def _json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _freeze(made: Layout, question: str, files: tuple[str, ...] | None) -> FrozenGraph:
    """`gate app`, `gate app@stable`, `gate app@refs/tags/1.0`, `gate app@refs/tags/1.0:stable` (which contains it)."""
    pipeline, _, where = question.partition(" ")
    name, _, at = where.partition("@")
    project = made.tenant.find(name)
    assert project is not None
    at, _, containing = at.partition(":")
    branch = "" if at.startswith("refs/") else at or "master"
    ref = at if at.startswith("refs/") else ""
    held = tuple(containing.split()) if containing else ()
    return made.freeze(pipeline, project.project, branch, ref, files, containing=held)


def _shown(job: FrozenJob) -> dict[str, Any]:
    found: dict[str, Any] = _json(job)
    for phase in ("pre_run", "run", "post_run"):
        found[f"{phase} in full"] = found.get(phase)
        found[phase] = " ".join(book["path"] for book in found.get(phase, []))
    found["dependencies"] = " ".join(f"{d.name}{'?' * d.soft}" for d in job.dependencies)
    found["nodes"] = " ".join(node.label for node in job.nodeset.nodes)
    found["required"] = " ".join(
        f"{r.project.rpartition('/')[2]}@{r.override_checkout}".rstrip("@") for r in job.required_projects
    )
    found["inherited"] = [line.split()[0] for line in job.inheritance]
    return found


def _place(error: ConfigError) -> str:
    project = error.project.rpartition("/")[2]
    return f"{project} {error.branch} {error.path}:{error.line}" if error.path else project


def _rows(errors: tuple[ConfigError, ...], wanted: list[str]) -> list[str]:
    """Show only the attributes that the case has."""
    found = []
    for number, error in enumerate(errors):
        text, severity = error.text, "warning: " if error.severity == "warning" else ""
        part = wanted[number].split(" | ")[-1].removeprefix("warning: ") if number < len(wanted) else text
        found.append(f"{error.name} | {_place(error)} | {severity}{part if part in text else text}")
    return found
