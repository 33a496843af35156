"""Test which Ansible runs the playbooks of a job, and the messages about a missing version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headgate.adapters.ansible.install import CannotInstall, explained, install
from headgate.adapters.ansible.versions import LOCKS, MARK, PYTHON, AnsibleNotInstalled, Environments, beside, used
from headgate.config.keys.job import ANSIBLE_VERSIONS


def made(place: Path, version: str, core: str, *, python: str = PYTHON, made_ms: int = 1) -> Path:
    place.mkdir(parents=True)
    text = f'{{"version": "{version}", "core": "{core}", "python": "{python}", "made_ms": {made_ms}}}'
    (place / MARK).write_text(text)
    return place


def test_a_job_has_the_version_that_it_asks_for(tmp_path: Path) -> None:
    here = Environments(tmp_path)
    made(here.place("9"), "9", "2.16.1")
    made(here.place("11"), "11", "2.18.1")
    for version, core in (("9", "2.16.1"), ("11", "2.18.1")):
        for requested in (True, False):
            found = here.choose(version, requested=requested)
            assert found is not None and found.mark.core == core and found.current
            assert found.program == str(here.place(version) / "bin" / "ansible-playbook")


def test_an_error_names_the_missing_version_and_the_command_that_installs_it(tmp_path: Path) -> None:
    here = Environments(tmp_path / "nothing yet")
    with pytest.raises(AnsibleNotInstalled, match=r"requests Ansible 9, .* run: headgate ansible install 9$"):
        here.choose("9", requested=True)
    made(here.place("11"), "11", "2.18.1")
    with pytest.raises(AnsibleNotInstalled):
        here.choose("9", requested=True)


def test_a_job_that_asks_for_no_version_gets_an_installed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Environments(tmp_path / "environments")
    assert beside() is not None, "the tests have one of their own"
    made(here.place("9"), "9", "2.16.1")
    assert here.choose("11", requested=False) is None, "that one"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert beside() is None
    found = here.choose("11", requested=False)
    assert found is not None and found.mark.version == "9", "there is no other"
    made(here.place("11"), "11", "2.18.1")
    found = here.choose("11", requested=False)
    assert found is not None and found.mark.version == "11"


def test_an_incomplete_environment_or_one_for_another_python_is_not_used(tmp_path: Path) -> None:
    here = Environments(tmp_path)
    here.place("9").mkdir(parents=True)
    assert here.find("9") is None
    (here.place("9") / MARK).write_text('{"version": "9"')
    assert here.find("9") is None
    made(tmp_path / "9-0000", "9", "2.16.0", python="3.10")
    assert here.find("9") is None


def test_a_version_with_an_earlier_list_of_packages_is_used_until_it_is_renewed(tmp_path: Path) -> None:
    here = Environments(tmp_path)
    made(tmp_path / "9-0000", "9", "2.16.0", made_ms=1)
    newer = made(tmp_path / "9-1111", "9", "2.16.5", made_ms=2)
    found = here.find("9")
    assert found is not None and found.place == newer and not found.current
    made(here.place("9"), "9", "2.16.9", made_ms=0)
    found = here.find("9")
    assert found is not None and found.current


def test_a_deleted_environment_is_not_used(tmp_path: Path) -> None:
    here = Environments(tmp_path)
    made(here.place("9"), "9", "2.16.1")
    found = here.find("9")
    assert found is not None
    with used(found) as there:
        assert there
    (found.place / MARK).unlink()
    with used(found) as there:
        assert not there
    found.place.rmdir()
    with used(found) as there:
        assert not there


@pytest.mark.parametrize("version", ["8", "10", "", "9/../11", "2.18"])
def test_versions_that_no_job_may_ask_for(tmp_path: Path, version: str) -> None:
    with pytest.raises(CannotInstall, match=f"no Ansible version {version}: jobs may ask for 9 and 11"):
        install(Environments(tmp_path), version, say=print)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (
            "x\nERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            "ansible_root",
        ),
        (
            "WARNING: Retrying ... Failed to establish a new connection: [Errno 111]\nERROR: No matching\n",
            "--from wheels",
        ),
        ("Temporary failure in name resolution\nERROR: Could not find a version\n", "pip download --only-binary :all:"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n",
            "does not have the hash that this Headgate",
        ),
        ("Error: ensurepip is not available\n", "apt-get install python3-venv"),
        ("noise\nERROR: No matching distribution found for ansible==9.13.0\nhint\n", "ERROR: No matching distribution"),
        ("", "it printed nothing"),
    ],
)
def test_errors_are_reported_with_a_remedy(output: str, wanted: str) -> None:
    text = explained("9", Path("/srv/ansible/9-0000"), output)
    assert text.startswith("Ansible 9 cannot be installed: ") and wanted in text and "\n" not in text


def test_every_version_has_a_list_with_hashes_of_its_own_release() -> None:
    cores = {"9": "2.16.", "11": "2.18."}
    assert set(cores) == set(ANSIBLE_VERSIONS)
    for version in ANSIBLE_VERSIONS:
        here = Environments(Path())
        assert here.core(version).startswith(cores[version])
        text = (LOCKS / f"{version}.txt").read_text()
        blocks = [block for block in text.split("\n") if "==" in block and not block.startswith("#")]
        assert any(block.startswith(f"ansible=={version}.") for block in blocks)
        assert {"jmespath", "netaddr"} < {block.partition("==")[0] for block in blocks}
        assert all(block.endswith("\\") for block in blocks) and text.count("--hash=sha256:") >= len(blocks)
        assert "://" not in text
