"""Test when a listing of refs is trusted."""

from __future__ import annotations

import pytest

from headgate.adapters.git.fetch import PAUSE_MAX_S, SURE_AFTER, Refusals
from headgate.adapters.git.poll.moves import DOUBTED_S, LOST_MIN, Doubt, as_before
from headgate.adapters.git.remote import Listing, Remote
from headgate.gate.state.change import Change, ChangeState

ONE, TWO = "1" * 40, "2" * 40
HEADS = {f"refs/heads/b{n}": ONE for n in range(100)}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class StaleListing(Remote):
    """Return the same listing every time."""

    def __init__(self, refs: dict[str, str]) -> None:
        super().__init__("/nowhere")
        self._refs = refs

    async def listing_by_git(self, *names: str) -> Listing:
        return Listing(self._refs, {})


def change_state(topic: str, *, approved: str = "") -> ChangeState:
    return ChangeState(Change("c", "p", "master", topic, ONE, ref=f"refs/for/master/{topic}"), approved=approved)


@pytest.mark.parametrize("left", [{}, {"refs/for/master/x": ONE}, dict(list(HEADS.items())[:50])])
async def test_a_mass_deletion_of_refs_counts_once_git_confirms_it(left: dict[str, str]) -> None:
    clock = Clock()
    doubt = Doubt(clock)
    assert await doubt.of(StaleListing(left), left, HEADS, {}) and "reads it again" in doubt.problem
    clock.now_s += DOUBTED_S - 1
    assert await doubt.of(StaleListing(left), left, HEADS, {}), "too early"
    clock.now_s += 1
    assert await doubt.of(StaleListing(HEADS), left, HEADS, {}), "git says otherwise"
    assert not await doubt.of(StaleListing(left), left, HEADS, {}) and not doubt.problem


async def test_refs_that_return_were_never_deleted() -> None:
    clock = Clock()
    doubt = Doubt(clock)
    assert await doubt.of(StaleListing({}), {}, HEADS, {})
    assert not await doubt.of(StaleListing(HEADS), HEADS, HEADS, {})
    clock.now_s += 10 * DOUBTED_S
    assert await doubt.of(StaleListing({}), {}, HEADS, {}), "it is a doubt of its own"


async def test_a_few_branches_and_changes_go_without_a_doubt() -> None:
    left = dict(list(HEADS.items())[LOST_MIN - 1 :])
    assert not await Doubt().of(StaleListing(left), left, HEADS, {})
    assert not await Doubt().of(StaleListing({}), {}, {}, {"one": change_state("one")}), "an empty repository"


def test_an_unreadable_ref_keeps_its_last_state() -> None:
    known = {"one": change_state("one", approved=ONE), "two": change_state("two")}
    unreadable = ("refs/for/master/one", "refs/approved/master/one", "refs/heads/b1", "refs/heads/new", "refs/x/y")
    refs, misfits = as_before(Listing({}, dict.fromkeys(unreadable, "broken")), HEADS, known)
    assert refs == {"refs/for/master/one": ONE, "refs/approved/master/one": ONE, "refs/heads/b1": ONE}
    assert "refs/heads/new" in misfits.text and "refs/x/y" not in misfits.text and "broken" in misfits.text


def test_a_refused_request_is_retried_ever_more_rarely_and_finally_believed() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    assert refusals.is_due(ONE) and not refusals.why(ONE)
    for times in range(1, 12):
        refusals.add(ONE, "broken")
        assert not refusals.is_due(ONE) and refusals.is_due(TWO)
        assert refusals.is_sure(ONE) is (times >= SURE_AFTER)
        clock.now_s += PAUSE_MAX_S
        assert refusals.is_due(ONE) and refusals.why(ONE) == "broken"
