"""Test landing and reporting: with other users of the remote, interrupted, and refused."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

import pytest

from headgate.adapters.git.command import GitImpossible
from headgate.adapters.git.engine import GitEngine
from headgate.adapters.git.mirror import MirrorRepository
from headgate.adapters.git.notes import NOTES, tree_of
from headgate.adapters.git.remote import Remote
from headgate.gate.state.works import LandAnswer, LandRequest, ReportAnswer, ReportRequest
from headgate.ports.work import Unreachable
from headgate.testing.repositories import Repositories, run_git

from .words import PROJECT, change, engine, item, landed, merged, push_past_the_gate, refs, state_of

MERGERS, ROUNDS = 5, 2


async def reported(git: GitEngine, commit: str, pipeline: str, note: str) -> None:
    answer = await git.do(ReportRequest(change(commit, "one"), pipeline, note))
    assert answer == ReportAnswer(True)


def hook(repositories: Repositories, name: str, script: str) -> None:
    file = repositories.hub / "code" / "hooks" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def imported(repositories: Repositories, stream: str) -> None:
    command = ["git", "fast-import", "--quiet"]
    subprocess.run(command, cwd=repositories.hub / "code", input=stream.encode(), check=True)


def not_atomic(repositories: Repositories) -> None:
    run_git("config", "receive.advertiseAtomic", "false", at=repositories.hub / "code")


@pytest.mark.parametrize("atomic", [True, False])
async def test_landing_pushes_the_tested_commit_and_ends_the_change(repositories: Repositories, atomic: bool) -> None:
    if not atomic:
        not_atomic(repositories)
    commit = repositories.propose("code", "one", {"c": "x\n"})
    repositories.approve("code", "one")
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    assert (await landed(git, state, change(commit, "one"))).ok
    assert repositories.head("code") == state.merged[PROJECT]["master"]
    assert refs(repositories) == {"refs/heads/master", "refs/notes/headgate"}
    assert "It passed." in repositories.note("code", commit)
    again = await landed(engine(repositories, "other"), state, change(commit, "one"))
    assert again.ok, "landed twice is as landed once"


@pytest.mark.long
async def test_five_mergers_at_one_repository_lose_nothing(repositories: Repositories) -> None:
    for number in range(MERGERS):
        run_git("push", "-q", "origin", f"HEAD:refs/heads/b{number}", at=repositories.work("code"))
    proposed = {
        (m, r): repositories.propose("code", f"t{r}", {f"f{m}-{r}": "x\n"}, branch=f"b{m}")
        for m in range(MERGERS)
        for r in range(ROUNDS)
    }

    async def life(number: int) -> None:
        git, branch = engine(repositories, f"merger{number}"), f"b{number}"
        for round in range(ROUNDS):
            commit, topic = proposed[number, round], f"t{round}"
            note = ReportRequest(change(commit, topic, branch), "check", f"checked {number}-{round}")
            assert await git.do(note) == ReportAnswer(True)
            state = await state_of(git, item(commit, topic, branch=branch))
            answer = await landed(git, state, change(commit, topic, branch), f"passed {number}-{round}")
            assert answer == LandAnswer("b", True)

    await asyncio.gather(*(life(number) for number in range(MERGERS)))
    for (number, round), commit in proposed.items():
        note = repositories.note("code", commit)
        assert f"checked {number}-{round}" in note and f"passed {number}-{round}" in note
        assert run_git("show", f"b{number}:f{number}-{round}", at=repositories.hub / "code") == "x"
    assert not [ref for ref in refs(repositories) if ref.startswith("refs/for/")]


@pytest.mark.parametrize("atomic", [True, False])
async def test_a_change_that_its_branch_already_contains_only_ends(repositories: Repositories, atomic: bool) -> None:
    """It was pushed past the gate, or a landing was interrupted after its first step."""
    if not atomic:
        not_atomic(repositories)
    commit = repositories.propose("code", "one", {"c": "x\n"})
    repositories.approve("code", "one")
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    tested = state.merged[PROJECT]["master"]
    run_git("push", "-q", str(repositories.hub / "code"), f"{tested}:master", at=git.mirror(PROJECT, "local").path)
    head = push_past_the_gate(repositories, {"d": "x\n"})
    assert (await landed(git, state, change(commit, "one"))).ok
    assert repositories.head("code") == head and "It passed." in repositories.note("code", commit)
    assert refs(repositories) == {"refs/heads/master", "refs/notes/headgate"}


async def test_a_branch_that_moved_is_not_overwritten(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    head = push_past_the_gate(repositories, {"d": "x\n"})
    answer = await landed(git, state, change(commit, "one"))
    assert (answer.ok, answer.moved) == (False, True) and repositories.head("code") == head


async def test_a_branch_that_is_pushed_to_during_the_push_is_not_overwritten(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    theirs = repositories.propose("code", "theirs", {"d": "x\n"})
    hook(repositories, "pre-receive", f"unset GIT_QUARANTINE_PATH; git update-ref refs/heads/master {theirs}")
    answer = await landed(git, state, change(commit, "one"))
    assert (answer.ok, answer.moved) == (False, True) and repositories.head("code") == theirs
    assert "refs/for/master/one" in refs(repositories) and "It passed." not in repositories.note("code", commit)


@pytest.mark.parametrize("what", ["withdrawn", "replaced"])
async def test_a_withdrawn_or_replaced_change_does_not_land(repositories: Repositories, what: str) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    before = repositories.head("code")
    if what == "withdrawn":
        repositories.abandon("code", "one")
    else:
        repositories.propose("code", "one", {"c": "y\n"})
    answer = await landed(git, state, change(commit, "one"))
    assert not answer.ok and not answer.moved and "withdrawn or replaced" in answer.error
    assert repositories.head("code") == before


APPROVED = "refs/approved/master/one"


@pytest.mark.parametrize("how", ["withdrawn", "of another commit", "never given"])
async def test_a_change_without_a_current_approval_does_not_land(repositories: Repositories, how: str) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    hub = repositories.hub / "code"
    if how != "never given":
        repositories.approve("code", "one")
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    before = repositories.head("code")
    if how == "withdrawn":
        run_git("update-ref", "-d", APPROVED, at=hub)
    elif how == "of another commit":
        run_git("update-ref", APPROVED, before, at=hub)
    answer = await landed(git, state, change(commit, "one"), approved=True)
    assert not answer.ok and not answer.moved and "its approval was withdrawn" in answer.error
    assert repositories.head("code") == before and "refs/for/master/one" in refs(repositories)
    assert (await landed(git, state, change(commit, "one"))).ok, "where nobody asks for it, it lands"


@pytest.mark.parametrize("deletes", ["allowed", "denied"])
@pytest.mark.parametrize("what", [APPROVED, "refs/for/master/one"])
async def test_the_server_itself_refuses_a_change_that_is_withdrawn_during_the_push(
    repositories: Repositories, what: str, deletes: str
) -> None:
    """The ref disappears once the push has begun, so that only the server can know. On a server that lets nobody
    delete a ref, it disappears when the first push is refused."""
    commit = repositories.propose("code", "one", {"c": "x\n"})
    repositories.approve("code", "one")
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    before = repositories.head("code")
    if deletes == "denied":
        hook(repositories, "update", "case $1 in refs/for/*) exit 1 ;; esac")
    hook(repositories, "pre-receive", f"unset GIT_QUARANTINE_PATH; git update-ref -d {what}")
    answer = await landed(git, state, change(commit, "one"), approved=True)
    assert not answer.ok and not answer.moved and "was withdrawn" in answer.error
    assert repositories.head("code") == before and "It passed." not in repositories.note("code", commit)


async def test_a_deleted_branch_is_reported(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    run_git("update-ref", "-d", "refs/heads/master", at=repositories.hub / "code")
    answer = await landed(git, state, change(commit, "one"))
    assert (answer.ok, answer.moved, answer.error) == (False, False, "the branch master is gone")


async def test_a_refused_push_gives_the_servers_reason(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    hook(repositories, "pre-receive", "echo 'not on a friday' >&2; printf 'a\\033[31m\\n' >&2; exit 1")
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    answer = await landed(git, state, change(commit, "one"))
    assert not answer.ok and not answer.moved and "pre-receive hook declined" in answer.error
    assert "The git server says:\n  not on a friday\n  a\ufffd[31m" in answer.error


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("refused", ["refs/for", "refs/approved", "refs/notes"])
async def test_a_change_lands_even_if_the_server_refuses_to_delete_its_refs(
    repositories: Repositories, refused: str, atomic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not atomic:
        not_atomic(repositories)
    commit = repositories.propose("code", "one", {"c": "x\n"})
    repositories.approve("code", "one")
    hook(repositories, "update", f'case "$1" in {refused}/*) echo "not yours" >&2; exit 1;; esac')
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    assert (await landed(git, state, change(commit, "one"))).ok
    assert repositories.head("code") == state.merged[PROJECT]["master"]
    assert "has landed, but the remote refuses the notes or deletions that follow: the push was refused" in caplog.text


async def test_a_landing_waits_for_a_repository_that_is_down(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    hub = repositories.hub / "code"
    hub.rename(repositories.root / "away")
    request = LandRequest("b", state, change(commit, "one"), state.merged[PROJECT]["master"], "It passed.", "gate")
    with pytest.raises(Unreachable, match="cannot be reached"):
        await git.do(request)
    with pytest.raises(Unreachable):
        await merged(git, item(commit, "one"))
    (repositories.root / "away").rename(hub)
    assert (await git.do(request)) == LandAnswer("b", True)


async def test_nothing_lands_from_a_closed_queue_except_a_push_sent_before(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git, before = engine(repositories), repositories.head("code")
    state = await state_of(git, item(commit, "one"))
    tested = state.merged[PROJECT]["master"]
    request = LandRequest("b", state, change(commit, "one"), tested, "It passed.", "gate", shut=True)
    assert await git.do(request) == LandAnswer("b", False, shut=True)
    assert repositories.head("code") == before and "refs/for/master/one" in refs(repositories)
    assert repositories.note("code", commit) == ""
    hub, copy = str(repositories.hub / "code"), git.mirror(PROJECT, "local").path
    run_git("push", "-q", hub, f"{tested}:refs/heads/master", at=copy)
    assert await git.do(request) == LandAnswer("b", True), "the answer to the push was lost"
    assert "It passed." in repositories.note("code", commit)


async def test_a_merger_whose_copy_was_removed_makes_another(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    state = await state_of(git, item(commit, "one"))
    shutil.rmtree(git.mirror(PROJECT, "local").path)
    assert (await landed(git, state, change(commit, "one"))).ok


# --- notes


async def test_reports_of_two_pipelines_stand_side_by_side(repositories: Repositories) -> None:
    commit = repositories.propose("code", "one", {"c": "x\n"})
    git = engine(repositories)
    for pipeline, note in (("check", "first"), ("gate", "second"), ("check", "third")):
        await reported(git, commit, pipeline, note)
    note = repositories.note("code", commit)
    assert "first" not in note and "Headgate (check):\nthird" in note and "Headgate (gate):\nsecond" in note
    before = run_git("rev-parse", "refs/notes/headgate", at=repositories.hub / "code")
    await reported(engine(repositories, "other"), commit, "check", "third")
    assert run_git("rev-parse", "refs/notes/headgate", at=repositories.hub / "code") == before


@pytest.mark.parametrize("cuts", [(), (2,), (2, 4)], ids=["flat", "two levels", "three levels"])
async def test_notes_may_be_in_the_directories_that_git_makes(
    repositories: Repositories, cuts: tuple[int, ...]
) -> None:
    """git moves notes into more levels of directories as their number grows."""
    commit = repositories.propose("code", "one", {"c": "x\n"})
    names = [commit, *(f"{number * 7919:040x}"[::-1] for number in range(1, 300))]
    paths = ("/".join(name[a:b] for a, b in zip((0, *cuts), (*cuts, 40), strict=True)) for name in names)
    lines = "".join(f"M 100644 :1 {path}\n" for path in paths)
    head = "commit refs/notes/headgate\ncommitter A <a@b> 1 +0000\ndata 0\n"
    stream = f"blob\nmark :1\ndata 6\nwords\n\n{head}{lines}\n"
    await asyncio.to_thread(imported, repositories, stream)
    await reported(engine(repositories), commit, "check", "It passed.")
    assert repositories.note("code", commit) == "words\n\nHeadgate (check):\nIt passed."
    listed = run_git("notes", "--ref=headgate", "list", at=repositories.hub / "code").splitlines()
    assert sorted(line.split()[1] for line in listed) == sorted(names)


@pytest.mark.parametrize("part", ["", "^{tree}"])
async def test_notes_that_this_machine_cannot_read_are_not_replaced(repositories: Repositories, part: str) -> None:
    commit, git = repositories.propose("code", "one", {"a": "x\n"}), engine(repositories)
    assert (await landed(git, await state_of(git, item(commit, "one")), change(commit, "one"))).ok
    bare = repositories.hub / "code"
    notes = run_git("rev-parse", NOTES, at=bare)
    damaged = run_git("rev-parse", f"{notes}{part}", at=bare)
    stored = bare / "objects" / damaged[:2] / damaged[2:]
    stored.chmod(0o644)
    stored.write_bytes(b"damaged")
    with pytest.raises(GitImpossible):
        tree_of(MirrorRepository(bare, Remote("")), notes)


async def test_many_notes_make_no_note_large(repositories: Repositories) -> None:
    commits = [repositories.propose("code", f"t{n}", {"c": f"{n}\n"}) for n in range(3)]
    git = engine(repositories)
    for number, commit in enumerate(commits):
        await git.do(ReportRequest(change(commit, f"t{number}"), "check", "It passed."))
    listed = run_git("ls-tree", "refs/notes/headgate", at=repositories.hub / "code")
    assert {line.split("\t")[1] for line in listed.splitlines()} == {commit[:2] for commit in commits}
