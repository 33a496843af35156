"""Test the number of git processes for a change: few, however many refs exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.gate.state.change import EventKind
from headgate.testing.repositories import Repositories, run_git

from .words import PROJECT, change, counted_git, item, landed, push_past_the_gate, state_of, watching


@pytest.mark.long
@pytest.mark.parametrize("others", [5, 300])
async def test_from_proposal_to_landed_three_processes(
    repositories: Repositories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    work = repositories.work("code")
    run_git("push", "-q", "origin", *(f"HEAD:refs/for/master/t{n}" for n in range(others)), at=work)
    async with watching(repositories) as seen:
        git = seen.git
        first = repositories.propose("code", "first", {"x": "x\n"})
        await seen.next()
        await landed(git, await state_of(git, item(first, "first")), change(first, "first"))
        commit = repositories.propose("code", "one", {"c": "x\n"})
        push_past_the_gate(repositories, {"d": "x\n"})
        await seen.until(EventKind.REF_UPDATED)
        while f"{PROJECT}/master/one" not in seen.known:
            await seen.next()
        log = counted_git(tmp_path / "bin", monkeypatch)
        await state_of(git, item(commit, "one"))
        assert _ours(log) == ["merge-tree"]
        repositories.approve("code", "one")
        await seen.until(EventKind.APPROVED)
        state = await state_of(git, item(commit, "one"))
        assert (await landed(git, state, change(commit, "one"))).ok
        await seen.until(EventKind.REF_UPDATED)
        assert _ours(log) == ["merge-tree", "push"]
        repositories.propose("code", "two", {"c": "y\n"})
        await seen.until(EventKind.PROPOSED)
        assert _ours(log) == ["merge-tree", "push", "fetch"]
    assert repositories.show("code", "c") == "x"


def _ours(log: Path) -> list[str]:
    """Record the git commands that Headgate runs."""
    lines = [line.split(" ") for line in log.read_text().splitlines() if "core.hooksPath" in line]
    return [next(word for word in words if word in ("merge-tree", "push", "fetch", "ls-remote")) for words in lines]
