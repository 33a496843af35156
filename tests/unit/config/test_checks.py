"""Test requirements on the results of other pipelines."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.config.dynamic import TenantLayouts
from headgate.config.operator.file import parse_tenant_file
from headgate.config.parse import ParseCache

from .places import BASE, CONNECTIONS, TENANTS, branches


def parsed_requirement(require: str, key: str = "require") -> tuple[Any, list[tuple[str, str]]]:
    """Return the parsed requirement of the pipeline, and its warnings."""
    acme = parse_tenant_file(TENANTS, "tenants.yaml", CONNECTIONS).tenants["acme"]
    gate = BASE.replace("    post-review: true\n", f"    {key}: {{forge: {require}}}\n")
    cache = ParseCache()
    layout = TenantLayouts.of(acme, branches(acme, {"ops": gate}, cache), cache).landed
    pipeline = layout.pipelines.get("gate")
    requirement = getattr(pipeline, key, {}).get("forge", {}).get("check") if pipeline is not None else None
    return requirement, [(error.severity, error.text) for error in layout.errors]


@pytest.mark.parametrize(
    ("written", "parsed"),
    [
        ("success", "success"),
        ("failure", "failure"),
        ("{check: success, gate: failure}", {"check": "success", "gate": "failure"}),
    ],
)
def test_valid_requirements_of_check_are_accepted(written: str, parsed: Any) -> None:
    found, wrong = parsed_requirement(f"{{check: {written}}}")
    assert found == parsed and wrong == []


@pytest.mark.parametrize("written", ["yes", "[success]", "{check: passed}", "{check: [success]}", "1"])
def test_a_required_result_must_be_success_or_failure(written: str) -> None:
    found, wrong = parsed_requirement(f"{{check: {written}}}")
    assert found is None and wrong[0][0] == "error" and "must be success or failure" in wrong[0][1]


@pytest.mark.parametrize(("key", "then"), [("require", "no change can enter"), ("reject", "it rejects no changes")])
def test_a_missing_pipeline_causes_a_warning(key: str, then: str) -> None:
    _, ((severity, text),) = parsed_requirement("{check: {chek: success}}", key)
    assert severity == "warning" and "there is no pipeline 'chek'" in text and then in text
    assert "did you mean 'check'?" in text
