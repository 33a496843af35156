"""Test tags and other refs of a repository: when they are reported, what their jobs run on, where their results are
noted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.gate.rules.refs import update
from headgate.gate.state.change import ZEROS, Change, EventKind, TriggerEvent
from headgate.gate.state.works import MergeAnswer, MergeRequest, RefAt, ReportRequest
from headgate.testing.repositories import Repositories, run_git
from tests.waiting import nothing_happens

from .words import PROJECT, change, engine, item, landed, push_past_the_gate, state_of, watching


def pushed(repositories: Repositories, *specs: str) -> None:
    run_git("push", "-q", "-f", "origin", *specs, at=repositories.work("code"))


def tagged(repositories: Repositories, name: str, *words: str, of: str = "HEAD") -> str:
    """Push a ref, and return what it names."""
    run_git("tag", "-f", *words, name, of, at=repositories.work("code"))
    pushed(repositories, f"refs/tags/{name}")
    return run_git("rev-parse", f"refs/tags/{name}", at=repositories.hub / "code")


def updates(events: list[TriggerEvent]) -> list[tuple[str, str, str]]:
    return [(one.change.ref, one.change.old_commit, one.change.commit) for one in events]


async def test_creating_moving_and_deleting_a_tag_each_cause_an_event(repositories: Repositories) -> None:
    head = repositories.head("code")
    async with watching(repositories, poll_interval_s=3600) as seen:
        await seen.next()
        one = tagged(repositories, "v1", "-m", "One.")
        made = await seen.until(EventKind.REF_UPDATED)
        assert (made.ref, made.tag, made.branch, made.old_commit, made.commit) == ("refs/tags/v1", "v1", "", ZEROS, one)
        two = tagged(repositories, "v1")
        assert two == head != one
        again = await seen.until(EventKind.REF_UPDATED)
        assert (again.old_commit, again.commit) == (one, two)
        pushed(repositories, ":refs/tags/v1")
        gone = await seen.until(EventKind.REF_UPDATED)
        assert (gone.old_commit, gone.commit, gone.deletes) == (two, ZEROS, True)
        pushed(repositories, "HEAD:refs/deploy/site")
        other = await seen.until(EventKind.REF_UPDATED)
        assert (other.ref, other.tag, other.branch, other.commit) == ("refs/deploy/site", "", "", head)


async def test_refs_at_the_first_poll_start_nothing_and_later_moves_do(
    repositories: Repositories,
) -> None:
    one = tagged(repositories, "old", "-m", "One.")
    async with watching(repositories) as seen:
        first = await seen.next()
        assert updates(list(first.events)) == [] and first.refs == {PROJECT: {"refs/tags/old": one}}
        known = seen.refs
    two = tagged(repositories, "new")
    pushed(repositories, ":refs/tags/old")
    async with watching(repositories, refs=known) as seen:
        sighting = await seen.next()
        assert updates(list(sighting.events)) == [("refs/tags/new", ZEROS, two), ("refs/tags/old", one, ZEROS)]
        assert sighting.refs == {PROJECT: {"refs/tags/new": two, "refs/tags/old": ""}}


async def test_proposals_approvals_and_notes_are_no_updates_of_refs(repositories: Repositories) -> None:
    async with watching(repositories) as seen:
        await seen.next()
        commit = repositories.propose("code", "one", {"c": "x\n"})
        repositories.approve("code", "one")
        await seen.until(EventKind.APPROVED)
        assert (await seen.git.do(ReportRequest(change(commit, "one"), "check", "It passed."))).ok
        pushed(repositories, "HEAD:refs/approvals/ada/master/one")
        last = tagged(repositories, "last")
        update = await seen.until(EventKind.REF_UPDATED)
        assert (update.ref, update.commit) == ("refs/tags/last", last)
        assert seen.refs == {PROJECT: {"refs/tags/last": last}}


async def test_unprintable_or_too_long_names_start_nothing_and_are_reported(
    repositories: Repositories,
) -> None:
    async with watching(repositories) as seen:
        await seen.next()
        strange = ["v-\u202edne", "v-\u0085", "/".join(["long"] * 60)]
        fine = ["v;$(rm-rf.)'\"<b>", "größe", "a)b(c", "v1.0+é"]
        head = repositories.head("code")
        lines = "".join(f"create refs/tags/{name}\0{head}\0" for name in (*strange, *fine))
        write(repositories, lines)
        found = {(await seen.until(EventKind.REF_UPDATED)).tag for _ in fine}
        assert found == set(fine)
        problem = await seen.until_problem("characters that cannot be shown; it starts no jobs")
        assert "has more than 250 bytes; it starts no jobs" in problem


def write(repositories: Repositories, lines: str) -> None:
    at = repositories.hub / "code"
    subprocess.run(["git", "update-ref", "--stdin", "-z"], cwd=at, input=lines, text=True, check=True)


async def test_very_many_concurrent_updates_are_handled_poll_by_poll_each_once(repositories: Repositories) -> None:
    head = repositories.head("code")
    async with watching(repositories) as seen:
        await seen.next()
        write(repositories, "".join(f"create refs/tags/t{n}\0{head}\0" for n in range(1200)))
        looks = 0
        while len(seen.refs.get(PROJECT, {})) < 1200:
            sighting = await seen.next()
            looks += 1
            assert len(sighting.events) <= 500
        names = [one.change.tag for one in seen.events]
        assert sorted(names) == sorted(f"t{n}" for n in range(1200)) and looks <= 6


async def test_a_landed_change_causes_one_merge_event_whoever_landed_it(repositories: Repositories) -> None:
    async with watching(repositories) as seen:
        commit = repositories.propose("code", "one", {"c": "x\n"})
        one = await seen.until(EventKind.PROPOSED)
        state = await state_of(seen.git, item(commit, "one"))
        seen.known[one.key] = replace(seen.known[one.key], open=False, landed=True, untold=True)  # as a turn records it
        assert (await landed(seen.git, state, change(commit, "one"))).ok
        merged = await seen.until(EventKind.MERGED)
        assert (merged.topic, merged.branch, merged.commit) == ("one", "master", commit)
        assert not seen.known[one.key].untold
        direct = repositories.propose("code", "two", {"d": "x\n"})
        await seen.until(EventKind.PROPOSED)
        pushed(repositories, f"{direct}:refs/heads/master")
        assert (await seen.until(EventKind.MERGED)).topic == "two"
        pushed(repositories, ":refs/for/master/two")
        push_past_the_gate(repositories, {"e": "x\n"})
        while repositories.head("code") != seen.heads[PROJECT]["refs/heads/master"]:
            await seen.next()
        await nothing_happens(lambda: EventKind.MERGED in {event.kind for event in seen.events}, for_s=0.2)


# --- what the jobs run on


async def prepared(
    repositories: Repositories, ref: str, commit: str, old: str = "", *, held: bool = False
) -> MergeAnswer:
    git = engine(repositories)
    at = RefAt("i", PROJECT, "local", ref, commit, old, held)
    answer = await git.do(MergeRequest("b", (), {PROJECT: "local"}, at=at))
    assert isinstance(answer, MergeAnswer)
    return answer


@pytest.mark.long
async def test_a_tag_is_on_the_branches_that_have_its_commit(repositories: Repositories) -> None:
    first = repositories.head("code")
    pushed(repositories, f"{first}:refs/heads/stable", f"{first}:refs/heads/old")
    second = push_past_the_gate(repositories, {"c": "x\n"})
    for n in range(60):  # farther than a few steps
        run_git("commit", "-q", "--allow-empty", "-m", str(n), at=repositories.work("code"))
    pushed(repositories, "HEAD:refs/heads/master")
    run_git("checkout", "-q", second, at=repositories.work("code"))
    tag = tagged(repositories, "v1", "-m", "One.")
    pushed(repositories, f"{second}:refs/heads/stable")
    answer = await prepared(repositories, "refs/tags/v1", tag)
    assert answer.ok and answer.state is not None, answer.error
    assert answer.state.containing == ("master", "stable")
    assert answer.state.heads[PROJECT]["refs/tags/v1"] == tag
    nested = tagged(repositories, "v2", "-m", "Of a tag.", of="v1")
    again = await prepared(repositories, "refs/tags/v2", nested)
    assert again.state is not None and again.state.containing == ("master", "stable"), again.error


async def test_the_jobs_of_a_branch_update_run_on_its_commit_even_if_the_branch_has_moved_on(
    repositories: Repositories,
) -> None:
    first, second = repositories.head("code"), push_past_the_gate(repositories, {"c": "x\n"})
    answer = await prepared(repositories, "refs/heads/master", first, ZEROS)
    assert answer.state is not None and answer.state.heads[PROJECT] == {"refs/heads/master": first}
    gone = await prepared(repositories, "refs/heads/other", ZEROS, second)
    assert gone.state is not None and gone.state.heads[PROJECT] == {"refs/heads/master": second}


async def test_refs_without_a_commit_or_that_cannot_be_fetched_are_reported(repositories: Repositories) -> None:
    work = repositories.work("code")
    blob = run_git("hash-object", "-w", "a", at=work)
    tree = run_git("rev-parse", "HEAD^{tree}", at=work)
    nothing = "instead of a commit: there is nothing to run jobs on"
    for name, object in (("blob", blob), ("tree", tree)):
        pushed(repositories, f"{object}:refs/tags/{name}")
        answer = await prepared(repositories, f"refs/tags/{name}", object)
        assert not answer.ok and answer.blame == "i"
        assert answer.error == f"refs/tags/{name} names a {name}, {object}, {nothing}"
    tag = tagged(repositories, "of-blob", "-m", "One.", of=blob)
    assert f"names a blob, {blob}" in (await prepared(repositories, "refs/tags/of-blob", tag)).error
    old = run_git("commit-tree", "-m", "lost", tree, at=work)
    pushed(repositories, f"{old}:refs/tags/moved")
    pushed(repositories, "HEAD:refs/tags/moved")
    answer = await prepared(repositories, "refs/tags/moved", old)
    assert not answer.ok and f"refs/tags/moved no longer names {old}" in answer.error
    deep = repositories.head("code")
    for n in range(60):
        lines = f"object {deep}\ntype {'tag' if n else 'commit'}\ntag d\ntagger A <a@b> 0 +0000\n\nd\n"
        (work / "tag").write_text(lines)
        deep = run_git("hash-object", "-t", "tag", "-w", "tag", at=work)
    pushed(repositories, f"{deep}:refs/tags/deep")
    assert (
        "a tag of a tag, and so on, more than 50 times" in (await prepared(repositories, "refs/tags/deep", deep)).error
    )


async def test_a_commit_named_by_hand_must_be_contained_in_its_ref(repositories: Repositories) -> None:
    first = repositories.head("code")
    push_past_the_gate(repositories, {"c": "x\n"})
    proposed = repositories.propose("code", "evil", {"d": "x\n"})
    tag = tagged(repositories, "v1")
    for ref, commit, good in (
        ("refs/heads/master", first, True),
        ("refs/heads/master", proposed, False),
        ("refs/heads/nowhere", first, False),
        ("refs/tags/v1", tag, True),
        ("refs/tags/v1", first, False),
        ("refs/deploy/x", first, False),
    ):
        answer = await prepared(repositories, ref, commit, held=True)
        assert answer.ok is good, (ref, commit, answer.error)
        assert good or f"{commit} is not in {ref}; somebody with the permission enqueue-unapproved" in answer.error


async def test_a_work_tree_of_a_tag_has_it_and_is_on_no_branch(repositories: Repositories, tmp_path: Path) -> None:
    first = repositories.head("code")
    tag = tagged(repositories, "v1", "-m", "One.")
    push_past_the_gate(repositories, {"c": "x\n"})
    answer = await prepared(repositories, "refs/tags/v1", tag)
    assert answer.state is not None
    git, dest = engine(repositories, "another"), tmp_path / "tree"
    assert "refs/tags/v1" in await git.branches(answer.state, PROJECT)
    done = await git.checkout(answer.state, PROJECT, "refs/tags/v1", dest)
    assert done.commit == first == run_git("rev-parse", "HEAD", at=dest)
    assert run_git("describe", "--exact-match", at=dest) == "v1"
    assert run_git("rev-parse", "refs/tags/v1", at=dest) == tag
    assert run_git("status", "--porcelain", "--branch", at=dest) == "## HEAD (no branch)"
    assert not (dest / "c").exists()


async def test_the_note_of_a_ref_is_on_its_commit_a_section_for_each(repositories: Repositories) -> None:
    head = repositories.head("code")
    git, one, two = engine(repositories), tagged(repositories, "v1", "-m", "One."), tagged(repositories, "v2")

    async def report_note(ref: str, commit: str, note: str, before: str = "") -> None:
        of: Change = update("local", PROJECT, ref, before, commit)
        answer = await git.do(ReportRequest(of, "release", note))
        assert answer.ok, answer.error  # type: ignore[union-attr]

    await report_note("refs/tags/v1", one, "First.")
    await report_note("refs/tags/v2", two, "Other.\nHeadgate (gate):\nLanded on master as " + "0" * 40)
    await report_note("refs/tags/v1", one, "Second.")
    note = repositories.note("code", head)
    assert note.startswith("Headgate (release, refs/tags/v2):\nOther.\n  Headgate (gate):\n  Landed on master as 0")
    assert note.endswith("Headgate (release, refs/tags/v1):\nSecond.")
    pushed(repositories, ":refs/tags/v1")
    await report_note("refs/tags/v1", ZEROS, "It is gone.", one)
    assert "It is gone." in repositories.note("code", head)


@pytest.mark.parametrize("words", [("-m", "One."), ()])
async def test_a_tag_deleted_and_created_again_between_two_polls_counts_as_unchanged(
    repositories: Repositories, words: tuple[str, ...]
) -> None:
    tag = tagged(repositories, "v1", *words)
    async with watching(repositories, poll_interval_s=3600) as seen:
        await seen.next()
        pushed(repositories, ":refs/tags/v1")
        pushed(repositories, f"{tag}:refs/tags/v1")
        tagged(repositories, "last")
        updates = [await seen.until(EventKind.REF_UPDATED)]
        while updates[-1].tag != "last":
            updates.append(await seen.until(EventKind.REF_UPDATED))
        assert [one.commit for one in updates if one.tag == "v1"] in ([], [ZEROS, tag])
