"""Test changes built on other changes: what a poll finds of them, and how they merge in every mode."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import EventKind
from headgate.testing.repositories import Repositories, run_git

from .words import PROJECT, change, engine, item, landed, merged, push_past_the_gate, refs, state_of, watching

MODES = ("merge", "squash-merge", "cherry-pick", "rebase")


def on_top(repositories: Repositories, topic: str, files: Mapping[str, str], branch: str = "master") -> str:
    """Propose a change built on the last proposed one; return its commit."""
    work = repositories.work("code")
    repositories.write("code", files)
    run_git("commit", "-q", "-m", topic, at=work)
    run_git("push", "-q", "-f", "origin", f"HEAD:refs/for/{branch}/{topic}", at=work)
    return run_git("rev-parse", "HEAD", at=work)


def key(topic: str) -> str:
    return f"{PROJECT}/master/{topic}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("landed_first", [False, True])
async def test_a_stack_lands_in_every_mode(repositories: Repositories, mode: str, landed_first: bool) -> None:
    """Both change the same line, which can be merged only if the first counts as merged."""
    lower = repositories.propose("code", "lower", {"line": "one\n"})
    upper = on_top(repositories, "upper", {"line": "two\n", "more": "x\n"})
    git = engine(repositories)
    first, second = item(lower, "lower", mode), replace(item(upper, "upper", mode), bases=(lower,))
    if landed_first:
        push_past_the_gate(repositories, {"beside": "x\n"})
        assert (await landed(git, await state_of(git, first), change(lower, "lower"))).ok
        state = await state_of(git, second)
    else:
        state = await state_of(git, first, second)
        below = replace(state, chain=(first,), merged=(await state_of(git, first)).merged)
        assert (await landed(git, below, change(lower, "lower"))).ok
    assert (await landed(engine(repositories, "other"), state, change(upper, "upper"))).ok
    assert repositories.show("code", "line") == "two" and repositories.show("code", "more") == "x"
    assert not [ref for ref in refs(repositories) if "upper" in ref or "lower" in ref]
    commits = run_git("log", "--format=%s", "--first-parent", "master", at=repositories.hub / "code").splitlines()
    assert len([subject for subject in commits if "upper" in subject]) == 1
    assert len([subject for subject in commits if "lower" in subject]) == 1, "it is not there twice"


async def test_a_claimed_base_that_is_no_ancestor_is_ignored(repositories: Repositories) -> None:
    other = repositories.propose("code", "other", {"c": "x\n"})
    commit = repositories.propose("code", "one", {"d": "x\n"})
    git = engine(repositories)
    for base in (other, "1" * 40, commit):
        answer = await merged(git, replace(item(commit, "one", "squash-merge"), bases=(base,)))
        assert answer.ok, answer.error


async def test_a_change_needs_the_changes_that_it_is_built_on(repositories: Repositories) -> None:
    repositories.propose("code", "one", {"a": "1\n"})
    on_top(repositories, "two", {"b": "1\n"})
    on_top(repositories, "three", {"c": "1\n"})
    repositories.propose("code", "apart", {"d": "1\n"})
    async with watching(repositories) as watch:
        while len(watch.known) < 4:
            await watch.next()
        needs = {topic: watch.known[key(topic)].change.needs for topic in ("one", "two", "three", "apart")}
    assert needs == {"one": (), "two": (key("one"),), "three": (key("two"),), "apart": ()}


async def test_a_base_may_be_proposed_after_the_change_built_on_it_and_be_withdrawn_again(
    repositories: Repositories,
) -> None:
    lower = repositories.propose("code", "lower", {"a": "1\n"})
    upper = on_top(repositories, "upper", {"b": "1\n"})
    repositories.abandon("code", "lower")
    async with watching(repositories) as watch:
        await watch.until(EventKind.PROPOSED)
        assert watch.known[key("upper")].change.needs == ()
        run_git("push", "-q", "origin", f"{lower}:refs/for/master/lower", at=repositories.work("code"))
        while not watch.known[key("upper")].change.needs:
            await watch.next()
        assert watch.known[key("upper")].change.bases == (key("lower"),)
        assert watch.known[key("upper")].change.commit == upper
        repositories.abandon("code", "lower")
        while watch.known[key("lower")].open:
            await watch.next()
        assert watch.known[key("upper")].change.needs == (key("lower"),), (
            "who approved it has not approved the lower one"
        )
        run_git("commit", "-q", "--amend", "-m", "Both as one", at=repositories.work("code"))
        run_git("push", "-q", "-f", "origin", "HEAD:refs/for/master/upper", at=repositories.work("code"))
        while watch.known[key("upper")].change.commit == upper:
            await watch.next()
        assert watch.known[key("upper")].change.bases == (), "that is another patchset"


@pytest.mark.parametrize("how", ["proposed", "landed"])
async def test_a_base_with_another_patchset_is_reported(repositories: Repositories, how: str) -> None:
    repositories.propose("code", "lower", {"evil": "x\n"})
    upper = on_top(repositories, "upper", {"b": "1\n"})
    async with watching(repositories) as watch:
        while len(watch.known) < 2:
            await watch.next()
        assert (watch.known[key("upper")].change.bases, watch.known[key("upper")].change.stale) == ((key("lower"),), ())
        repositories.write("code", {"more": "x\n"})
        work = repositories.work("code")
        run_git("checkout", "-q", "HEAD~1", at=work)
        run_git("commit", "-q", "--amend", "-m", "lower, without harm", at=work)
        run_git("push", "-q", "-f", "origin", "HEAD:refs/for/master/lower", at=work)
        while not watch.known[key("upper")].change.stale:
            await watch.next()
        if how == "landed":
            run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=work)
            while not watch.known[key("lower")].landed:
                await watch.next()
        one = watch.known[key("upper")].change
        assert (one.commit, one.bases, one.stale, one.needs) == (upper, (key("lower"),), (key("lower"),), one.bases)
        run_git("cherry-pick", upper, at=work)
        run_git("push", "-q", "-f", "origin", "HEAD:refs/for/master/upper", at=work)
        while watch.known[key("upper")].change.commit == upper:
            await watch.next()
        one = watch.known[key("upper")].change
        assert (one.bases, one.stale) == ((key("lower"),) if how == "proposed" else (), ())


async def test_a_base_that_has_landed_unchanged_is_no_longer_a_dependency(repositories: Repositories) -> None:
    lower = repositories.propose("code", "lower", {"a": "x\n"})
    on_top(repositories, "upper", {"b": "1\n"})
    async with watching(repositories) as watch:
        while len(watch.known) < 2:
            await watch.next()
        push_past_the_gate(repositories, {"beside": "x\n"})
        git = engine(repositories, "merger")
        state = await state_of(git, item(lower, "lower", "merge"))
        assert (await landed(git, state, change(lower, "lower"))).ok
        while watch.known[key("lower")].open or watch.known[key("upper")].change.bases:
            await watch.next()
        assert watch.known[key("upper")].change.stale == ()


async def test_the_same_commit_for_another_branch_or_topic_is_no_base(repositories: Repositories) -> None:
    run_git("push", "-q", "origin", "HEAD:refs/heads/stable", at=repositories.work("code"))
    lower = repositories.propose("code", "lower", {"a": "1\n"})
    on_top(repositories, "upper", {"b": "1\n"})
    work = repositories.work("code")
    run_git("push", "-q", "origin", ":refs/for/master/lower", f"{lower}:refs/for/stable/lower", at=work)
    run_git("push", "-q", "origin", "HEAD:refs/for/master/again", at=work)
    async with watching(repositories) as watch:
        while len(watch.known) < 3:
            await watch.next()
        assert {change_state.change.needs for change_state in watch.known.values()} == {()}


async def test_a_base_that_landed_as_another_commit_is_still_known(repositories: Repositories) -> None:
    lower = repositories.propose("code", "lower", {"line": "one\n"})
    on_top(repositories, "upper", {"line": "two\n"})
    async with watching(repositories) as watch:
        while len(watch.known) < 2:
            await watch.next()
        push_past_the_gate(repositories, {"beside": "x\n"})
        git = engine(repositories, "merger")
        state = await state_of(git, item(lower, "lower", "squash-merge"))
        assert (await landed(git, state, change(lower, "lower"))).ok
        while watch.known[key("lower")].open:
            await watch.next()
        assert watch.known[key("lower")].landed
        assert watch.known[key("upper")].change.bases == (key("lower"),)


async def test_a_change_contained_in_its_branch_is_closed_as_landed_whoever_pushed_it(
    repositories: Repositories,
) -> None:
    commit = repositories.propose("code", "one", {"a": "1\n"})
    repositories.approve("code", "one")
    upper = on_top(repositories, "upper", {"b": "1\n"})
    async with watching(repositories) as watch:
        while len(watch.known) < 2:
            await watch.next()
        run_git("push", "-q", "origin", f"{commit}:refs/heads/master", at=repositories.work("code"))
        while watch.known[key("one")].open:
            await watch.next()
        assert watch.known[key("one")].landed and watch.known[key("upper")].open
        assert watch.known[key("upper")].change.needs == ()
        watch.events.clear()
        run_git("push", "-q", "origin", f"{upper}:refs/heads/master", at=repositories.work("code"))
        run_git("push", "-q", "origin", "HEAD:refs/for/master/late", at=repositories.work("code"))
        while not (key("late") in watch.known and watch.known[key("upper")].landed):
            await watch.next()
        late = watch.known[key("late")]
        assert late.landed and not late.open, "there is nothing in it that is not there already"
        assert not [event for event in watch.events if event.kind is EventKind.ABANDONED]
