"""Test reports as chat messages, through the library apprise and a real HTTP server."""

from __future__ import annotations

import json
import sys

import pytest

from headgate.adapters.reporters.chat import ChatReporter, ChatUnusable
from headgate.ports.reporter import ReportPutOff

from .reports import answered, listener, outbox_message


async def test_a_chat_message_contains_the_result_and_mentions_nobody() -> None:
    async with listener(lambda call: answered("200 OK")) as (url, calls):
        chat = ChatReporter.of({"url": url.replace("http://", "json://") + "/room"})
        await chat.tell(outbox_message(subject="@channel look <!here>"))
        await chat.tell(outbox_message(options={"title": "{project}: {result}"}))
    first, second = (json.loads(call.body) for call in calls)
    assert first["title"].startswith("[gate] code/api topic,abcdef12 failed") and first["type"] == "failure"
    assert "- unit: FAILURE (exit status 1)" in first["message"]
    assert "https://gate.example/t/example/buildset/b1" in first["message"]
    assert "@channel" not in first["title"] and "channel" in first["title"]
    assert "<!here>" not in first["title"] and "!here>" in first["title"]
    assert second["title"] == "git.example/code/api: FAILURE"


async def test_a_refusal_of_a_chat_is_reported_without_the_secret_in_its_address() -> None:
    async with listener(lambda call: answered("403 Forbidden", body="no")) as (url, _):
        chat = ChatReporter.of({"url": url.replace("http://", "json://user:t0ken@")})
        with pytest.raises(ReportPutOff) as put_off:
            await chat.tell(outbox_message())
    assert str(put_off.value) and "t0ken" not in str(put_off.value)


def test_an_address_that_is_not_known_is_named_without_its_secrets() -> None:
    with pytest.raises(ChatUnusable, match="nochat") as unusable:
        ChatReporter.of({"url": "nochat://t0ken@room"})
    assert "t0ken" not in str(unusable.value)
    with pytest.raises(ChatUnusable, match="url"):
        ChatReporter.of({})


def test_without_the_library_an_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(ChatUnusable, match=r"pip install 'headgate\[chat\]'"):
        ChatReporter.of({"url": "json://localhost"})
