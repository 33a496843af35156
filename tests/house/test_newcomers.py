"""Test that the pages that newcomers read first agree with the repository."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"
DECISIONS = ROOT / "docs" / "decisions"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def first_cells(page: Path) -> list[str]:
    return re.findall(r"^\| ([^|]+) \|", page.read_text(), re.MULTILINE)


def test_the_code_map_lists_every_package_once() -> None:
    packages = {str(p.parent.relative_to(SOURCE)) for p in SOURCE.rglob("__init__.py")} - {"."}
    listed = [cell.strip("`") for cell in first_cells(ROOT / "docs" / "code-map.md") if cell.startswith("`")]
    assert Counter(listed) == Counter(packages)


def test_a_directory_of_modules_is_a_package() -> None:
    """import-linter does not see the modules of a directory without `__init__.py`. Ansible loads its plugins itself."""
    plugins = SOURCE / "adapters" / "process" / "ansible_plugins"
    directories = {path.parent for path in SOURCE.rglob("*.py") if not path.is_relative_to(plugins)}
    assert not [str(one) for one in sorted(directories) if not (one / "__init__.py").exists()]


def test_every_path_that_the_architecture_names_exists() -> None:
    named = re.findall(r"`([a-z]+/[a-z_/]+)(?:\.py)?`", (ROOT / "ARCHITECTURE.md").read_text())
    places = {one: [top / f"{one}{end}" for top in (ROOT, SOURCE) for end in ("", ".py")] for one in named}
    assert named and not [one for one, paths in places.items() if not any(path.exists() for path in paths)]


def test_the_architecture_lists_every_layer_from_the_highest_to_the_lowest() -> None:
    listed = [c.strip("`") for c in first_cells(ROOT / "ARCHITECTURE.md") if re.fullmatch(r"`[a-z]+`", c)]
    layers = [name for name in listed if (SOURCE / name / "__init__.py").exists()]
    assert set(layers) == {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (declared,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert layers == declared


def test_decisions_are_numbered_listed_and_complete() -> None:
    found = sorted(p for p in DECISIONS.glob("*.md") if p.name != "README.md")
    index = re.findall(r"\((\d{4}-[a-z0-9-]+\.md)\)", (DECISIONS / "README.md").read_text())
    assert [p.name for p in found] == index
    assert [int(p.name[:4]) for p in found] == list(range(1, len(found) + 1))
    for page in found:
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        assert headings[0].startswith(f"{page.name[:4]}: "), page.name
        assert headings[1:] == ["Context", "Decision", "Consequences"], page.name


def test_every_guarantee_names_tests_that_exist() -> None:
    names = re.findall(r"`(tests/[^`]+|testing/[^`]+|test_\w+\.py)`", (ROOT / "docs" / "guarantees.md").read_text())
    files = {p.name for p in (ROOT / "tests").rglob("*.py")}
    gone = [
        name
        for name in names
        if name not in files
        and not any((base / f"{name}{end}").exists() for base in (ROOT, SOURCE) for end in ("", ".py"))
    ]
    assert names and not gone


def test_the_glossary_defines_each_term_once() -> None:
    terms = [term for cell in first_cells(ROOT / "docs" / "glossary.md") for term in cell.lower().split(", ")]
    assert not [term for term, times in Counter(terms).items() if times > 1 and term not in ("term", "---")]


def test_links_between_pages_lead_to_files() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {to}"
        for page in PAGES
        for to in re.findall(r"\]\(([^)#\s]+)[^)]*\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
        if "://" not in to and not to.startswith("mailto:") and not (page.parent / to).exists()
    ]
    assert not dead
