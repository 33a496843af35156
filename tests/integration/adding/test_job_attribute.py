"""Test that an attribute of jobs is two rows, a field and the code that uses it:
`docs/how-to/add/a-job-attribute.md`."""

from __future__ import annotations

import msgspec
import pytest

from headgate.config import model
from headgate.config.explain import describe
from headgate.config.explain.page import page
from headgate.config.explain.schema import files
from headgate.config.files.checks import count
from headgate.config.freeze import mix
from headgate.config.keys.job import EXECUTION, JOB, JobKey
from headgate.config.layout import Layout
from headgate.config.model import FrozenJob
from tests.unit.config.places import layout

PROJECT = "- project: {name: app, gate: {jobs: [unit]}}\n"


class TimedJob(FrozenJob, frozen=True, omit_defaults=True):
    """`FrozenJob` with the field that the attribute sets."""

    quiet_s: int = 0


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the rows, and the field."""
    monkeypatch.setitem(JOB, "quiet", JobKey(count(0, 600), "0", "seconds of silence after it", field="quiet_s"))
    monkeypatch.setitem(describe._RENAMED, "quiet_s", "quiet")  # derived from the rows at import
    monkeypatch.setattr(model, "FrozenJob", TimedJob)
    monkeypatch.setattr(mix, "EXECUTION", EXECUTION | {"quiet"})  # as above


def laid_out(app: str) -> Layout:
    return layout({"app": app})


def frozen(app: str) -> tuple[list[FrozenJob], list[str]]:
    graph = laid_out(app).freeze("gate", "git.acme/app", "master")
    return list(graph.jobs), [error.text for error in graph.errors]


def test_the_last_variant_that_names_it_says_it() -> None:
    (job,), errors = frozen(
        "- job: {name: tests, abstract: true, quiet: 5}\n- job: {name: unit, parent: tests, run: u.yaml}\n"
        "- job: {name: unit, quiet: 7}\n" + PROJECT
    )
    assert not errors and isinstance(job, TimedJob) and job.quiet_s == 7
    assert describe.job(job)["quiet"] == 7


def test_a_job_without_it_is_stored_as_before() -> None:
    (job,), _ = frozen("- job: {name: unit, run: u.yaml}\n" + PROJECT)
    assert isinstance(job, TimedJob) and job.quiet_s == 0
    stored = msgspec.json.encode(job)
    assert b"quiet" not in stored and msgspec.json.decode(stored, type=FrozenJob).name == "unit"


def test_a_final_job_keeps_it() -> None:
    _, errors = frozen(
        "- job: {name: tests, final: true, quiet: 5, run: u.yaml}\n- job: {name: unit, parent: tests, quiet: 7}\n"
        + PROJECT
    )
    assert len(errors) == 1 and "is final" in errors[0] and errors[0].endswith("quiet"), errors


def test_a_wrong_value_is_refused_with_its_line() -> None:
    (error,) = laid_out("\n- job: {name: unit, quiet: 601}\n").errors
    assert error.line == 2 and "quiet" in error.render() and "601" in error.render()


def test_editors_and_the_reference_page_know_it() -> None:
    assert "| `quiet` |" in page() and '"quiet"' in msgspec.json.encode(files()).decode()
