"""Test that odd answers, also of other programs in Gerrit's place, block nothing and are reported."""

from __future__ import annotations

import asyncio

import pytest

from headgate.adapters.forges.gerrit import api as module
from headgate.adapters.forges.gerrit.api import (
    GerritAway,
    GerritConflict,
    GerritDenied,
    GerritNotThere,
    GerritRefused,
    GerritRest,
    gerrit_client,
)
from headgate.adapters.forges.gerrit.server import Server
from headgate.testing.clock import DEADLINE_S
from tests.waiting import slow

from ...reporting.reports import answered, listener


def at(url: str, **settings: str) -> Server:
    least = {"server": "review.example", "user": "ci", "password": "s3cret", "baseurl": url}
    return Server.of("review", {**least, **settings})


async def raised(answer: bytes) -> Exception:
    async with listener(lambda _: answer) as (url, calls), gerrit_client(at(url)) as client:
        with pytest.raises((GerritAway, GerritRefused)) as error:
            await GerritRest(client, at(url)).change(7)
    assert calls and "s3cret" not in str(error.value)
    return error.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ("400 Bad", GerritRefused),
        ("401 No", GerritDenied),
        ("403 No", GerritDenied),
        ("404 Not there", GerritNotThere),
        ("409 Conflict", GerritConflict),
        ("412 Precondition", GerritConflict),
        ("408 Late", GerritAway),
        ("429 Slow down", GerritAway),
        ("500 Oops", GerritAway),
        ("503 Busy", GerritAway),
    ],
)
async def test_refusals_are_distinguished_by_the_message_of_the_server(status: str, kind: type[Exception]) -> None:
    error = await raised(answered(status, "Retry-After: 77", body="because\nof \x1b[31mthis"))
    assert type(error) is kind and status[:3] in str(error) and "because" in str(error) and "\x1b" not in str(error)
    assert not isinstance(error, GerritAway) or error.wait_s == 77


@pytest.mark.parametrize("wait", ["soon", "-5", "1e9", "²", "99999999"])
async def test_how_long_to_wait_is_bounded(wait: str) -> None:
    error = await raised(answered("429 Slow", f"Retry-After: {wait}".encode().decode("latin-1")))
    assert isinstance(error, GerritAway) and 0 <= error.wait_s <= module.WAIT_MAX_S


async def test_a_redirection_is_not_followed() -> None:
    async with listener(lambda _: answered("200 OK", body="{}")) as (elsewhere, requests):
        error = await raised(answered("302 Found", f"Location: {elsewhere}/a/changes/7"))
    assert type(error) is GerritRefused and "baseurl" in str(error) and not requests


@pytest.mark.parametrize(
    "body",
    [
        "",
        ")]}'",
        ")]}'\n[]",
        ")]}'\n{}",
        ')]}\'\n"x"',
        "<html>log in</html>",
        ')]}\'\n{"_number": "x"}',
        ")]}'\n{" * 500,
    ],
)
async def test_answers_that_are_not_from_gerrit_are_retried_later(body: str) -> None:
    error = await raised(answered("200 OK", body=body))
    assert isinstance(error, GerritAway) and "changes/7" in str(error) and len(str(error)) < 1_000


async def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_MAX_BYTES", 100_000)
    error = await raised(answered("200 OK", body="[" * 5_000_000))
    assert isinstance(error, GerritAway) and "more than 100000 bytes" in str(error)


async def test_a_server_that_says_nothing_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_MAX_S", 0.3)
    silent = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        try:
            while not silent.is_set():
                writer.write(b" ")
                await writer.drain()
                await slow(0.05)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with asyncio.timeout(DEADLINE_S), server, gerrit_client(at(url)) as client:
        with pytest.raises(GerritAway, match="within"):
            await GerritRest(client, at(url)).change(7)
        silent.set()


async def test_a_gerrit_that_does_not_answer_counts_as_down() -> None:
    async with gerrit_client(at("http://127.0.0.1:1")) as client:
        with pytest.raises(GerritAway, match="changes/7"):
            await GerritRest(client, at("http://127.0.0.1:1")).change(7)
