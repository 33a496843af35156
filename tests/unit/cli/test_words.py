"""Test texts in a terminal: queues, and the program's own log."""

from __future__ import annotations

import logging

import msgspec

from headgate.cli.logs import TextFormatter
from headgate.cli.status import _pipeline, unreachable
from headgate.web.shapes import ItemShape, JobShape, PipelineShape, QueueShape, RefShape


def item(topic: str, *jobs: JobShape, live: bool = True, phase: str = "") -> ItemShape:
    ref = RefShape(
        id=topic, ref=topic, url=None, project="api", project_canonical="h/api", branch="master", topic=topic,
        subject="", owner="",
    )  # fmt: skip
    return ItemShape(
        id=topic, active=True, live=live, refs=(ref,), zuul_ref="", item_ahead=None, items_behind=(),
        failing_reasons=(), phase=phase, enqueue_time=0, jobs=jobs,
    )  # fmt: skip


def printed(*items: ItemShape, state: str = "normal") -> str:
    queue = QueueShape(name="shared", branch=None, window=20, heads=(items,))
    gate = PipelineShape(
        name="gate", description="", state=state, manager="dependent", triggers=(), trigger_events=0,
        result_events=0, management_events=0, change_queues=(queue,),
    )  # fmt: skip
    return "".join(f"{line.plain}\n" for line in unreachable(_pipeline(gate, 9), "gone").lines(120))


def test_an_item_shows_why_it_is_in_the_pipeline() -> None:
    text = printed(
        item("needed", live=False), item("own", JobShape(name="serves", paused=True)), item("new", phase="merging")
    )
    assert "needed by the change below" in text and "‖ serves" in text and "merging" in text
    assert text.startswith("gone; retrying\n")


def test_a_ref_is_shown_by_its_name_and_a_conflict_by_its_reason_alone() -> None:
    ref = RefShape(
        id="39eca47152199d88", ref="refs/heads/stable/1", url=None, project="api", project_canonical="h/api",
        branch="stable/1", topic="", subject="", owner="",
    )  # fmt: skip
    change = msgspec.structs.replace(ref, id="x,39eca471", ref="refs/for/stable/1/x", patchset="39eca47152199d88")
    nightly, failing = item("i1"), item("i2", phase="conflict")
    text = printed(
        msgspec.structs.replace(nightly, refs=(ref,)),
        msgspec.structs.replace(failing, refs=(change,), failing_reasons=("it has a merge conflict",)),
    )
    assert "api stable/1 39eca471\n" in text and "api x,39eca471  " in text
    assert "  it has a merge conflict\n" in text and "conflict  it" not in text


def test_a_pipeline_that_lands_nothing_says_so() -> None:
    assert "gate  dependent, 0 items\n" in printed()
    text = printed(state="disabled")
    assert (
        "gate  dependent, 0 items  disabled after too many failures: nothing lands until its configuration is reloaded"
        in text
    )


def line(level: int, message: str) -> str:
    record = logging.LogRecord("headgate.executor", level, "", 0, message, (), None)
    record.subject = {"tenant": "acme", "pipeline": "gate", "change": "h/p/x", "item": "i1", "build": "b1"}
    return TextFormatter().format(record).partition("executor: ")[2]


def test_a_line_does_not_say_things_twice_and_ids_only_where_something_is_wrong() -> None:
    assert line(logging.INFO, "h/p/x leaves gate") == "h/p/x leaves gate [tenant=acme]"
    assert line(logging.WARNING, "build b1: lost") == "build b1: lost [tenant=acme pipeline=gate change=h/p/x item=i1]"


def test_foreign_text_neither_begins_a_log_line_nor_moves_the_cursor() -> None:
    shown = line(logging.WARNING, "refused: x\n2026-01-01 00:00:00,000 ERROR   headgate.gate: forged\x1b[2J")
    assert [one[:4] for one in shown.splitlines()] == ["refu", "    "] and "\x1b" not in shown
