"""Test which versions of Ansible a configuration requests, and which of them this machine has."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from headgate.adapters.ansible.versions import LOCKS, MARK, PYTHON, Environments
from headgate.cli.main import group

TENANTS = """
- tenant:
    name: acme
    default-ansible-version: 9
    source:
      hub:
        config-projects: [ops]
        untrusted-projects: [app, lib]
"""
APP = """
- job: {name: unit, run: unit.yaml}
- job: {name: new, run: unit.yaml, ansible-version: 11, vars: {ansible_version: 8, inner: {ansible-version: 7}}}
- project: {gate: {jobs: [unit, new, {unit: {ansible-version: "11"}}]}}
"""


def installed(root: Path, version: str, *, outdated: bool = False) -> Path:
    place = root / f"{version}-0000" if outdated else Environments(root).place(version)
    place.mkdir(parents=True)
    (place / MARK).write_text(f'{{"version": "{version}", "core": "2.0.{version}", "python": "{PYTHON}"}}')
    return place


def run(*words: str) -> Result:
    return CliRunner().invoke(group, ["ansible", *words])


def test_check_lists_the_jobs_of_each_version_and_whether_it_is_installed(offline):
    made = offline(tenants=TENANTS, app=APP)
    config = made.root / "headgate.conf"
    config.write_text(f"[connection hub]\nbaseurl = x\n[executor]\nansible_root = {made.root}/ansible\n")
    installed(made.root / "ansible", "9")
    found = made.run("check", "--config", str(config)).output
    assert "Ansible 9, for tenant acme: installed here (ansible-core 2.0.9)\n" in found
    (line,) = [line for line in found.splitlines() if line.startswith("Ansible 11")]
    assert line.startswith("Ansible 11, for job new, a variant in ") and "/app" in line
    assert line.endswith("not installed here; on every executor run: headgate ansible install 11")
    assert "No Effect" not in found
    config.write_text(config.read_text() + "manage_ansible = yes\n")
    assert "an executor installs it when a build first needs it" in made.run("check", "--config", str(config)).output
    assert "Ansible 11, for" not in made.run("check", "--json", "--config", str(config)).output


def test_nothing_is_printed_without_a_need(offline):
    made = offline()
    config = made.root / "headgate.conf"
    config.write_text("[connection hub]\nbaseurl = x\n")
    assert "Ansible" not in made.run("check", "--config", str(config)).output


def test_versions_are_listed_with_their_state(tmp_path: Path) -> None:
    config = tmp_path / "headgate.conf"
    config.write_text("[scheduler]\nstate_dir = there\n")
    given = ("--config", str(config))
    assert "not installed; `headgate ansible install 9`" in run("list", *given).output
    old = installed(tmp_path / "there" / "ansible", "9", outdated=True)
    new = installed(tmp_path / "there" / "ansible", "11")
    nine, eleven = json.loads(run("list", "--json", *given).output)
    assert nine == {"version": "9", "core": "2.0.9", "state": "outdated", "place": str(old)}
    assert eleven == {"version": "11", "core": "2.0.11", "state": "installed", "place": str(new)}
    assert "`headgate ansible install 9` updates it" in run("list", *given).output


def test_the_packages_of_a_version_can_be_listed_for_download_elsewhere() -> None:
    assert run("requirements", "9").output == (LOCKS / "9.txt").read_text()
    for words in (("requirements", "8"), ("install", "8")):
        failed = run(*words)
        assert failed.exit_code and "there is no Ansible version 8: jobs may ask for 9 and 11" in str(failed.exception)
    assert "give either versions or --all, not both" in run("install", "--all", "9").output
