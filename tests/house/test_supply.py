"""Test the installed packages of Headgate: locked, hashed, bounded, with known licences."""

from __future__ import annotations

import importlib.metadata
import itertools
import re
import runpy
import sys
import tomllib
from collections.abc import Iterable
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
def test_a_lock_fits_the_requirements_of_the_project(lock: str) -> None:
    """Run `make lock` after a change of pyproject.toml."""
    found = locked(lock)
    for requirement in map(Requirement, FILES[lock]):
        versions = [version(one) for one in found.get(plain(requirement.name), [])]
        assert versions and all(requirement.specifier.contains(v, prereleases=True) for v in versions), requirement


def test_all_locks_have_the_tested_versions() -> None:
    everything = {name: {version(one) for one in ones} for name, ones in locked("dev").items()}
    for lock in ("run", "demo", "full"):
        assert all({version(one) for one in ones} <= everything[name] for name, ones in locked(lock).items())


def test_every_dependency_is_bounded_above() -> None:
    requirements = [
        *map(Requirement, FILES["dev"]),
        *map(Requirement, (ROOT / "requirements/build.in").read_text().split()),
    ]
    unbounded = [one.name for one in requirements if not any(part.operator == "<" for part in one.specifier)]
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


SHARED_ROW = "anyio, cffi, idna, pycparser, typing_extensions"
"""Packages that several rows of the table need: they have a row of their own."""


def closure(needed: Iterable[str]) -> set[str]:
    """Return the plain names of these requirements and of all that they require here."""
    found: set[tuple[str, str]] = set()
    waiting = [Requirement(one) for one in needed]
    while waiting:
        one = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        for extra in ("", *one.extras):
            if (key := (plain(one.name), extra)) not in found:
                found.add(key)
                below = map(Requirement, importlib.metadata.requires(one.name) or ())
                for other in below:
                    if other.marker is None or other.marker.evaluate({"extra": extra}):
                        other.marker = None
                        waiting.append(other)
    return {name for name, _ in found}


def size_mb(names: Iterable[str]) -> float:
    files = (file.locate() for name in names for file in importlib.metadata.files(name) or ())
    return sum(Path(str(file)).stat().st_size for file in files if Path(str(file)).is_file()) / 1e6


def table(*columns: str) -> list[list[str]]:
    """Return the cells of a table about dependencies."""
    lines = iter((ROOT / "ARCHITECTURE.md").read_text().splitlines())
    next(line for line in lines if line == f"| {' | '.join(columns)} |")
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows][1:]


def named(cell: str) -> list[str]:
    return re.sub(r"\(.*?\)", "", cell).replace(" ", "").split(",")


def agree(written: str, measured: float) -> bool:
    """Tell whether a size is the measured one; other releases of a package and of Python may differ a little."""
    return abs(float(written) - measured) <= max(0.6, 0.12 * measured)


@pytest.fixture
def compiled() -> None:
    if not any(str(file).endswith(".pyc") for file in importlib.metadata.files("click") or ()):
        pytest.skip("packages were installed without bytecode, which the sizes include")


@pytest.mark.usefixtures("compiled")
def test_the_sizes_of_dependencies_agree_with_the_architecture() -> None:
    base = closure(PROJECT["dependencies"])
    rows = [row for row in table("package", "MB", "why") if set(map(plain, named(row[0]))) <= base]
    assert len(rows) > 10 and SHARED_ROW in [row[0] for row in rows]
    parts = {row[0]: closure(named(row[0])) for row in rows}
    left, wrong = set(base), {}
    for cell, size, *_ in rows:
        others = set().union(*(part for other, part in parts.items() if other != cell))
        own = set(map(plain, named(cell))) | (parts[cell] - others)
        left -= own
        if not agree(size, size_mb(own)):
            wrong[cell] = (size, round(size_mb(own), 1))
    assert not wrong and not left, (wrong, left)


@pytest.mark.usefixtures("compiled")
def test_the_sizes_of_extras_are_as_the_architecture_says() -> None:
    base, wrong = closure(PROJECT["dependencies"]), {}
    rows = {extra.strip("`"): size for _, extras, size, _ in table("package", "extra", "MB", "why")
            for extra in extras.split(", ")}  # fmt: skip
    assert rows.keys() == EXTRAS.keys() - {"dev"}
    for extra, size in rows.items():
        measured = size_mb(closure(EXTRAS[extra]) - base)
        if not agree(size, measured):
            wrong[extra] = (size, round(measured, 1))
    assert not wrong
