"""Test requirements for named approvers: their form, and where they apply."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.config.dynamic import TenantLayouts
from headgate.config.operator.file import parse_tenant_file
from headgate.config.parse import ParseCache

from .places import BASE, CONNECTIONS, TENANTS, branches

BOUND = {**CONNECTIONS, "forge": CONNECTIONS["forge"]._replace(bound=True)}


def parsed_requirement(require: str, *, bound: bool = True, key: str = "require") -> tuple[dict[str, Any], list[str]]:
    """Return the parsed requirement of the pipeline, and its errors."""
    acme = parse_tenant_file(TENANTS, "tenants.yaml", BOUND if bound else CONNECTIONS).tenants["acme"]
    gate = BASE.replace("    post-review: true\n", f"    {key}: {{forge: {require}}}\n")
    cache = ParseCache()
    layout = TenantLayouts.of(acme, branches(acme, {"ops": gate}, cache), cache).landed
    pipeline = layout.pipelines.get("gate")
    requirement = getattr(pipeline, key, {}).get("forge", {}) if pipeline is not None else {}
    return requirement, [error.text for error in layout.errors if error.severity == "error"]


@pytest.mark.parametrize(
    "require",
    [
        "{approvals: {count: 2, of: [ada, grace], newer-than: 2d, not-author: true}}",
        "{approvals: {}, veto: false}",
        "{approvals: {of: ada}}",
    ],
)
def test_a_bound_server_allows_requirements_about_people(require: str) -> None:
    requirement, wrong = parsed_requirement(require)
    assert wrong == [] and "approvals" in requirement


@pytest.mark.parametrize(("key", "require"), [("require", "{approvals: {count: 1}}"), ("reject", "{veto: true}")])
def test_a_pipeline_that_requires_names_is_refused_with_a_reason_if_names_are_not_bound(key: str, require: str) -> None:
    requirement, (wrong, *_) = parsed_requirement(require, bound=False, key=key)
    assert requirement == {}
    assert (
        "depends on who approves, but the server of 'forge' is not known to check the names of those who push" in wrong
    )
    assert "headgate hook install --people" in wrong and "approvals = bound in [connection forge]" in wrong


@pytest.mark.parametrize(
    ("require", "says"),
    [
        ("{approvals: {count: 0}}", "count"),
        ("{approvals: {count: 1000}}", "count"),
        ("{approvals: {cuont: 2}}", "did you mean 'count'?"),
        ("{approvals: {newer-than: yesterday}}", "newer-than"),
        ("{approvals: two}", "approvals"),
        ("{veto: perhaps}", "veto"),
    ],
)
def test_requirements_without_effect_are_reported(require: str, says: str) -> None:
    _, wrong = parsed_requirement(require)
    assert wrong and says in wrong[0]
