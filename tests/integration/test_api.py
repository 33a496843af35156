"""Test the REST API on a running gate."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.adapters.sql.history import SqlHistory
from headgate.config.operator.model import Connection
from headgate.config.parse import ParseCache
from headgate.gate.state.change import Change, EventKind, TriggerEvent
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.map.records import ZoneLabels
from headgate.map.workers import Control, QueueMap, WorkerRecord
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.progress import NEW, Progress
from headgate.recipes.codec import encode
from headgate.services.configuration import Configuration, Tenancy
from headgate.services.quarantine import Quarantine
from headgate.store.memory import MemoryBackend
from headgate.store.types import Append, Delete, Put
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.layouts import parse_tenants
from headgate.testing.repositories import Repositories, run_git
from headgate.web.access import Access
from headgate.web.status import Status
from tests.site import client_of, site_of
from tests.waiting import until

from .conftest import TENANTS

Client = httpx.AsyncClient
TENANT = "/api/tenant/example"
TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
async def running(tmp_path: Path, repositories: Repositories) -> AsyncIterator[Gate]:
    async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS) as found:
        yield found


@pytest.fixture
def history(tmp_path: Path) -> Iterator[SqlHistory]:
    found = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    yield found
    found.close()


@pytest.fixture
async def client(tmp_path: Path, running: Gate, history: SqlHistory) -> AsyncIterator[Client]:
    access, tenants = Access("secret"), running.scheduler.tenants
    async with (
        running.context.store.session("web") as session,
        client_of(site_of(running.context, tenants, history, tmp_path / "logs", access, session)) as found,
    ):
        yield found


async def seen(running: Gate, topic: str) -> None:
    place = running.context.map.cache.connection("local").data.path
    async with asyncio.timeout(DEADLINE_S):
        while not any(topic.encode() in entry.value for entry in running.context.mirror.under(place)):
            await running.context.mirror.moved(running.context.mirror.moves)


async def test_a_change_is_enqueued_by_hand_and_lands(
    client: Client, running: Gate, repositories: Repositories
) -> None:
    repositories.propose("code/api", "byhand", {"a": "1\n"})
    await seen(running, "byhand")
    body = {"pipeline": "gate", "change": "byhand"}
    answer = await client.post(f"{TENANT}/project/code/api/enqueue", json=body, headers=TOKEN)
    assert answer.status_code == 409 and "byhand is not approved, as pipeline gate requires" in answer.text
    body = {**body, "unapproved": True, "reason": "because\u0000\x1b[31m\nof \u202ethat"}
    answer = await client.post(f"{TENANT}/project/code/api/enqueue", json=body, headers=TOKEN)
    assert answer.status_code == 200, answer.text
    assert (await running.history.result_of("byhand", "gate")).result == "SUCCESS"
    assert repositories.show("code/api", "a") == "1"


async def test_a_landed_change_can_be_enqueued_again_and_dequeued_by_hand(
    client: Client, running: Gate, repositories: Repositories
) -> None:
    repositories.propose("code/api", "one", {"a": "1\n"})
    repositories.approve("code/api", "one")
    assert (await running.history.result_of("one", "gate")).result == "SUCCESS"
    assert (await running.history.result_of("one", "check")).result == "SUCCESS"
    running.history.finished.clear()

    async def ask(verb: str, pipeline: str) -> tuple[int, str]:
        body = {"pipeline": pipeline, "change": "one", "reason": "why not"}
        answer = await client.post(f"{TENANT}/project/code/api/{verb}", json=body, headers=TOKEN)
        return answer.status_code, answer.text

    running.runner.hold = asyncio.Event()
    status, text = await ask("enqueue", "gate")
    assert status == 409 and "of git.example/code/api has already landed" in text
    assert await ask("enqueue", "check") == (200, "true")
    assert await ask("dequeue", "check") == (200, "true")
    gone = await running.history.result_of("one", "check")
    assert gone.result == "DEQUEUED" and "It was dequeued by token: why not." in gone.message
    running.history.finished.clear()
    running.runner.hold.set()
    assert await ask("enqueue", "check") == (200, "true")
    assert (await running.history.result_of("one", "check")).result == "SUCCESS"


async def test_an_ambiguous_name_of_a_change_is_reported(
    client: Client, running: Gate, repositories: Repositories
) -> None:
    running.runner.hold = asyncio.Event()
    work = repositories.work("code/api")
    run_git("push", "-q", "origin", "HEAD:refs/heads/stable", at=work)
    repositories.propose("code/api", "one", {"a": "1\n"})
    run_git("push", "-q", "origin", "HEAD:refs/for/stable/one", "HEAD:refs/for/stable/master/one", at=work)
    async with asyncio.timeout(DEADLINE_S):
        await running.runner.begun(3)
    answers = dict[str, tuple[int, str]]()
    for name in ("one", "master/one", "stable/one", "stable/master/one"):
        body = {"pipeline": "check", "change": name}
        answer = await client.post(f"{TENANT}/project/code/api/dequeue", json=body, headers=TOKEN)
        answers[name] = answer.status_code, answer.text
    assert answers["one"][0] == 400 and "several changes 'one'; use one of master/one, stable/one" in answers["one"][1]
    assert [status for status, _ in answers.values()] == [400, 200, 200, 200]


async def test_manual_actions_are_recorded(client: Client, running: Gate, repositories: Repositories) -> None:
    repositories.propose("code/api", "byhand", {"a": "1\n"})
    await seen(running, "byhand")
    body = {"pipeline": "gate", "change": "byhand", "reason": "because\u0000\x1b[31m\nof \u202ethat" + "x" * 5_000}
    for more in ({}, {"unapproved": True}):
        await client.post(f"{TENANT}/project/code/api/enqueue", json={**body, **more}, headers=TOKEN)
    async with asyncio.timeout(DEADLINE_S):
        while sum(bool(one.outcome) for one in running.history.by_hand.values()) < 2:
            running.history.changed.clear()
            await running.history.changed.wait()
    refused, done = sorted(running.history.by_hand.values(), key=lambda one: one.at_ms)
    assert (refused.verb, done.verb) == ("enqueue", "enqueue-unapproved")
    assert "is not approved" in refused.outcome and done.outcome == "done"
    assert done.who == "token" and done.subject == "byhand of code/api in gate" and done.tenant == "example"
    assert done.reason.isprintable() and len(done.reason) == 1_024 and done.origin.startswith("127.0.0.1")


async def test_a_zone_is_forgotten_for_a_reason(client: Client, running: Gate) -> None:
    labels = running.context.map.executor.zones("far").labels
    await running.context.store.commit([], [labels.put(ZoneLabels(("arm",)))])
    for status in (200, 404):
        answer = await client.post("/api/zone/far/forget", json={"reason": "it burned down"}, headers=TOKEN)
        assert answer.status_code == status, answer.text
    assert (await client.post("/api/zone/far/forget", json={}, headers=TOKEN)).status_code == 404
    assert await running.context.store.get(labels.path) is None
    async with asyncio.timeout(DEADLINE_S):
        while sum(bool(one.outcome) for one in running.history.by_hand.values()) < 3:
            running.history.changed.clear()
            await running.history.changed.wait()
    found = sorted(running.history.by_hand.values(), key=lambda one: one.at_ms)
    assert [(one.verb, one.subject) for one in found] == [("forget", "zone far")] * 3
    assert [one.reason for one in found].count("it burned down") == 2


@pytest.mark.long
async def test_a_request_returns_the_outcome_in_the_pipeline(
    client: Client, running: Gate, repositories: Repositories
) -> None:
    hold = asyncio.Event()
    running.runner.hold = hold
    repositories.propose("code/api", "one", {"a": "1\n"})
    repositories.propose("code/api", "two", {"b": "1\n"})
    await seen(running, "one")
    await seen(running, "two")

    async def ask(verb: str, change: str) -> tuple[int, str]:
        body = {"pipeline": "gate", "change": change, **({"unapproved": True} if verb == "enqueue" else {})}
        answer = await client.post(f"{TENANT}/project/code/api/{verb}", json=body, headers=TOKEN)
        return answer.status_code, answer.text

    status, text = await ask("dequeue", "one")
    assert status == 409 and "code/api/master/one is not in the pipeline" in text
    for change in ("one", "two"):
        assert (await ask("enqueue", change))[0] == 200
    status, text = await ask("enqueue", "one")
    assert status == 409 and "is already in the pipeline" in text
    two = {"pipeline": "gate", "changes": ["git.example/code/api/master/two"]}
    assert (await client.post(f"{TENANT}/promote", json=two, headers=TOKEN)).status_code == 200
    again = await client.post(f"{TENANT}/promote", json=two, headers=TOKEN)
    assert again.status_code == 409 and "already at the head" in again.text
    assert (await ask("dequeue", "two"))[0] == 200
    hold.set()
    assert (await running.history.result_of("one", "gate")).result == "SUCCESS"


async def test_without_the_token_nothing_is_done(client: Client, running: Gate) -> None:
    await running.looked_at("git.example/code/api")
    body = {"pipeline": "gate", "change": "x"}
    url = f"{TENANT}/project/code/api/dequeue"
    assert (await client.post(url, json=body)).status_code == 401
    text = {**TOKEN, "Content-Type": "text/plain"}
    assert (await client.post(url, content=json.dumps(body), headers=text)).status_code == 415
    answer = await client.post(url, json=body, headers=TOKEN)
    assert answer.status_code == 404 and "no open or landed change 'x'" in answer.json()["description"]


STATUS = {
    "": "zuul_version state trigger_event_queue management_event_queue connection_event_queues last_reconfigured "
    "pipelines",
    "pipeline": "name description state manager triggers trigger_events result_events management_events change_queues",
    "queue": "name branch window heads",
    "item": "id active live refs zuul_ref item_ahead items_behind failing_reasons enqueue_time remaining_time jobs",
    "ref": "id ref url project project_canonical owner",
    "job": "name dependencies url report_url result voting uuid tries queued waiting_status elapsed_time "
    "remaining_time execute_time start_time end_time estimated_time pipeline canceled paused pre_fail retry "
    "snapshotting",
}
"""The members that clients of the status expect, by level."""


async def test_status_has_the_fields_that_clients_expect(
    client: Client, running: Gate, repositories: Repositories
) -> None:
    running.runner.hold = hold = asyncio.Event()
    for topic in ("one", "two"):
        repositories.propose("code/api", topic, {topic: "1\n"})
        await seen(running, topic)
        body = {"pipeline": "gate", "change": topic, "unapproved": True}
        assert (await client.post(f"{TENANT}/project/code/api/enqueue", json=body, headers=TOKEN)).status_code == 200

    async def running_jobs() -> dict[str, Any]:
        status = (await client.get(f"{TENANT}/status")).json()
        jobs = [
            j
            for p in status["pipelines"]
            for q in p["change_queues"]
            for head in q["heads"]
            for j in head[0]["jobs"][:1]
        ]
        return status if any(j.get("running") for j in jobs) else {}

    status = await until("its job runs", running_jobs)
    pipeline = next(p for p in status["pipelines"] if p["name"] == "gate")
    (queue,) = (q for q in pipeline["change_queues"] if q["heads"])
    ((one, two),) = queue["heads"]
    job = one["jobs"][0]
    levels = {"": status, "pipeline": pipeline, "queue": queue, "item": one, "ref": one["refs"][0], "job": job}
    lacking = {level: set(words.split()) - set(levels[level]) for level, words in STATUS.items()}
    assert not any(lacking.values()), lacking
    assert status["connection_event_queues"] == {"local": {"length": 0}} and status["state"]["loaded"]
    assert (pipeline["state"], pipeline["manager"]) == ("normal", "dependent")
    assert {t["driver"] for t in pipeline["triggers"]} == {"git"} and queue["window"] >= 2
    assert (one["item_ahead"], two["item_ahead"]) == (None, one["id"])
    assert (one["items_behind"], two["items_behind"]) == ([two["id"]], [])
    assert one["live"] and one["active"] and one["failing_reasons"] == [] and one["enqueue_time"] > 1.6e12
    assert one["refs"][0]["project_canonical"] == "git.example/code/api" and one["refs"][0]["project"] == "code/api"
    assert job["result"] is None and job["tries"] == 1 and not job["queued"] and job["start_time"] > 1.6e9
    assert job["elapsed_time"] >= 0 and job["uuid"] in job["url"] and job["voting"] and job["pipeline"] == "gate"
    hold.set()


async def test_status_has_an_etag(client: Client) -> None:
    answer = await client.get(f"{TENANT}/status")
    names = [pipeline["name"] for pipeline in answer.json()["pipelines"]]
    assert names == ["check", "gate"]
    again = await client.get(f"{TENANT}/status", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


async def test_addresses_of_zuuls_page_about_errors_lead_to_ours(client: Client) -> None:
    answer = await client.get("/t/example/config-errors")
    assert answer.headers["location"] == "/t/example/errors" and answer.status_code < 400


async def test_files_of_pages_are_cached_by_browsers_until_the_next_version(client: Client) -> None:
    page = (await client.get("/t/example/status")).text
    (script,) = re.findall(r'src="(/static/\w+/status\.js)"', page)
    first = await client.get(script)
    assert first.headers["content-encoding"] == "gzip" and "/events" in first.text
    assert first.headers["cache-control"] == "public, max-age=31536000, immutable"
    beside = script.replace("status.js", "page.js")
    assert './page.js"' in first.text and (await client.get(beside)).headers["cache-control"].endswith("immutable")
    plain = await client.get("/static/status.js", headers={"Accept-Encoding": "identity"})
    assert plain.text == first.text and "content-encoding" not in plain.headers
    for path in ("/static/status.js", "/static/000000000000/status.js"):
        answer = await client.get(path)
        assert answer.headers["cache-control"] == "no-cache", "a page of another edition asks each time"
        again = await client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert (await client.get("/static/none.js")).status_code == 404


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("/api/tenant/nobody/status", "no tenant 'nobody'"),
        (f"{TENANT}/build/xyz", "no build xyz"),
        (f"{TENANT}/pipeline/gate/project/code/none/branch/master/freeze-jobs", "no project 'code/none'"),
        ("/logs/../../etc/passwd", ""),
        ("/static/..%2fapp.py", ""),
    ],
)
async def test_missing_things_are_reported(client: Client, url: str, words: str) -> None:
    answer = await client.get(url)
    assert answer.status_code == 404 and words in answer.text


async def test_every_documented_request_is_answered(client: Client) -> None:
    async def ask(url: str) -> Any:
        answer = await client.get(url)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert await ask("/api/tenants") == [{"name": "example", "projects": 3, "queue": 0}]
    assert set(await ask("/api/components")) == {"scheduler", "merger", "executor", "web"}
    frozen = await ask(f"{TENANT}/pipeline/gate/project/code/api/branch/master/freeze-jobs")
    assert frozen == [{"name": "unit", "dependencies": []}]
    assert [job["name"] for job in await ask(f"{TENANT}/jobs")] == ["base", "unit"]
    assert len(await ask(f"{TENANT}/projects")) == 3
    assert (
        await ask(f"{TENANT}/config-errors") == await ask(f"{TENANT}/semaphores") == await ask(f"{TENANT}/builds") == []
    )
    assert (await client.get(f"{TENANT}/builds?limit=-1")).status_code == 400


async def test_queues_of_messages_and_their_workers_are_shown(client: Client, running: Gate) -> None:
    app, store = QueueMap().app("sync"), running.context.store
    done = Progress("135471512647131000", owner="worker-0000000000", epoch=1)
    await store.commit(
        [],
        [
            Append(app.workers.path, app.workers.encode(WorkerRecord(("q",), "host-1")), None, "worker-"),
            app.progress(QueuePartition("q")).put(done),
            app.progress(QueuePartition("q", 2)).put(NEW),
            Put(f"{app.workers.path}/worker-9999999999", b"not json"),
            Put(app.progress(QueuePartition("bad")).path, b'{"last": "yesterday"}'),
            Put(app.owner(QueuePartition("q")).path, b"worker-0000000000"),
            app.controls(QueuePartition("q", 2)).put(Control(paused=True)),
        ],
    )
    (found,) = (await client.get("/api/queues")).json()
    assert found["workers"] == [{"worker": "worker-0000000000", "host": "host-1", "queues": ["q"]}]
    assert [(p["partition"], p["state"], p["processed_until"]) for p in found["partitions"]] == [
        ("bad", "unreadable", ""),
        ("q", "processed", "2012-01-29T17:34:24.713+00:00"),
        ("q:2", "paused", ""),
    ]


async def test_an_artifact_in_the_log_directory_is_served(
    client: Client, running: Gate, repositories: Repositories, history: SqlHistory, tmp_path: Path
) -> None:
    def leaves(spec: BuildSpec, state: RepoState) -> BuildOutcome:
        (tmp_path / "logs" / spec.build).mkdir(parents=True)
        (tmp_path / "logs" / spec.build / "report.txt").write_text("all is well")
        data = {"zuul": {"artifacts": [{"name": "report", "url": "report.txt"}]}}
        return BuildOutcome(build=spec.build, result="SUCCESS", data=data)

    running.runner.jobs = {"unit": leaves}
    repositories.propose("code/api", "artful", {"a": "1\n"})
    ended = await running.history.result_of("artful", "check")
    (build,) = ended.builds
    (artifact,) = build.artifacts
    await history.record(ended)
    answer = await client.get(artifact.url)
    assert (answer.status_code, answer.text) == (200, "all is well")
    artifacts = (await client.get(f"{TENANT}/build/{build.uuid}")).json()["artifacts"]
    assert artifacts == [{"name": "report", "url": artifact.url}]


async def test_pages_work_despite_a_damaged_record(
    tmp_path: Path, running: Gate, history: SqlHistory, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither from a server that already shows the tenant, nor from one that starts with it."""
    map, context = running.context.map, running.context
    places = (
        map.layout("example").record.path,
        map.cache.connection("local").problems.path,
        f"{map.components.merger.path}/other0000000077",
        map.semaphores("example").semaphore("one").record.path,
    )
    written = await context.store.commit([], [Put(place, b'{"uuid":"x') for place in places])
    for entry in written:
        assert entry is not None
        await context.mirror.reached(entry.path, entry.version)
    parsed = parse_tenants(TENANTS, "tenants.yaml", {"local": Connection("local", "git.example")})
    anew = {name: Configuration(context, tenant, ParseCache()) for name, tenant in parsed.items()}
    for tenants in (running.scheduler.tenants, anew):
        async with client_of(site_of(context, tenants, history, tmp_path / "logs")) as client:
            for address in ("/api/tenants", f"{TENANT}/status", f"{TENANT}/semaphores", "/api/components"):
                answer = await client.get(address)
                assert answer.status_code == 200, f"{address}: {answer.text}"
    for place in places:
        assert sum(message.startswith(f"{place} cannot be read") for message in caplog.messages) == 1, place


