"""Test that the JSON Schema for editors is no stricter, and hardly looser, than the parser."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from headgate.config.explain import schema
from headgate.config.files.checks import deep_plain
from headgate.config.files.document import load
from headgate.config.files.source import Wrong
from headgate.config.keys.objects import KINDS
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import ConfigErrors, TenantProject
from headgate.config.parse import ParseCache

from .places import CONNECTIONS, TENANTS
from .test_cases import CASES

FILES = jsonschema_rs.Draft7Validator(schema.files())
TENANT_FILE = jsonschema_rs.Draft7Validator(schema.tenants())
ANYTHING = TenantProject("h/p", "p", "c", trusted=True, include=KINDS)
TEXTS = sorted(
    {
        text
        for case in CASES
        if not any(
            " of hub " in text for text in case.values[0].get("errors", ())
        )  # of pipelines, which are checked per tenant
        for part in case.values[0]["says"].values()
        for text in (part.values() if isinstance(part, dict) else [part])
        if isinstance(text, str)
    }
)


def document(text: str) -> Any:
    try:
        return deep_plain(load(text))
    except Wrong:
        return ...


@pytest.mark.heavy
def test_the_schema_accepts_every_file_that_the_parser_accepts():
    taken = 0
    for text in TEXTS:
        found = document(text)
        if found is ... or ParseCache().parse(ANYTHING, "master", {"zuul.yaml": text}).errors:
            continue
        assert [error.message for error in FILES.iter_errors(found)] == [], text
        taken += 1
    assert taken > 50


@pytest.mark.heavy
def test_the_schema_refuses_files_of_a_wrong_form():
    refused = 0
    for text in TEXTS:
        errors = ParseCache().parse(ANYTHING, "master", {"zuul.yaml": text}).errors
        if document(text) is not ... and any(" has no key " in e.text or " must be " in e.text for e in errors):
            refused += not FILES.is_valid(document(text))
    assert refused > 10


@pytest.mark.parametrize(
    ("stanza", "good"),
    [
        ({"job": {"name": "a", "vars": {"x": 1}, "nodeset": {"nodes": [{"name": "n", "label": "l"}]}}}, True),
        ({"job": {"name": "a", "nodeset": {"nodes": [{"name": "n"}]}}}, False),
        ({"job": {"name": "a", "tiemout": 3}}, False),
        ({"job": {"run": "a.yaml"}}, False),
        ({"job": {"name": "a", "attribute-control": {"vars": {"final": True}}}}, True),
        ({"job": {"name": "a", "attribute-control": {"name": {"final": True}}}}, False),
        ({"project": {"gate": {"jobs": ["a", {"b": {"voting": False}}]}}}, True),
        ({"project": {"gate": {"jobs": [{"b": {"votes": False}}]}}}, False),
        ({"pipeline": {"name": "p", "manager": "independent", "success": {"smtp": {"to": "a"}, "git": None}}}, True),
        ({"pipeline": {"name": "p", "manager": "independant"}}, False),
        ({"provider": {"name": "p", "section": "s", "region": "north"}}, True),
        ({"job": {"name": "a"}, "nodeset": {"name": "b"}}, False),
        ({"jobs": {"name": "a"}}, False),
    ],
)
def test_the_schema_accepts_exactly_the_valid_stanzas(stanza: dict[str, Any], good: bool):
    assert FILES.is_valid([stanza]) is good


def test_the_schema_describes_each_key():
    timeout = schema.files()["definitions"]["job"]["properties"]["attempts"]
    assert timeout["description"] == "At least 1; at most 10 are made. Default: 3. Variants: the last one wins"


@pytest.mark.parametrize(
    ("projects", "good"),
    [
        (["app", {"lib": {"include": "job"}}], True),
        ([{"include": ["job"], "projects": ["app", {"projects": ["lib"], "exclude": "secret"}]}], True),
        ([{"lib": {"includes": "job"}}], False),
        ([{"projects": ["app"], "includes": "job"}], False),
    ],
)
def test_projects_of_a_tenant(projects: list[Any], good: bool):
    document = [{"tenant": {"name": "t", "source": {"hub": {"untrusted-projects": projects}}}}]
    assert TENANT_FILE.is_valid(document) is good


def test_the_tenant_files_of_the_cases():
    taken = 0
    for text in {TENANTS, *(case.values[0].get("tenants", TENANTS) for case in CASES)}:
        try:
            parse_tenant_file(text, "tenants.yaml", CONNECTIONS)
        except ConfigErrors:
            continue
        assert TENANT_FILE.is_valid(document(text)), text
        taken += 1
    assert taken > 3
