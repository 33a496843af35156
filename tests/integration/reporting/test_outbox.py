"""Test the outbox of a connection: in order per change, repeated, stored and shown, bounded, and never blocking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec.structs import replace

from headgate.base.tasks import run_until
from headgate.gate.state.returns import FileComment
from headgate.map.check import check
from headgate.map.outbox import LONG_MAX_BYTES, SHORT_MAX_BYTES, OutboxMessage, ReportedBuild, fitted
from headgate.map.places import Map
from headgate.map.records import RepositoryProblem
from headgate.map.trees import StoreTree
from headgate.ports.reporter import ReporterAway, ReportPutOff, ReportRefused
from headgate.recipes.mirror import Mirror
from headgate.services import courier
from headgate.services.context import WAITING_MAX, Context, ProcessSettings
from headgate.services.courier import Courier, outbox, outboxes, wanted
from headgate.services.membership import serve
from headgate.services.quarantine import Quarantine
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from tests.waiting import until

from .reports import REPORT, outbox_message

TO = "mail"


@dataclass(slots=True)
class Taker:
    """Imitate a receiver of reports that may refuse them."""

    says: Callable[[OutboxMessage], Exception | None] = lambda _: None
    taken: list[str] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)

    async def tell(self, outgoing: OutboxMessage) -> None:
        await asyncio.sleep(0)
        self.tried.append(outgoing.key)
        if (error := self.says(outgoing)) is not None:
            raise error
        self.taken.append(outgoing.key)


@dataclass(slots=True)
class CourierGround:
    """Run a connection with its courier."""

    context: Context
    backend: MemoryBackend
    taker: Taker
    stop: asyncio.Event

    async def report(self, *messages: OutboxMessage) -> None:
        for one in messages:
            if ops := self.context.reported(TO, one):
                written = await self.context.store.commit([], ops)
                await self.context.mirror.reached(written[0].path)  # type: ignore[union-attr]  # it was put

    @property
    def waiting(self) -> int:
        return outbox(self.context, TO).waiting

    @property
    def aside(self) -> list[str]:
        return [f"{one.what}: {one.error}" for one in Quarantine(self.context).all().values()]


@asynccontextmanager
async def ground(with_courier: bool = True, waiting_max: int = WAITING_MAX) -> AsyncIterator[CourierGround]:
    backend, stop, taker = MemoryBackend(), asyncio.Event(), Taker()
    store = Store(backend)
    settings = ProcessSettings(waiting_max=waiting_max)
    context = Context(store, Mirror(store, "/zuul"), lambda: REPORT.at_ms + 1_000, settings)
    works = [serve(context, "web", Courier(context, TO, taker).run, stop)] if with_courier else []
    task = asyncio.ensure_future(run_until(stop, context.mirror.run(), *works))
    await context.mirror.ready()
    try:
        yield CourierGround(context, backend, taker, stop)
        found = check(list(backend.tree.under("/zuul")), [StoreTree("/zuul", Map)])
        assert not found.unknown and not found.undecodable, found.text()
    finally:
        stop.set()
        await task


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)


def of(change: str, key: str, **more: object) -> OutboxMessage:
    return outbox_message(key, change=f"{change},11111111", id=key, **more)


async def test_a_limit_of_one_project_delays_no_other() -> None:
    async with ground() as found:
        limited = [ReporterAway("its limit is reached", 3_000, alone=True)]
        found.taker.says = lambda one: limited[0] if limited and one.report.project == "busy" else None
        await found.report(*(of(f"{n}", f"busy{n}", project="busy") for n in range(3)))
        await found.report(*(of(f"{n}", f"calm{n}", project="calm") for n in range(3)))
        await until("those of the calm project are told", lambda: found.waiting == 3)
        assert found.taker.taken == ["calm0", "calm1", "calm2"]
        assert sum(key.startswith("busy") for key in found.taker.tried) <= courier.AT_ONCE_MAX
        await until(
            "it is shown what the busy one waits for",
            lambda: "its limit is reached" in str(outbox(found.context, TO).problem),
        )
        limited.clear()
        await found.context.store.commit([], wanted(found.context, TO, "retry"))
        await until("all are told", lambda: not found.waiting and outbox(found.context, TO).problem is None)


async def test_reports_of_one_change_are_sent_in_order_and_in_parallel_to_others() -> None:
    async with ground() as found:
        await found.report(*(of(change, f"{change}{n}") for n in range(5) for change in "abc"))
        await until("all are told", lambda: not found.waiting)
    for change in "abc":
        assert [key for key in found.taker.taken if key[0] == change] == [f"{change}{n}" for n in range(5)]
    assert len(found.taker.tried) == 15


async def test_while_a_server_is_down_reports_wait_with_the_reason_and_none_is_lost() -> None:
    async with ground() as found:
        found.taker.says = lambda _: ReporterAway("nobody answers at mail.example:25")
        await found.report(of("a", "a1"), of("b", "b1"))
        await until("it is shown that the server is away", lambda: outbox(found.context, TO).problem)
        shown = outbox(found.context, TO)
        assert shown.problem == RepositoryProblem(REPORT.at_ms + 1_000, "nobody answers at mail.example:25")
        assert (shown.waiting, shown.oldest_ms) == (2, REPORT.at_ms)
        found.taker.says = lambda _: None
        await until("all are told", lambda: not found.waiting and outbox(found.context, TO).problem is None)
    assert sorted(found.taker.taken) == ["a1", "b1"]


async def test_a_postponed_report_delays_only_its_own_change() -> None:
    later = True
    async with ground() as found:
        found.taker.says = lambda one: ReportPutOff("greylisted") if later and one.key == "a1" else None
        await found.report(of("a", "a1"), of("a", "a2"), of("b", "b1"))
        await until(
            "the other is told and the first tried again",
            lambda: found.waiting == 2 and found.taker.tried.count("a1") > 1,
        )
        assert found.taker.taken == ["b1"] and outbox(found.context, TO).problem is None
        later = False
        await until("all are told", lambda: not found.waiting)
    assert found.taker.taken == ["b1", "a1", "a2"]


async def test_an_unanswered_report_delays_only_its_own_change() -> None:
    async with ground() as found:
        found.taker.says = lambda one: ReporterAway("it answers 502") if one.key == "a1" else None
        await found.report(of("a", "a1"), *(of(f"{n}", f"other{n}") for n in range(9)), of("b", "b1"))
        await until("the other changes are told", lambda: found.waiting == 1)
        assert "a1" not in found.taker.taken and len(found.taker.taken) == 10
        await found.report(of("c", "c1"))
        await until(
            "a new one is told, and nothing is shown",
            lambda: "c1" in found.taker.taken and outbox(found.context, TO).problem is None,
        )
        found.taker.says = lambda _: None
        await until("all are told", lambda: not found.waiting)
    assert found.taker.taken[-1] == "a1" and not found.aside


async def test_a_report_postponed_for_a_day_and_one_that_raises_are_quarantined() -> None:
    async with ground() as found:
        found.taker.says = lambda one: ReportPutOff("full") if one.key == "a1" else RuntimeError("a defect")
        await found.report(of("a", "a1", at_ms=REPORT.at_ms - courier.PUT_OFF_MAX_MS - 2_000), of("b", "b1"))
        await until("both are set aside", lambda: not found.waiting)
    assert sorted(text.rpartition(": ")[2] for text in found.aside) == ["a defect", "full"]
    assert found.taker.tried.count("b1") == 3


async def test_an_undeliverable_report_is_stored_listed_and_sent_again_on_request() -> None:
    async with ground() as found:
        found.taker.says = lambda _: ReportRefused("550 no such user")
        await found.report(of("a", "a1"), of("b", "b1"))
        await until("both are refused", lambda: len(found.aside) == 2 and not found.waiting)
        why = "of git.example/code/api in gate: 550 no such user"
        assert sorted(found.aside) == [f"the report to mail: failure of {c},11111111 {why}" for c in "ab"]
        found.taker.says = lambda _: None
        quarantine = Quarantine(found.context)
        retried, dropped = sorted(quarantine.all(), key=lambda id: quarantine.all()[id].what)
        await quarantine.retry(retried)
        await quarantine.drop(dropped)
        await until("the one that is tried again is told", lambda: found.taker.taken and not found.waiting)
        assert found.taker.taken == ["a1"] and not found.aside


async def test_people_can_retry_all_reports_immediately_or_drop_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 1_000.0)
    async with ground() as found:
        found.taker.says = lambda _: ReporterAway("away")
        await found.report(*(of("a", f"a{n}") for n in range(3)))
        await until("the first is tried", lambda: found.taker.tried)
        for count in (2, 3):
            await found.context.store.commit([], wanted(found.context, TO, "retry"))
            await until("all are tried", lambda: len(found.taker.tried) >= count)  # noqa: B023  # waited for at once
        await found.report(*(of("b", f"b{n}") for n in range(courier.DROPPED_MAX + 5)))
        await found.context.store.commit([], wanted(found.context, TO, "drop"))
        await until("all are dropped", lambda: not found.waiting)
        await found.report(of("c", "c1"))
        found.taker.says = lambda _: None
        await found.context.store.commit([], wanted(found.context, TO, "retry"))
        await until("the new one is told", lambda: not found.waiting)
    assert found.taker.taken == ["c1"]


@pytest.mark.long
async def test_ten_thousand_reports_to_a_dead_server_are_bounded_and_finally_sent() -> None:
    fields = {
        "message": "x" * 50_000,
        "builds": tuple(ReportedBuild(job=f"j{n}", build="b", attempt=1) for n in range(300)),
    }
    async with ground(with_courier=False, waiting_max=1_200) as found:
        for number in range(1_300):
            ops = found.context.reported(TO, of(f"c{number}", f"k{number}", **fields))
            if ops:
                await found.context.store.commit([], ops)
                await asyncio.sleep(0)
        await until("as many wait as may", lambda: found.waiting == 1_200)
        sizes = [len(e.value) for e in found.backend.tree.under(found.context.map.reports(TO).data.path)]
        assert len(sizes) == 1_200 and max(sizes) <= LONG_MAX_BYTES and sorted(sizes)[150] <= SHORT_MAX_BYTES
        assert [one.connection for one in outboxes(found.context)] == [TO]


def test_a_truncated_report_still_contains_the_result_of_the_change() -> None:
    comments = {"a.py": (FileComment("no", 1),) * 500}
    builds = tuple(ReportedBuild(job="j" * 100, build="b", attempt=1, error="e" * 2_000) for _ in range(1_000))
    large = OutboxMessage("", replace(REPORT, comments=comments, builds=builds, message="\u202e" * 50_000), key="k")
    for most in (LONG_MAX_BYTES, SHORT_MAX_BYTES):
        cut = fitted(large, most)
        assert len(msgspec.json.encode(cut.report)) <= most
        assert (cut.report.result, cut.report.change, cut.key) == (REPORT.result, REPORT.change, "k")
    assert fitted(outbox_message(), SHORT_MAX_BYTES) == outbox_message()