async def test_a_fault_of_ours_is_in_the_log(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Status) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Status, "components", broken)
    assert (await client.get("/api/components")).status_code == 500
    assert (await client.get("/api/nothing")).status_code == 404
    (record,) = [record for record in caplog.records if record.name == "headgate.web"]
    assert "/api/components" in record.getMessage() and record.exc_info is not None


async def test_a_damaged_tenant_file_is_waited_for(running: Gate, caplog: pytest.LogCaptureFixture) -> None:
    map, context = running.context.map, running.context
    answer = await context.store.get(map.system.conf.path)
    assert answer is not None
    tenancy = Tenancy(context, {"local": Connection("local", "git.example")})
    for value, names in ((answer.value[:20], []), (answer.value, ["example"])):
        (entry,) = await context.store.commit([], [Put(answer.path, value)])
        assert entry is not None
        await context.mirror.reached(entry.path, entry.version)
        for _ in range(2):
            assert list(tenancy) == names
    count = sum(message.startswith(f"{answer.path} cannot be read") for message in caplog.messages)
    assert 1 <= count <= 2, "the scheduler follows it, too, and each says so once"


async def test_quarantined_work_can_be_listed_retried_and_dropped(client: Client, running: Gate) -> None:
    context = running.context
    quarantine, trigger = Quarantine(context), context.map.events.tenant("example").trigger.stream
    event = TriggerEvent(EventKind.REF_UPDATED, Change("local", "nowhere", "main", ref="refs/heads/main"), "e")
    for id in ("one", "two"):
        ops = quarantine.put(
            id, "event", f"event {id}", "it \x1b[31mraised", "example", trigger.queue, f"/b/{id}", b"x"
        )
        await context.store.commit([], ops)
        await context.mirror.reached(quarantine.path(id))
    body = f"{trigger.data}/three"
    ops = quarantine.put("three", "event", "three", "it raised", "example", trigger.queue, body, encode(event))
    await context.store.commit([], [*ops, Put("/zuul/cache/connection/local/cache/00", b"[")])
    await context.mirror.reached("/zuul/cache/connection/local/cache/00")

    assert (await client.get("/api/quarantine")).status_code == 401, "errors of all tenants are for administrators"
    found = (await client.get("/api/quarantine", headers=TOKEN)).json()
    assert [(one["id"], one["error"]) for one in found["aside"][:1]] == [("one", "it  [31mraised")]
    assert "/zuul/cache/connection/local/cache/00" in [one["path"] for one in found["damaged"]]
    assert [one["id"] for one in (await client.get(f"{TENANT}/quarantine")).json()] == ["one", "two", "three"]
    problems = (await client.get(f"{TENANT}/status")).json()["problems"]
    assert any(one["project"] == "event one" and "in quarantine" in one["text"] for one in problems)
    assert (await client.get(f"{TENANT}/status")).json()["troubles"] == problems
    for path in ("/api/problems", "/api/troubles"):
        assert (await client.get(path)).json() == []

    drop, retry = {"do": "drop", "reason": "why"}, {"do": "retry"}
    assert (await client.post("/api/quarantine/one", json=drop)).status_code == 401
    assert (await client.post("/api/quarantine/one", json=drop, headers=TOKEN)).status_code == 200
    assert (await client.post("/api/quarantine/one", json=drop, headers=TOKEN)).status_code == 404
    assert (await client.post("/api/quarantine/two", json={"do": "eat"}, headers=TOKEN)).status_code == 400
    assert (await client.post("/api/quarantine/three", json=retry, headers=TOKEN)).status_code == 200
    async with asyncio.timeout(DEADLINE_S):
        while len(quarantine) > 1 or trigger.length(context.mirror):
            await context.mirror.moved(context.mirror.moves)
    assert list(quarantine.all()) == ["two"], "what was retried was taken up"


