"""Test the operator's file: see `cases/tenants.yaml`; which branches are read; permissions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from headgate.config.model import ConfigError
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import AuthorizationRule, ConfigErrors, holds, included

from .places import CONNECTIONS, tenant

CASES = yaml.load((Path(__file__).parent / "cases" / "tenants.yaml").read_text(), yaml.CSafeLoader)


def _rows(errors: tuple[ConfigError, ...], wanted: list[str]) -> list[str]:
    parts = [line.split(" | ")[-1] for line in wanted] + [""] * len(errors)
    return [f"{e.name} | :{e.line} | {p if p and p in e.text else e.text}" for e, p in zip(errors, parts, strict=False)]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["case"]) for case in CASES])
def test_the_tenant_file_of_each_case_has_the_expected_content_and_errors(case: dict[str, Any]) -> None:
    try:
        found = parse_tenant_file(case["file"], "tenants.yaml", CONNECTIONS)
    except ConfigErrors as errors:
        assert _rows(errors.errors, case["file_errors"]) == case["file_errors"]
        assert errors.errors[0].path == "tenants.yaml"
        return
    assert "file_errors" not in case
    refused = case.get("refused", {})
    assert {name: _rows(errors, refused.get(name, [])) for name, errors in found.refused.items()} == refused
    if "tenant" in case:
        text = msgspec.json.decode(msgspec.json.encode(list(found.tenants.values())[-1]))
        assert {key: text.get(key) for key in case["tenant"]} == case["tenant"]
    if "order" in case:
        assert [p.project for p in next(iter(found.tenants.values())).projects] == case["order"]
    for name, wanted in case.get("projects", {}).items():
        project = next(iter(found.tenants.values())).find(name)
        text = msgspec.json.decode(msgspec.json.encode(project))
        assert {key: text.get(key) for key in wanted} == wanted


def test_the_tenant_file_decides_which_branches_are_read() -> None:
    acme = tenant("""
        - tenant:
            name: acme
            source:
              forge:
                config-projects: [ops: {load-branch: main}]
                untrusted-projects:
                  - app: {include-branches: ['main', 'stable/.*'], exclude-branches: ['stable/old']}
                  - lib: {exclude-branches: ['wip'], always-dynamic-branches: ['try/.*']}
    """)
    ops, app, lib = acme.projects

    def read(source, *names):
        return [name for name in names if included(source, name)]

    assert read(ops, "main", "master") == ["main"]
    assert read(app, "main", "mainly", "stable/1", "stable/old", "other") == ["main", "stable/1", "stable/old"]
    assert read(lib, "master", "wip", "wip2", "try/1") == ["master", "wip2"]
    assert lib.touches_config(("README",), "try/1") and not lib.touches_config(("README",), "master")


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("zuul.yaml", True),
        ("zuul.d/a/b.yaml", True),
        ("zuul.d/a/.zuul.ignore", True),
        ("zuul.d/a.yml", False),
        (".zuul.d/a.yaml", True),
        ("more/a.yaml", True),
        ("extra.yaml", True),
        ("other/zuul.yaml", False),
    ],
)
def test_the_tenant_file_decides_which_files_contain_configuration(path: str, counts: bool) -> None:
    acme = tenant("""
        - tenant:
            name: acme
            source: {forge: {untrusted-projects: [app: {extra-config-paths: [extra.yaml, more/]}, none: {include: []}]}}
    """)
    app, none = acme.projects
    assert app.touches_config((path,)) is counts
    assert app.touches_config(None) and not app.touches_config(())
    assert not none.touches_config(None)


@pytest.mark.parametrize(
    ("conditions", "claims", "answer"),
    [
        ([{"sub": "ada"}], {"sub": "ada"}, True),
        ([{"sub": "ada"}], {"sub": "bob"}, False),
        ([{"sub": "ada", "aud": "x"}], {"sub": "ada"}, False),
        ([{"sub": "ada"}, {"sub": "bob"}], {"sub": "bob"}, True),
        ([{"groups": "ops"}], {"groups": ["dev", "ops"]}, True),
        ([{"realm.roles": "ops"}], {"realm": {"roles": ["ops"]}}, True),
        ([{"realm": {"roles": "ops"}}], {"realm": {"roles": ["ops"], "more": 1}}, True),
        ([{"groups": "{tenant.name}-ops"}], {"groups": ["acme-ops"]}, True),
        ([{"zuul_uid": "ada"}], {"name": "ada"}, True),
        ([{"verified": True}], {"verified": True}, True),
        ([{"verified": True}], {"verified": "true"}, False),
        ([{"verified": True}], {"verified": 1}, False),
        ([{"verified": True}], {"verified": [1]}, False),
        ([{"verified": True}], {"verified": [1, True]}, True),
        ([], {"sub": "ada"}, False),
    ],
)
def test_a_rule_holds_for_the_claims_that_it_names(
    conditions: list[dict[str, Any]], claims: dict[str, Any], answer: bool
) -> None:
    assert holds(AuthorizationRule("r", tuple(conditions)), claims, "acme", "name") is answer
