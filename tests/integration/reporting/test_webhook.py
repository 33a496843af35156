"""Test reports as signed calls of a webhook."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from headgate.adapters.reporters.webhook import Webhook, WebhookReporter, webhook_client
from headgate.ports.reporter import ReporterAway, ReportRefused

from .reports import Call, answered, listener, outbox_message

NOW_S = 1_800_000_000


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with webhook_client() as opened:
        yield opened


def reporter(client: httpx.AsyncClient, url: str, secret: str = "s3cret") -> WebhookReporter:
    return WebhookReporter(client, Webhook.of({"url": url, "secret": secret}), lambda: NOW_S)


async def test_a_call_is_documented_json_with_a_signature_of_its_time_and_body(client: httpx.AsyncClient) -> None:
    async with listener(lambda call: answered("204 No Content")) as (url, calls):
        await reporter(client, f"{url}/hook?x=1").tell(outbox_message())
        await reporter(client, f"{url}/hook", secret="").tell(outbox_message())
    call, unsigned = calls
    assert call.head == "POST /hook?x=1 HTTP/1.1" and call.headers["content-type"] == "application/json"
    document = json.loads(call.body)
    assert (document["v"], document["kind"], document["report"], document["result"]) == (
        1,
        "report",
        "failure",
        "FAILURE",
    )
    assert document["builds"][0]["job"] == "unit" and document["tenant"] == "example"
    expected = hmac.new(b"s3cret", f"{NOW_S}.".encode() + call.body, hashlib.sha256).hexdigest()
    assert call.headers["x-headgate-signature"] == f"sha256={expected}"
    assert call.headers["x-headgate-timestamp"] == str(NOW_S) and call.headers["x-headgate-delivery"] == "k1"
    assert "x-headgate-signature" not in unsigned.headers


@pytest.mark.parametrize("status", ["500 Oops", "503 Busy", "429 Slow down", "408 Late"])
async def test_a_busy_receiver_is_retried(client: httpx.AsyncClient, status: str) -> None:
    async with listener(lambda call: answered(status, "Retry-After: 120", body="not <b>now</b>")) as (url, _):
        with pytest.raises(ReporterAway, match=status[:3]) as away:
            await reporter(client, url).tell(outbox_message())
    assert away.value.wait_s == 120.0 and "not <b>now</b>" in str(away.value)


@pytest.mark.parametrize("status", ["400 Bad", "401 No", "404 Gone", "410 Gone"])
async def test_a_report_that_is_permanently_refused_is_not_retried(client: httpx.AsyncClient, status: str) -> None:
    async with listener(lambda call: answered(status)) as (url, _):
        with pytest.raises(ReportRefused, match=status[:3]):
            await reporter(client, url).tell(outbox_message())


async def test_redirections_of_a_webhook_are_not_followed(client: httpx.AsyncClient) -> None:
    async with listener(lambda call: answered("200 OK", body="metadata")) as (inside, requests):

        def away(call: Call) -> bytes:
            return answered("307 Elsewhere", f"Location: {inside}/latest/meta-data")

        async with listener(away) as (url, _):
            with pytest.raises(ReportRefused, match="redirections are not followed"):
                await reporter(client, url).tell(outbox_message())
    assert not requests


async def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    async with webhook_client() as client, listener(lambda call: answered("200 OK")) as (url, calls):
        await reporter(client, url).tell(outbox_message())
    assert len(calls) == 1


async def test_an_endless_answer_and_a_server_that_hangs_up_delay_nobody(client: httpx.AsyncClient) -> None:
    endless = answered("500 Oops", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    async with listener(lambda call: endless + b"10000\r\n" + b"x" * 0x10000 + b"\r\n") as (url, _):
        with pytest.raises(ReporterAway) as away:
            await reporter(client, url).tell(outbox_message())
    assert len(str(away.value)) < 400
    async with listener(lambda call: b"") as (url, _):
        with pytest.raises(ReporterAway):
            await reporter(client, url).tell(outbox_message())
    with pytest.raises(ReporterAway):
        await reporter(client, url).tell(outbox_message())
