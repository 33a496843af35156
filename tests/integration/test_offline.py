"""Test commands without a server, on real repositories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.main import group
from headgate.testing.repositories import Repositories, run_git

OPS = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {hub: [{event: change-approved}]}
    success: {hub: {land: true}}
- job: {name: base, parent: null, abstract: true}
- project: {name: app, gate: {jobs: [noop]}}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    repositories = Repositories(tmp_path)
    repositories.create("ops", {"zuul.yaml": OPS})
    repositories.create("app", {"zuul.yaml": "- job: {name: unit, run: unit.yaml}\n"}, branch="main")
    run_git("push", "-q", "origin", "main:stable", at=repositories.work("app"))
    (tmp_path / "tenants.yaml").write_text(
        "- tenant: {name: acme, source: {hub: {config-projects: [ops], untrusted-projects: [app]}}}\n"
    )
    config = tmp_path / "headgate.conf"
    config.write_text("[scheduler]\ntenant_config = tenants.yaml\n[connection hub]\nbaseurl = hub\n")
    return config


def test_through_connections_and_from_directories_the_same_is_found(settings, tmp_path):
    through = CliRunner().invoke(group, ["check", "--json", "--config", str(settings)])
    given = ["--tenant-config", str(tmp_path / "tenants.yaml"), "--repos"]
    bare = CliRunner().invoke(group, ["check", "--json", *given, str(tmp_path / "hub")])
    work = CliRunner().invoke(group, ["check", "--json", *given, str(tmp_path / "work")])
    assert json.loads(through.stdout)["acme"]["counts"]["jobs"] == 2
    assert through.stdout == bare.stdout == work.stdout


def test_through_connections_an_unreadable_repository_is_an_error_of_its_project(settings, tmp_path):
    (tmp_path / "hub/app").rename(tmp_path / "gone")
    done = CliRunner().invoke(group, ["check", "--json", "--config", str(settings)])
    errors = json.loads(done.stdout)["acme"]["errors"]
    assert done.exit_code == 1
    assert [(e["name"], e["project"]) for e in errors] == [("Repository Not Found", "hub/app")]
