"""Test a project without a configuration that proposes its first one: it is checked, enqueued by hand, and lands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.testing.repositories import Repositories
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import Headgate
from .test_by_hand import say

FIRST = """
- job: {name: own, run: own}
- project:
    check: {jobs: [own]}
    gate: {jobs: [own]}
"""


@pytest.fixture
def headgate(tmp_path: Path) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\n"})
    for name in ("code/api", "code/lib", "fresh"):
        repositories.create(name, {"README": f"{name}\n"})
    running = Headgate(repositories, TENANTS.replace("- code/lib", "- code/lib\n          - fresh"))
    running.start()
    yield running
    running.stop()


@pytest.mark.long
def test_the_first_configuration_of_a_project_is_checked_and_lands(headgate: Headgate) -> None:
    repositories = headgate.repositories

    def note_with(commit: str, *words: str) -> str:
        def found() -> str:
            note = repositories.note("fresh", commit)
            return note if all(word in note for word in words) else ""

        return str(wait_for(f"a note says {words}", found))

    plain = repositories.propose("fresh", "plain", {"a": "x\n"})
    first = repositories.propose("fresh", "first", {"zuul.yaml": FIRST, "own": "#!/bin/sh\ntrue\n"})
    note_with(first, "Headgate (check):", "Build succeeded", "- own")
    where = ("--url", headgate.url, "--tenant", "example", "--pipeline", "check", "--project", "fresh")
    assert say(headgate, "enqueue", *where, "first") == (0, "first of fresh is in check.\n")
    repositories.approve("fresh", "first")
    note_with(first, "Landed on master", "- own")
    assert repositories.show("fresh", "zuul.yaml") == FIRST.strip()
    assert "fresh has no jobs in any pipeline for master" in repositories.note("fresh", plain), (
        "it proposes none either"
    )
