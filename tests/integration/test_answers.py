"""Test that every push is answered: by a note on the commit, and a line on the pages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.map.records import RepositoryProblems
from headgate.recipes.codec import readable
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import until

from .conftest import PIPELINES, TENANTS

API = "code/api"


def proposed(repositories: Repositories) -> str:
    return repositories.propose(API, "one", {"a": "x\n"})


def approved(repositories: Repositories) -> str:
    """An approval of a change that nobody has proposed."""
    commit = repositories.propose(API, "one", {"a": "x\n"})
    work = repositories.work(API)
    run_git("push", "-q", "origin", ":refs/for/master/one", at=work)
    run_git("push", "-q", "origin", f"{commit}:refs/approved/master/other", at=work)
    return commit


def stacked(repositories: Repositories) -> str:
    """A change with more dependencies than the tenant allows."""
    for number in range(3):
        footer = f"\n\nDepends-On: {API}/master/t{number - 1}" if number else ""
        commit = repositories.propose(API, f"t{number}", {f"f{number}": "x\n"}, f"Change {number}{footer}")
    return commit


class Case(NamedTuple):
    push: Callable[[Repositories], str]
    section: str
    """Return the text of the note."""
    says: str
    config: Callable[[str], str] = str
    tenants: Callable[[str], str] = str


CASES = {
    "an approval without a proposal": Case(approved, "approval", "nobody has proposed"),
    "a project without jobs": Case(
        proposed,
        "tenant example",
        "code/api has no jobs in any pipeline for master",
        lambda t: t.replace("^code/.*", "^other/.*"),
    ),
    "no pipeline takes proposals": Case(
        proposed,
        "tenant example",
        "not tested before it is approved; after that it enters gate",
        lambda t: t.replace("event: change-proposed", "event: ref-updated"),
    ),
    "too many dependencies": Case(
        stacked,
        "check",
        "it needs 2 changes; the tenant allows 1",
        tenants=lambda t: t.replace("    name: example\n", "    name: example\n    max-dependencies: 1\n"),
    ),
    "jobs that match no file": Case(
        proposed,
        "check",
        "No jobs of pipeline check apply here",
        lambda t: t.replace("    run: jobs/unit\n", "    run: jobs/unit\n    files: [docs/.*]\n"),
    ),
}


async def noted(repositories: Repositories, commit: str, section: str) -> str:
    def note() -> str:
        found = repositories.note(API, commit)
        return found if f"Headgate ({section}):" in found else ""

    return await until(f"the note has a section of {section}", note)


def lines(running: Gate) -> str:
    """Return what the pages show: ended buildsets, and repositories."""
    entry = running.context.mirror.get(running.context.map.cache.connection("local").problems.path)
    problems = readable(entry, RepositoryProblems) if entry is not None else None
    texts = [one.text for one in problems.projects.values()] if problems is not None else []
    return "\n".join([*texts, *(one.message for one in running.history.finished.values())])


@pytest.mark.parametrize("case", CASES)
async def test_every_push_is_answered_with_a_note_and_a_line(
    tmp_path: Path, repositories: Repositories, case: str
) -> None:
    push, section, says, config, tenants = CASES[case]
    files = {"zuul.yaml": config(PIPELINES)}
    assert files["zuul.yaml"] != PIPELINES or tenants(TENANTS) != TENANTS or push is approved
    repositories.write("config", files)
    run_git("commit", "-q", "--allow-empty", "-m", "Configure", at=repositories.work("config"))
    run_git("push", "-q", "origin", "master", at=repositories.work("config"))
    async with gate(tmp_path, repositories.hub, MemoryBackend(), tenants(TENANTS)) as running:
        commit = push(repositories)
        assert says in await noted(repositories, commit, section)
        async with asyncio.timeout(DEADLINE_S):
            while says not in lines(running):
                await running.context.mirror.moved(running.context.mirror.moves)


async def test_a_change_that_enters_a_pipeline_is_answered_by_that_pipeline_alone(
    tmp_path: Path, repositories: Repositories
) -> None:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as running:
        commit = proposed(repositories)
        note = await noted(repositories, commit, "check")
        repositories.approve(API, "one")
        assert (await running.history.result_of("one", "gate")).result == "SUCCESS"
        note = repositories.note(API, commit)
    assert "(tenant example)" not in note and "(approval)" not in note and "Landed on master" in note
