"""Test that the examples of the pages about machines are valid, and define the labels that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from headgate.config.assembly.inheritance import flattened
from headgate.config.layout import build_layout
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.config.parse import ParseCache

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
TENANT = """
- tenant:
    name: acme
    source: {git: {config-projects: [{ops: {include: [image, flavor, label, section, provider]}}]}}
"""
DRIVERS = {"git": "git", "k8s": "kubernetes", "local": "podman"}


@pytest.mark.parametrize(
    ("page", "labels"),
    [
        ("machines-on-kubernetes.md", {"debian-pod": "pod", "a-namespace": "namespace"}),
        ("containers-as-machines.md", {"debian-container": None}),
    ],
)
def test_a_provider_of_a_page_has_its_labels(page: str, labels: dict[str, str | None]) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(), re.S)
    (text,) = [block for block in blocks if "- provider:" in block]
    file = parse_tenant_file(TENANT, "tenants.yaml", {n: Connection(n, n, d, False) for n, d in DRIVERS.items()})
    acme = file.tenants["acme"]
    parsed = ParseCache().parse(acme.projects[0], "master", {"zuul.yaml": text})
    layout = build_layout(acme, {acme.projects[0].project: {"master": parsed}})
    assert [one.text for one in layout.errors if one.severity == "error"] == []
    (provider,) = flattened(layout)
    assert {one.label["name"]: one.label.get("kind") for one in provider.labels} == labels
    if page.startswith("machines"):
        (role,) = [one for block in blocks if "ClusterRole" in block for one in yaml.safe_load_all(block)
                   if one["kind"] == "ClusterRole"]  # fmt: skip
        assert role["rules"]
