"""Test that the changelog is sorted by release and area, and that its first release is the current one."""

from __future__ import annotations

import re
from pathlib import Path

from headgate import __version__

TEXT = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
AREAS = [
    "Gate", "Configuration", "Jobs", "Machines and images", "Forges and git servers", "Pages, API and commands",
    "Queues of messages", "Inventory", "Operations", "Security",
]  # fmt: skip


def test_the_newest_release_is_the_version_of_this_program() -> None:
    releases = re.findall(r"^## (\S+)(?: \((?:unreleased|\d{4}-\d\d-\d\d)\))?$", TEXT, re.MULTILINE)
    assert releases[0] == __version__
    assert releases == sorted(releases, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    assert len(releases) == TEXT.count("\n## "), "every release is VERSION, or VERSION (DATE or unreleased)"


def test_every_line_is_below_an_area_of_its_release() -> None:
    for release in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]:
        head, *areas = re.split(r"^### ", release, flags=re.MULTILINE)
        assert "\n- " not in head, f"{head.split()[0]}: a line stands before the first area"
        names = [area.partition("\n")[0] for area in areas]
        assert names == [name for name in AREAS if name in names], "areas in their order, each once"