async def test_a_pipeline_is_unknown_only_once_the_configuration_is_known(client: Client, running: Gate) -> None:
    body, loaded = {"pipeline": "nosuch", "changes": ["x"]}, running.scheduler.tenants["example"].loaded
    loaded.clear()
    early = await client.post(f"{TENANT}/promote", json=body, headers=TOKEN)
    loaded.set()
    known = await client.post(f"{TENANT}/promote", json=body, headers=TOKEN)
    assert (early.status_code, known.status_code) == (422, 404)
    assert "still being read" in early.json()["description"] and "it has check, gate" in known.json()["description"]
    assert early.headers["retry-after"] == "1" and "retry-after" not in known.headers


async def test_unknown_values_are_not_reported_as_empty(client: Client, running: Gate) -> None:
    loaded = running.scheduler.tenants["example"].loaded
    needed = ("pipelines", "jobs", "job/unit", "project/code/api", "config-errors", "tenant-status")
    loaded.clear()
    for path in needed:
        early = await client.get(f"{TENANT}/{path}")
        assert early.status_code == 422 and early.headers["retry-after"] == "1", path
        assert early.json()["description"].startswith("Tenant example isn't ready"), path
    for path in ("info", "status", "projects", "builds", "autohold", "semaphores"):
        assert (await client.get(f"{TENANT}/{path}")).status_code == 200, f"{path} needs no configuration"
    assert (await client.get("/api/tenant/nobody/jobs")).status_code == 404
    loaded.set()
    for path in needed:
        assert (await client.get(f"{TENANT}/{path}")).status_code == 200, path


async def test_a_change_or_a_ref_is_unknown_only_once_its_repository_was_looked_at(
    client: Client, running: Gate
) -> None:
    store, mirror, url = running.context.store, running.context.mirror, f"{TENANT}/project/code/api/enqueue"
    looked = running.context.map.cache.connection("local").refs("git.example/code/api").looked.path
    for what in ({"change": "nosuch"}, {"ref": "refs/tags/nosuch"}):
        body = {"pipeline": "check", **what}
        async with asyncio.timeout(DEADLINE_S):
            await mirror.reached(looked)
        entry = mirror.get(looked)
        known = await client.post(url, json=body, headers=TOKEN)
        assert entry is not None and known.status_code == 404 and "retry-after" not in known.headers
        await store.commit([], [Delete(looked)])
        await mirror.gone(looked)
        early = await client.post(url, json=body, headers=TOKEN)
        assert early.status_code == 503 and early.headers["retry-after"] == "1", early.text
        assert "code/api has not been read yet; try again" in early.json()["description"]
        await store.commit([], [Put(looked, entry.value)])
