"""Test reports as documents of Elasticsearch, on a stand-in that checks bulk calls against the documentation."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.reporters.elastic import Elastic, ElasticReporter, ElasticUnusable, elastic_client, index_of
from headgate.adapters.reporters.webhook import Webhook, WebhookReporter, webhook_client
from headgate.ports.reporter import Reporter, ReporterAway, ReportRefused
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import gate
from headgate.testing.repositories import Repositories
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import slow, until

from .reports import Call, answered, listener, outbox_message

INDEX = re.compile(r'(?![-_+.])[^A-Z\\/*?"<>| ,#:]{1,255}')


@dataclass(slots=True)
class Server:
    """Keep documents, as Elasticsearch does with dynamic mapping: a field that first held a date always holds dates."""

    documents: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    kinds: dict[tuple[str, str], str] = field(default_factory=dict)
    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    busy: str = ""
    """Beginning of the answer in place of a result."""
    refuses: dict[str, int] = field(default_factory=dict)
    """Type of document -> status."""

    def answer(self, call: Call) -> bytes:
        method, path, _ = call.head.split(" ")
        if self.busy:
            return answered(self.busy)
        if (method, path.partition("?")[0]) != ("POST", "/_bulk"):
            return answered("404 Not Found")
        if call.headers["content-type"] not in ("application/x-ndjson", "application/json"):
            return answered("406 Not Acceptable")
        if not call.body.endswith(b"\n"):
            return answered("400 Bad Request", body="the bulk request must be terminated by a newline")
        lines = [json.loads(line) for line in call.body.splitlines()]
        items = [self.store(lines[at], lines[at + 1]) for at in range(0, len(lines), 2)]
        errors = any("error" in item["index"] for item in items)
        return answered("200 OK", "Content-Type: application/json", body=json.dumps({"errors": errors, "items": items}))

    def store(self, action: dict[str, dict[str, str]], document: dict[str, Any]) -> dict[str, Any]:
        ((verb, about),) = action.items()
        where = about["_index"], about["_id"]
        if verb != "index" or not INDEX.fullmatch(where[0]) or not 0 < len(where[1].encode()) <= 512:
            return _wrong(400, "invalid_index_name_exception")
        if status := self.refuses.get(document["build_type"]):
            return _wrong(status, "es_rejected_execution_exception")
        for name, value in document.items():
            kind = _kind(value)
            if self.kinds.setdefault((where[0], name), kind) != kind:
                return _wrong(400, "mapper_parsing_exception")
        self.versions[where] = self.versions.get(where, 0) + 1
        self.documents[where] = document
        return {"index": {"status": 201 if self.versions[where] == 1 else 200}}


def _wrong(status: int, type: str) -> dict[str, Any]:
    return {"index": {"status": status, "error": {"type": type, "reason": "it is so"}}}


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "date" if re.match(r"\d{4}-\d\d-\d\dT", value) and datetime.fromisoformat(value) else "text"
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def elastic(uri: str, **settings: str) -> Elastic:
    return Elastic.of({"uri": uri, **settings}, Path("/nowhere"))


@asynccontextmanager
async def reporting(uri: str) -> AsyncIterator[ElasticReporter]:
    server = elastic(uri)
    async with elastic_client(server) as client:
        yield ElasticReporter(client, server)


async def test_a_buildset_and_its_builds_are_documents_and_repeats_are_equal() -> None:
    server = Server()
    async with listener(server.answer) as (url, calls), reporting(url) as reporter:
        for _ in range(2):
            await reporter.tell(outbox_message())
        await reporter.tell(outbox_message("k2", result="SUCCESS", builds=()))
        assert "authorization" not in calls[0].headers
    assert {index for index, _ in server.documents} == {"zuul.example-2023.11.14"}
    buildset, build, other = server.documents.values()
    assert (buildset["build_type"], buildset["uuid"], buildset["result"]) == ("buildset", "b1", "FAILURE")
    assert buildset["@timestamp"] == "2023-11-14T22:13:20.000+00:00" and "Build failed." in buildset["message"]
    assert (build["build_type"], build["buildset_uuid"], build["uuid"]) == ("build", "b1", "u1")
    assert (build["job_name"], build["result"], build["voting"]) == ("unit", "FAILURE", True)
    assert other["result"] == "SUCCESS" and sorted(server.versions.values()) == [1, 2, 2]


@pytest.mark.parametrize(
    ("pattern", "tenant", "index"),
    [
        ("CI-%Y.%m.%d", "t", "ci-2023.11.14"),
        ("%Y.%V{tenant}", "t", "2023.46t"),
        ("{tenant}", "../A b/*?#,", "a_b" + "_" * 5),
        ("_all", "t", "all"),
        ("", "t", "zuul"),
        ("x%4000000000d%n%%", "t", "x_4000000000d_n_"),
        ("ü" * 300, "t", "zuul"),
        ("i" * 300, "t", "i" * 255),
    ],
)
def test_the_name_of_an_index_is_valid_and_contains_the_time_of_the_report(
    pattern: str, tenant: str, index: str
) -> None:
    report = outbox_message(tenant=tenant).report
    assert index_of(pattern, report) == index and INDEX.fullmatch(index)


async def test_a_busy_receiver_is_retried_and_a_refusal_is_reported() -> None:
    server = Server()
    async with listener(server.answer) as (url, _), reporting(url) as reporter:
        for server.busy in ("503 Busy", "429 Slow down"):
            with pytest.raises(ReporterAway, match=server.busy[:3]):
                await reporter.tell(outbox_message())
        for server.busy in ("401 No", "403 No", "413 Too large"):
            with pytest.raises(ReportRefused, match=server.busy[:3]):
                await reporter.tell(outbox_message())
        server.busy, server.refuses = "", {"build": 429}
        with pytest.raises(ReporterAway, match="did not accept 1 of 2 documents: 429 es_rejected"):
            await reporter.tell(outbox_message())
        server.refuses = {"build": 400}
        with pytest.raises(ReportRefused, match="400 es_rejected"):
            await reporter.tell(outbox_message())
        server.refuses = {}
        await reporter.tell(outbox_message())
    for body in ("<html>", "[" * 10_000, '{"errors": "no"}', '{"items": [5]}'):
        async with (
            listener(lambda call, body=body: answered("200 OK", body=body)) as (url, _),
            reporting(url) as reporter,
        ):  # type: ignore[misc]
            with pytest.raises(ReportRefused, match="not Elasticsearch"):
                await reporter.tell(outbox_message())


async def test_another_server_is_used_while_one_is_down() -> None:
    server = Server()
    async with listener(server.answer) as (url, calls):
        uri = url.replace("http://", "http://user:p%40ss@")
        async with reporting(f"http://127.0.0.1:1, {uri}/") as reporter:
            await reporter.tell(outbox_message())
            await reporter.tell(outbox_message("k2"))
        assert len(calls) == 2 and calls[0].headers["authorization"] == "Basic dXNlcjpwQHNz"
    async with reporting("http://127.0.0.1:1,http://127.0.0.1:1") as reporter:
        with pytest.raises(ReporterAway):
            await reporter.tell(outbox_message())
    busy = Server(busy="503 Busy")
    async with (
        listener(busy.answer) as (first, _),
        listener(server.answer) as (second, calls),
        reporting(f"{first},{second}") as reporter,
    ):
        await reporter.tell(outbox_message("k3"))
        assert len(calls) == 1, "the first one is there, and takes nothing"


async def test_an_answer_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def trickles(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 100000\r\n\r\n")
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b" ")
                await writer.drain()
                await slow(0.02)
        writer.close()

    for where in ("elastic", "webhook"):
        monkeypatch.setattr(f"headgate.adapters.reporters.{where}.CALL_MAX_S", 0.3)
    server = await asyncio.start_server(trickles, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(DEADLINE_S), reporting(url) as reporter, webhook_client() as client:
        for target in (reporter, WebhookReporter(client, Webhook(url))):
            with pytest.raises(ReporterAway, match="TimeoutError"):
                await target.tell(outbox_message())
    server.close()


@pytest.mark.long
def test_addresses_and_tls_of_servers_follow_the_settings(tmp_path: Path) -> None:
    assert elastic("a:9200, https://b").servers == ("https://a:9200", "https://b")
    assert elastic("a:9200", use_ssl="False").servers == ("http://a:9200",)
    assert elastic("a").tls.verify_mode is ssl.CERT_REQUIRED and elastic("a").tls.check_hostname
    assert elastic("a", verify_certs="false").tls.verify_mode is ssl.CERT_NONE
    for uri in ("https://", "ftp://x", "a:port", "https://[::1", "a:99999"):
        with pytest.raises(ElasticUnusable, match="uri"):
            elastic(uri)
    (tmp_path / "ca").write_text("no certificate")
    for settings in ({"ca_certs": "ca"}, {"ca_certs": "missing"}, {"client_cert": "ca"}):
        with pytest.raises(ElasticUnusable, match="cannot be read"):
            Elastic.of({"uri": "a", **settings}, tmp_path)


async def test_reports_are_in_the_index_once_a_change_has_landed(tmp_path: Path) -> None:
    repositories, server = Repositories(tmp_path), Server()
    named = PIPELINES.replace("        land: true\n", "        land: true\n      elastic: {index: 'ci-{tenant}'}\n")
    repositories.create("config", {"zuul.yaml": named, "jobs/unit": "#!/bin/sh\nexit 0\n"})
    for name in ("code/api", "code/lib"):
        repositories.create(name, {"README": "read me\n"})
    async with listener(server.answer) as (url, _), reporting(url) as reporter:
        takers: dict[str, tuple[str, Reporter]] = {"elastic": ("elasticsearch", reporter)}
        async with gate(tmp_path, repositories.hub, MemoryBackend(), TENANTS, reporting=takers):
            repositories.propose("code/api", "one", {"c": "x\n"})
            repositories.approve("code/api", "one")
            await until("two documents are there", lambda: len(server.documents) >= 2)
    assert {index for index, _ in server.documents} == {"ci-example"}
    buildset, build = server.documents.values()
    assert (buildset["pipeline"], buildset["result"], buildset["report"]) == ("gate", "SUCCESS", "success")
    assert (build["job_name"], build["result"], build["buildset_uuid"]) == ("unit", "SUCCESS", buildset["uuid"])
