"""Test that a forge is asked to merge through its outbox: in order, again after an outage, with an answer for the
pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from headgate.base.tasks import run_until
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.works import LandAnswer, Landing, LandRequest, RepoState
from headgate.gate.state.world import Closing
from headgate.map.check import check
from headgate.map.outbox import OutboxMessage
from headgate.map.places import Map
from headgate.map.queues import TenantState
from headgate.map.trees import StoreTree
from headgate.ports.forge import Abilities, MergeLanded, NotLanded, ReporterAway, ReportPutOff, ReportRefused
from headgate.recipes.mirror import Mirror
from headgate.services import courier
from headgate.services.context import Context
from headgate.services.courier import Courier, wanted
from headgate.services.forgework import ForgeReporter
from headgate.services.membership import serve
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from tests.waiting import slow, until

from .reports import REPORT, outbox_message

TO = "hub"
PULL = Change(TO, "hub/lib", "main", commit="a" * 40, ref="refs/pull/7/head", number="7")
WORK = LandRequest("bs1", RepoState(), PULL, "b" * 40, "It passed.", pipeline="gate", queue="shared")


@dataclass(slots=True)
class Hub:
    """Imitate a forge as far as landing goes; `says` is called each time."""

    says: Callable[[int], MergeLanded | NotLanded | Exception] = lambda _: MergeLanded("c" * 40)
    done: list[str] = field(default_factory=list)
    polls: int = 0
    change_state: ChangeState | None = None
    slow: float = 0.0
    can: Abilities = field(default_factory=lambda: Abilities(lands="merge"))

    async def report(self, outgoing: OutboxMessage) -> None:
        await slow(self.slow)
        self.done.append(outgoing.key)

    async def land(self, work: LandRequest, part: Landing) -> MergeLanded | NotLanded:
        self.polls += 1
        found = self.says(self.polls)
        if isinstance(found, Exception):
            raise found
        self.done.append(f"land {part.change.key}")
        return found

    async def look_up(self, key: str) -> ChangeState | None:
        return self.change_state if self.change_state is not None and self.change_state.change.key == key else None


@dataclass(slots=True)
class LandingGround:
    context: Context
    hub: Hub

    async def ask(self, *messages: OutboxMessage) -> None:
        for one in messages:
            put = self.context.requested_of(TO, [one]) if one.land else self.context.reported(TO, one)
            written = await self.context.store.commit([], put)
            await self.context.mirror.reached(written[0].path)  # type: ignore[union-attr]  # it was put

    @property
    def answers(self) -> list[LandAnswer]:
        stream = self.context.map.events.tenant("example").pipelines("gate").result.stream
        found = [one.event for one in stream.waiting(self.context.mirror, limit=100)]
        return [one for one in found if isinstance(one, LandAnswer)]

    async def answered(self) -> LandAnswer:
        (found,) = await until("it is answered", lambda: self.answers, every_s=0.005)
        return found


@asynccontextmanager
async def ground(hub: Hub, *, with_courier: bool = True) -> AsyncIterator[LandingGround]:
    backend, stop = MemoryBackend(), asyncio.Event()
    store = Store(backend)
    context = Context(store, Mirror(store, "/zuul"), lambda: REPORT.at_ms + 1_000)
    forge = ForgeReporter(context, hub)  # type: ignore[arg-type]  # it does not watch
    works = [serve(context, "scheduler", Courier(context, TO, forge, forge).run, stop)] if with_courier else []
    task = asyncio.ensure_future(run_until(stop, context.mirror.run(), *works))
    await context.mirror.ready()
    try:
        yield LandingGround(context, hub)
        found = check(list(backend.tree.under("/zuul")), [StoreTree("/zuul", Map)])
        assert not found.unknown and not found.undecodable, found.text()
    finally:
        stop.set()
        await task


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)


def landing(key: str = "land1") -> OutboxMessage:
    one = outbox_message(
        key, change="7,aaaaaaaa", project="hub/lib", branch="main", tenant="example", pipeline="gate", id=key
    )
    return replace(one, change=PULL, land=WORK)


async def test_the_vote_goes_first_and_the_pipeline_has_the_answer() -> None:
    hub = Hub(slow=0.05)
    async with ground(hub) as found:
        vote = replace(landing("vote"), land=None)
        await found.ask(vote, landing())
        answer = await found.answered()
    assert hub.done == ["vote", "land hub/lib#7"]
    assert answer == LandAnswer("bs1", True, project="hub/lib", change="hub/lib#7", commit="c" * 40)


@pytest.mark.parametrize("error", [ReporterAway("it is down"), ReportPutOff("it is still looking")])
async def test_a_landing_is_requested_again_while_the_forge_does_not_answer(error: Exception) -> None:
    hub = Hub(lambda tries: error if tries < 3 else MergeLanded(differs=True))
    async with ground(hub) as found:
        await found.ask(landing())
        answer = await found.answered()
    assert hub.polls == 3 and answer.ok and answer.differs and not answer.commit


async def test_refusals_of_a_forge_are_reported_in_its_words() -> None:
    async with ground(Hub(lambda _: NotLanded("a review is missing"))) as found:
        await found.ask(landing())
        answer = await found.answered()
    assert not answer.ok and answer.error == "a review is missing" and not answer.moved


@pytest.mark.parametrize("error", [ReportRefused("no such account"), RuntimeError("nobody foresaw it")])
async def test_waiting_requests_get_an_answer_even_if_it_is_unavailable(error: Exception) -> None:
    async with ground(Hub(lambda _: error)) as found:
        await found.ask(landing())
        answer = await found.answered()
        assert found.context.map.reports(TO).stream.length(found.context.mirror) == 0
    assert not answer.ok and str(error) in answer.error


async def test_a_merge_is_not_polled_for_more_than_an_hour() -> None:
    async with ground(Hub(lambda _: ReportPutOff("still looking"))) as found:
        late = landing()
        await found.ask(replace(late, report=replace(late.report, at_ms=late.report.at_ms - 3_700_000)))
        answer = await found.answered()
    assert not answer.ok and "still looking" in answer.error


async def test_a_landing_that_an_operator_drops_is_answered() -> None:
    async with ground(Hub(lambda _: ReporterAway("it is down"))) as found:
        await found.ask(landing())
        await found.context.store.commit([], wanted(found.context, TO, "drop"))
        answer = await found.answered()
    assert not answer.ok and "dropped manually" in answer.error


@pytest.mark.parametrize("merged", [False, True])
async def test_a_closed_pipeline_merges_nothing_but_an_earlier_merge_has_landed(merged: bool) -> None:
    hub = Hub(change_state=ChangeState(PULL, open=not merged, landed=merged))
    async with ground(hub) as found:
        place = found.context.map.events.tenant("example").state
        state = TenantState(closings=(Closing("gate", reason="the freeze"),))
        await found.context.store.commit([], [place.put(state)])
        await found.ask(landing())
        answer = await found.answered()
    assert (answer.ok, answer.shut) == ((True, False) if merged else (False, True))
    assert hub.polls == (1 if merged else 0)


async def test_a_busy_project_does_not_delay_another() -> None:
    hub = Hub(slow=0.01)
    busy = [outbox_message(f"busy{n}", change=f"{n},1", project="hub/busy", id=f"busy{n}") for n in range(40)]
    quiet = outbox_message("quiet", change="1,1", project="hub/quiet", id="quiet")
    async with ground(hub) as found:
        await found.ask(*busy, quiet)
        await until("the quiet one is told", lambda: "quiet" in hub.done, every_s=0.005)
        assert len(hub.done) < 30
