"""Test what is seen at a repository, and when."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from headgate.adapters.git.poll.watch import watch
from headgate.gate.state.change import ChangeState, EventKind
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories, run_git

from .words import HOST, PROJECT, change, item, landed, push_past_the_gate, state_of, watching


async def test_pushes_are_seen_without_polling(repositories: Repositories) -> None:
    async with watching(repositories, poll_interval_s=3600) as seen:
        await seen.next()
        message = "One\n\nDepends-On: code/master/zero\nDepends-On: x/y/z\nDepends-On: code/nowhere/topic"
        commit = repositories.propose("code", "one", {"c": "x\n"}, message)
        proposed = await seen.until(EventKind.PROPOSED)
        assert (proposed.commit, proposed.files) == (commit, ("c",))
        assert proposed.needs == (f"{PROJECT}/master/zero",)
        assert proposed.unresolved == ("x/y/z", "code/nowhere/topic")
        repositories.approve("code", "one")
        assert (await seen.until(EventKind.APPROVED)).topic == "one"
        repositories.abandon("code", "one")
        assert (await seen.until(EventKind.ABANDONED)).topic == "one"


async def test_remote_repositories_are_polled_as_often_as_the_setting_says(
    repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connect with the user's own ssh."""
    ssh = repositories.root / "ssh"
    ssh.write_text('#!/bin/sh\ntest "$1" = git.example && exec sh -c "$2"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    monkeypatch.setenv("GIT_SSH_VARIANT", "simple")
    url = f"ssh://git.example{repositories.hub}"
    async with watching(repositories, url, poll_interval_s=0.1) as seen:
        await seen.next()
        commit = repositories.propose("code", "one", {"c": "x\n"})
        assert (await seen.until(EventKind.PROPOSED)).topic == "one"
        repositories.approve("code", "one")
        assert (await seen.until(EventKind.APPROVED)).topic == "one"
        state = await state_of(seen.git, item(commit, "one"))
        assert (await landed(seen.git, state, change(commit, "one"))).ok
        assert (await seen.until(EventKind.REF_UPDATED)).commit == repositories.head("code")


async def test_changes_pushed_while_nobody_polled_are_found(repositories: Repositories) -> None:
    repositories.propose("code", "one", {"c": "x\n"})
    repositories.approve("code", "one")
    async with watching(repositories) as seen:
        sighting = await seen.next()
    assert [event.kind for event in sighting.events] == [EventKind.PROPOSED, EventKind.APPROVED]


async def test_a_proposal_pushed_again_is_a_new_patchset_without_the_old_approval(repositories: Repositories) -> None:
    async with watching(repositories) as seen:
        first = repositories.propose("code", "one", {"c": "x\n"})
        repositories.approve("code", "one")
        await seen.until(EventKind.APPROVED)
        run_git("commit", "-q", "--amend", "-m", "Once more", at=repositories.work("code"))
        run_git("push", "-q", "-f", "origin", "HEAD:refs/for/master/one", at=repositories.work("code"))
        again = await seen.until(EventKind.PROPOSED)
        assert again.commit != first and again.message == "Once more\n"
        assert not seen.known[again.key].is_approved


async def test_branches_and_topics_may_have_slashes(repositories: Repositories) -> None:
    work = repositories.work("code")
    for branch in ("release", "stable/1.0"):
        run_git("push", "-q", "origin", f"HEAD:refs/heads/{branch}", at=work)
    async with watching(repositories) as seen:
        await seen.next()
        repositories.propose("code", "ada/fix", {"c": "x\n"}, "One\n\nDepends-On: code/stable/1.0/bob/x", "stable/1.0")
        found = await seen.until(EventKind.PROPOSED)
        assert (found.branch, found.topic) == ("stable/1.0", "ada/fix")
        assert found.needs == (f"{PROJECT}/stable/1.0/bob/x",)
        repositories.abandon("code", "ada/fix", "stable/1.0")
        await seen.until(EventKind.ABANDONED)
        repositories.propose("code", "ada/fix/again", {"c": "x\n"}, branch="stable/1.0")
        assert (await seen.until(EventKind.PROPOSED)).topic == "ada/fix/again"


@pytest.mark.long
async def test_a_landed_change_is_seen_to_have_landed_whatever_its_mode(repositories: Repositories) -> None:
    async with watching(repositories) as seen:
        for mode in ("merge", "squash-merge", "cherry-pick"):
            push_past_the_gate(repositories, {mode: "x\n"})
            commit = repositories.propose("code", mode, {"c": mode})
            await seen.until(EventKind.PROPOSED)
            state = await state_of(seen.git, item(commit, mode, mode))
            assert (await landed(seen.git, state, change(commit, mode))).ok
            while seen.known[f"{PROJECT}/master/{mode}"].open:
                await seen.next()
            assert seen.known[f"{PROJECT}/master/{mode}"].landed
    assert EventKind.ABANDONED not in {event.kind for event in seen.events}


async def test_a_landed_change_whose_ref_stays_is_not_proposed_again(repositories: Repositories) -> None:
    hook = repositories.hub / "code/hooks/update"
    hook.write_text('#!/bin/sh\ncase "$1 $3" in "refs/for/"*" 0000000"*) exit 1;; esac\n')
    hook.chmod(0o755)
    async with watching(repositories) as seen:
        commit = repositories.propose("code", "one", {"c": "x\n"})
        one = await seen.until(EventKind.PROPOSED)
        state = await state_of(seen.git, item(commit, "one"))
        seen.known[one.key] = ChangeState(one, open=False, landed=True)  # as the gate's turn records it
        assert (await landed(seen.git, state, change(commit, "one"))).ok
        await seen.until(EventKind.REF_UPDATED)
        repositories.propose("code", "two", {"d": "x\n"})
        assert (await seen.until(EventKind.PROPOSED)).topic == "two"
        assert seen.known[one.key].landed
        assert seen.lingering == {PROJECT: {one.key}}
    assert "refs/for/master/one" in run_git("for-each-ref", at=repositories.hub / "code")


async def test_a_branch_that_moves_is_an_event_with_its_files(repositories: Repositories) -> None:
    async with watching(repositories) as seen:
        await seen.next()
        before = repositories.head("code")
        after = push_past_the_gate(repositories, {"d/e": "x\n", "b": "other\n"})
        moved = await seen.until(EventKind.REF_UPDATED)
        assert (moved.old_commit, moved.commit, moved.files) == (before, after, ("b", "d/e"))


async def test_a_branch_deleted_closes_its_changes_with_a_reason(repositories: Repositories) -> None:
    run_git("push", "-q", "origin", "HEAD:refs/heads/topical", at=repositories.work("code"))
    async with watching(repositories) as seen:
        repositories.propose("code", "one", {"c": "x\n"}, branch="topical")
        one = await seen.until(EventKind.PROPOSED)
        run_git("push", "-q", "origin", ":refs/heads/topical", at=repositories.work("code"))
        problem = await seen.until_problem("refs/for/topical/one: it names no existing branch")
        assert "push to refs/for/<branch>/<topic>" in problem
        change_state = seen.known[one.key]
        assert not change_state.open and change_state.reason == f"the branch topical of {PROJECT} was deleted"
        run_git("push", "-q", "origin", "HEAD^:refs/heads/topical", at=repositories.work("code"))
        assert (await seen.until(EventKind.PROPOSED)).commit == one.commit
        await seen.until_problem("")


async def test_a_lost_repository_is_reported_once_and_comes_back(
    repositories: Repositories, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate.git")
    hub, away = repositories.hub / "code", repositories.root / "away"
    async with watching(repositories, poll_interval_s=0.2) as seen:
        await seen.next()
        hub.rename(away)
        assert "it cannot be read" in await seen.until_problem("it cannot be read")
        await asyncio.to_thread(repositories.create, "other", {"a": "x\n"})
        away.rename(hub)
        await seen.until_problem("")
        repositories.propose("code", "one", {"c": "x\n"})
        assert (await seen.until(EventKind.PROPOSED)).topic == "one"
        shutil.rmtree(hub)
        await seen.until_problem("it cannot be read")
        shutil.rmtree(repositories.work("code"))
        repositories.create("code", {"a": "another one\n"})
        await seen.until_problem("")
        repositories.propose("code", "two", {"c": "x\n"})
        assert (await seen.until(EventKind.PROPOSED)).topic == "two"
    messages = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert len(messages) == 2 and all(f"{PROJECT} cannot be read; retrying until it can" in text for text in messages)
    assert sum("can be read again" in record.getMessage() for record in caplog.records) == 2


async def test_another_repository_at_the_same_place_is_seen(tmp_path: Path) -> None:
    """At once, and with the same inode number, as file systems reuse numbers."""
    stirred: asyncio.Queue[str] = asyncio.Queue()
    place = tmp_path / "repository"
    (place / "refs").mkdir(parents=True)
    (place / "config").touch()
    following = asyncio.ensure_future(watch(lambda: {"p": place}, stirred.put_nowait, 0.1))
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await stirred.get() == "p" == await stirred.get(), "when it is found, and when it is watched"
            (place / "config").unlink()
            (place / "config").touch()
            assert await stirred.get() == "p" == await stirred.get()
            (place / "refs" / "new").touch()
            assert await stirred.get() == "p", "it is watched, too"
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_topic_for_no_branch_is_reported(repositories: Repositories) -> None:
    run_git("push", "-q", "origin", "HEAD:refs/for/mastr/one", at=repositories.work("code"))
    async with watching(repositories) as seen:
        assert "refs/for/mastr/one: it names no existing branch" in await seen.until_problem("mastr")


@pytest.mark.long
async def test_five_thousand_refs_and_the_new_ones_among_them_are_seen_in_one_poll(repositories: Repositories) -> None:
    work, hub = repositories.work("code"), repositories.hub / "code"
    commit = run_git("rev-parse", "HEAD", at=work)
    head = repositories.propose("code", "new", {"c": "x\n"})
    lines = [f"{commit} refs/for/master/t{number}" for number in range(4_000)]
    lines += [f"{commit} refs/heads/b{number}" for number in range(1_000)]
    lines += [f"{head} refs/for/master/new", f"{commit} refs/heads/master"]
    shutil.rmtree(hub / "refs")
    (hub / "refs").mkdir()
    (hub / "packed-refs").write_text("\n".join(["# pack-refs with: sorted ", *sorted(lines, key=_ref)]) + "\n")
    async with watching(repositories) as seen:
        sighting = await seen.next()
        assert len(sighting.change_states) == 4_001 and len(sighting.heads[PROJECT]) == 1_001
        repositories.approve("code", "new")
        assert (await seen.until(EventKind.APPROVED)).topic == "new"


def _ref(line: str) -> str:
    return line.split(" ")[1]


async def test_projects_of_other_hosts_are_nobody_elses(repositories: Repositories) -> None:
    async with watching(repositories) as seen:
        repositories.propose("code", "one", {"c": "x\n"}, f"One\n\nDepends-On: {HOST}/code/master/two")
        assert (await seen.until(EventKind.PROPOSED)).needs == (f"{PROJECT}/master/two",)


async def test_a_change_too_large_to_describe_is_reported_without_the_details(repositories: Repositories) -> None:
    work = repositories.work("code")
    for number in range(1_500):
        file = work / f"{number:04}{'x' * 200}"
        file.write_text("x\n")
    (repositories.root / "message").write_text(f"Large\n\n{'word ' * 20_000}\n\nDepends-On: code/master/one\n")
    run_git("add", "-A", at=work)
    run_git("commit", "-q", "-F", str(repositories.root / "message"), at=work)
    run_git("push", "-q", "origin", "HEAD:refs/for/master/large", at=work)
    async with watching(repositories) as seen:
        found = await seen.until(EventKind.PROPOSED)
    assert found.files is None and found.needs == (f"{PROJECT}/master/one",)
    assert found.message.startswith("Large\n") and "[…]" in found.message and len(found.message) < 20_000
