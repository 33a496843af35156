"""A small tenant in plain directories."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headgate.cli.main import group

TENANTS = """
- tenant:
    name: acme
    source:
      hub:
        config-projects: [ops]
        untrusted-projects: [app, lib]
"""
OPS = """
- pipeline:
    name: check
    manager: independent
    trigger: {hub: [{event: change-proposed}]}
    success: {hub: {}}
- pipeline:
    name: gate
    manager: dependent
    trigger: {hub: [{event: change-approved}]}
    success: {hub: {land: true}}
- nodeset:
    name: small
    nodes: [{name: controller, label: debian}]
- job: {name: base, parent: null, abstract: true, timeout: 600, pre-run: pre.yaml}
"""
APP = """
- job: {name: unit, run: unit.yaml, nodeset: small}
- project: {gate: {jobs: [unit]}}
"""


@dataclass
class Offline:
    """A tenant file and a directory of repositories, and the commands on them."""

    root: Path

    @property
    def repos(self) -> Path:
        return self.root / "repos"

    def write(self, place: str, files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            file = self.repos / place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(text))
        return self.repos / place

    def run(self, *words: str) -> Result:
        given = ["--tenant-config", str(self.root / "tenants.yaml"), "--repos", str(self.repos)]
        return CliRunner().invoke(group, [*words, *given])

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json").stdout)


@pytest.fixture
def offline(tmp_path: Path) -> Callable[..., Offline]:
    """`offline(app=..., ops=..., lib=...)`: the text of each project's zuul.yaml."""

    def make(*, tenants: str = TENANTS, ops: str = OPS, app: str = APP, lib: str = "") -> Offline:
        (tmp_path / "tenants.yaml").write_text(dedent(tenants))
        made = Offline(tmp_path)
        for name, text in (("ops", ops), ("app", app), ("lib", lib)):
            made.write(f"hub/{name}", {"zuul.yaml": text})
        return made

    return make
