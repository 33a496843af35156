"""Test how long is left of jobs, of items, and of items that rest on others."""

from __future__ import annotations

from headgate.web.shapes import ItemShape, JobShape, QueueShape
from headgate.web.status import timed_queue

NOW_MS = 1_000_000


def item(id: str, ahead: str | None, *jobs: JobShape) -> ItemShape:
    return ItemShape(
        id=id, active=True, live=True, refs=(), zuul_ref="", item_ahead=ahead, items_behind=(), failing_reasons=(),
        enqueue_time=0, jobs=jobs,
    )  # fmt: skip


def running(name: str, since_s: float, usual_s: float | None) -> JobShape:
    return JobShape(name=name, running=True, start_time=since_s, estimated_time=usual_s)


def test_an_item_has_no_less_left_than_the_one_ahead_of_it() -> None:
    slow = item("slow", None, running("long", 990, 70), running("short", 990, 20))
    quick = item("quick", "slow", running("short", 995, 15))
    unknown = item("unknown", "quick", running("new", 995, None))
    alone = item("alone", None, running("short", 995, 15))
    queue = QueueShape(name="q", branch=None, window=0, heads=((slow, quick, unknown), (alone,)))
    chain, (one,) = timed_queue(queue, NOW_MS).heads
    assert [found.remaining_time for found in chain] == [60_000, 60_000, None]
    assert one.remaining_time == 10_000
    assert [job.remaining_time for job in chain[0].jobs] == [60_000, 10_000], "of a job alone"
    assert [job.elapsed_time for job in chain[0].jobs] == [10_000, 10_000]
