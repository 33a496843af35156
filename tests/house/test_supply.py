"""Test the installed packages of Headgate: locked, hashed, bounded, with known licences."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FILES = {
    "run": PROJECT["dependencies"],
    "demo": [*PROJECT["dependencies"], *EXTRAS["ansible"]],
    "full": [
        *PROJECT["dependencies"],
        *(name for extra in ("ansible", "chat", "mqtt", "postgresql", "s3", "tracing") for name in EXTRAS[extra]),
    ],
    "dev": [*PROJECT["dependencies"], *(name for extra in EXTRAS.values() for name in extra)],
}
"""Lock -> its input."""


def text(lock: str) -> str:
    return (ROOT / "requirements" / f"{lock}.txt").read_text()


def locked(lock: str) -> dict[str, list[Requirement]]:
    lines = [line.rstrip(" \\") for line in text(lock).splitlines() if re.match(r"[A-Za-z]", line)]
    found: dict[str, list[Requirement]] = {}
    for line in lines:
        one = Requirement(line)
        found.setdefault(plain(one.name), []).append(one)
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def version(one: Requirement) -> str:
    (found,) = one.specifier
    assert found.operator == "=="
    return found.version


@pytest.mark.parametrize("lock", FILES)
def test_every_package_has_one_version_and_its_hashes(lock: str) -> None:
    blocks = re.split(r"^(?=[A-Za-z])", text(lock), flags=re.MULTILINE)[1:]
    assert len(blocks) > 40 and all(" \\\n    --hash=sha256:" in block for block in blocks)
    assert not re.search(r"://|^-|@ ", text(lock), re.MULTILINE), "a lock names packages, not where they come from"


@pytest.mark.parametrize("lock", FILES)
def test_a_lock_fits_what_the_project_asks_for(lock: str) -> None:
    """Run `make lock` after a change of pyproject.toml."""
    found = locked(lock)
    for asked in map(Requirement, FILES[lock]):
        versions = [version(one) for one in found.get(plain(asked.name), [])]
        assert versions and all(asked.specifier.contains(v, prereleases=True) for v in versions), asked


def test_what_is_installed_here_is_what_is_tested() -> None:
    everything = {name: {version(one) for one in ones} for name, ones in locked("dev").items()}
    for lock in ("run", "demo", "full"):
        assert all({version(one) for one in ones} <= everything[name] for name, ones in locked(lock).items())


def test_every_dependency_is_bounded_above() -> None:
    asked = [*map(Requirement, FILES["dev"]), *map(Requirement, (ROOT / "requirements/build.in").read_text().split())]
    unbounded = [one.name for one in asked if not any(part.operator == "<" for part in one.specifier)]
    assert unbounded == ["editables"], "two functions that need no more"


def test_licences_are_listed() -> None:
    """Run `make lock` when they differ."""
    scripts = runpy.run_path(str(ROOT / "scripts/licences"))
    page = (ROOT / "docs/reference/licences.md").read_text()
    assert scripts["page"]() == page or sys.version_info[:2] != (3, 11)
    lines = dict(re.findall(r"^\| (\S+) \| (.+) \|$", page, re.MULTILINE))
    assert set(scripts["names"]("full.txt")) <= set(lines) and "?" not in lines.values()
    notice = (ROOT / "NOTICE").read_text()
    assert not [name for name, licence in lines.items() if "GPL" in licence and name.split("-binary")[0] not in notice]
