"""Test that the reference page is generated from the declarations that the parser uses."""

from __future__ import annotations

from pathlib import Path

import yaml

from headgate.cli.pages import differences
from headgate.config.drivers import DIALECTS
from headgate.config.explain.page import page
from headgate.config.files.source import ERRORS
from headgate.config.forges.keyterms import forms
from headgate.config.keys.job import CONTROLLED, JOB
from headgate.config.keys.objects import KINDS, PIPELINE
from headgate.config.keys.tenantfile import TENANT

CASES = Path(__file__).parent / "cases"
FILES = {path.stem: yaml.load(path.read_text(), yaml.CSafeLoader) for path in sorted(CASES.glob("*.yaml"))}


def test_every_name_of_an_error_is_on_the_page_and_has_a_case_with_its_place() -> None:
    names = {str(line).split(" | ")[0] for found in FILES.values() for case in found for line in _errors(case)}
    assert names == set(ERRORS)
    assert all(f"| {name}" in page() for name in ERRORS)


def _errors(case: dict) -> list[str]:
    refused = [line for lines in case.get("refused", {}).values() for line in lines]
    return [*case.get("errors", []), *case.get("file_errors", []), *refused]


def test_the_language_has_all_its_words() -> None:
    job = {name for name, key in JOB.items() if not key.note.endswith("not in Zuul")}
    assert (len(KINDS), len(PIPELINE) - 1, len(job), len(CONTROLLED & job)) == (14, 39, 58, 20)
    assert len(TENANT) - 3 == 27  # labels, max-nodes-per-project, resource-limits: Headgate's own


def test_each_difference_has_a_case_that_shows_it() -> None:
    cases = {f"{file}: {case['case']}" for file, found in FILES.items() for case in found}
    tests = {path.name for path in CASES.parents[2].rglob("test_*.py")}
    named = [one.case for one in (*differences.REPORTED, *differences.ACCEPTED, *differences.OTHERWISE)]
    assert [name for name in named if name not in cases | tests] == []


def test_keys_that_are_headgate_s_own_are_on_the_page_of_differences() -> None:
    """Keys of drivers that Zuul does not have are listed with the driver."""
    dialects = [*DIALECTS.values()]
    tables = [JOB, PIPELINE, TENANT, *(one.reporter for one in dialects), *(forms(one.require) for one in dialects)]
    own = {name for table in tables for name, key in table.items() if key.note.endswith("not in Zuul")}
    assert own >= {"image", "reuse", "rerun-only-failed", "committer-score"}
    assert [name for name in (*own, "land", "labels") if f"`{name}" not in differences.page()] == []


def test_names_that_the_reference_does_not_have_are_on_the_page_of_differences() -> None:
    own = set(ERRORS) - differences.REFERENCE_NAMES
    assert own and all(f"| {name} |" in differences.page() for name in own)
    assert set(ERRORS) >= differences.REFERENCE_NAMES
