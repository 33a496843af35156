"""Test names of the previous release: answers still contain them, and clients still understand old answers."""

from __future__ import annotations

import msgspec

from headgate.inventory.leases import ObjectLease
from headgate.map.outbox import Answered, QueueReport
from headgate.queue.messages.schedules import MessageSchedule
from headgate.queue.workers.worker import PartitionChange
from headgate.web.app import ROUTES
from headgate.web.description import described
from headgate.web.inventory import v1leases
from headgate.web.process import ComponentHealth
from headgate.web.routes import testresults
from headgate.web.routes.quarantine import OutboxShape
from headgate.web.shapes import Length, ProblemShape, StateShape, StatusShape


def test_problems_of_a_status_have_their_former_name_too() -> None:
    status = StatusShape(
        zuul_version="1",
        state=StateShape(loaded=True),
        trigger_event_queue=Length(0),
        management_event_queue=Length(0),
        connection_event_queues={},
        last_reconfigured=None,
        pipelines=(),
    )
    problem = ProblemShape("code/api", "it cannot be read", 7)
    for one in (msgspec.structs.replace(status, problems=(problem,)), status):
        shown = msgspec.to_builtins(one)
        assert shown["troubles"] == shown["problems"] and len(shown["problems"]) == len(one.problems)


def test_other_problems_have_their_former_name_too() -> None:
    outbox = OutboxShape(connection="mail", waiting=1, oldest=0, problem="it is away", since=1)
    results = testresults.TestResultsShape(
        files=(), passed=0, failed=0, errors=0, skipped=0, seconds=0.0, cases=(), problems=("it is away",)
    )
    schedule = MessageSchedule("nightly", "0 0 * * *", "x", problem="it is away")
    for one in (outbox, ComponentHealth("web", "running", "it is away"), schedule):
        shown = msgspec.to_builtins(one)
        assert (shown["problem"], shown["trouble"]) == ("it is away", "it is away")
    assert msgspec.to_builtins(results)["troubles"] == ("it is away",)


def test_answers_of_a_server_of_the_last_release_are_understood() -> None:
    found = {"connection": "mail", "waiting": 1, "oldest": 0, "trouble": "it is away", "since": 1}
    assert msgspec.convert(found, OutboxShape).problem == "it is away"
    schedule = {"name": "nightly", "cron": "0 0 * * *", "body": "x", "trouble": "it is full"}
    assert msgspec.convert(schedule, MessageSchedule).problem == "it is full"


def test_a_report_names_its_ordering_key_both_ways() -> None:
    report = QueueReport(
        v=1, kind="report", id="i", at_ms=1, tenant="t", pipeline="p", project="r", branch="b", change="c", commit="d",
        item="i", report="success", answers=Answered("bus", "orders", "3", "id"),
    )  # fmt: skip
    shown = msgspec.json.decode(report.document())
    assert (shown["answers"]["ordering_key"], shown["answers"]["lane"]) == ("3", "3")
    assert {**shown, "answers": None} == {**msgspec.to_builtins(report), "answers": None}
    alone = msgspec.structs.replace(report, answers=None)
    assert msgspec.json.decode(alone.document()) == msgspec.to_builtins(alone)


def test_a_worker_takes_a_partition_under_both_names() -> None:
    assert msgspec.convert({"lane": "orders:2", "paused": True}, PartitionChange).name == "orders:2"
    assert msgspec.convert({"partition": "orders:2"}, PartitionChange).name == "orders:2"


def test_former_paths_are_described_as_deprecated() -> None:
    paths = described(tuple(ROUTES))["paths"]
    old, new = paths["/api/troubles"]["get"], paths["/api/problems"]["get"]
    assert old["deprecated"] and "deprecated" not in new
    assert old["responses"] == new["responses"]


def test_a_lease_has_the_time_of_its_request_under_both_names() -> None:
    lease = ObjectLease(id="l", user="ada", project="lab", partition="p", search="", duration_s=60, requested_ms=7)
    shown = v1leases._lease(lease)
    assert (shown.requested_ms, shown.asked_ms) == (7, 7)
