"""Test the stream of a real Gerrit, and how its end is noticed."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.stream import GerritHint, StreamDead, stream
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.faults import Proxy
from headgate.testing.servers.gerrit import LocalGerrit
from headgate.testing.servers.gerritpeople import Clone, ReviewingPeople


async def first(hints: AsyncIterator[GerritHint], wanted: Callable[[GerritHint], bool]) -> GerritHint:
    async with asyncio.timeout(DEADLINE_S):
        async for hint in hints:
            if wanted(hint):
                return hint
    raise AssertionError("the stream ended without a word")


async def open_for(server: Server, people: ReviewingPeople, number: int) -> tuple[AsyncIterator[GerritHint], object]:
    """Open a stream, and wait for a vote to prove that it is open."""
    opened = stream(server)
    hints = await opened.__aenter__()
    hint_task = asyncio.ensure_future(first(hints, lambda hint: hint.number == number))
    while not hint_task.done():
        people.bob.votes(number, "ping")
        await asyncio.wait([hint_task], timeout=0.5)
    await hint_task
    return hints, opened


@pytest.mark.long
async def test_the_stream_names_the_projects_refs_and_changes_that_moved(
    people: ReviewingPeople, project: str, clone: Clone, past_review: Clone, server: Callable[..., Server]
) -> None:
    change = clone.proposes({"a": "1\n"})
    hints, opened = await open_for(server(), people, change.number)
    try:
        newer = clone.proposes({"b": "1\n"})
        hint = await first(hints, lambda hint: hint.number == newer.number)
        assert hint.project == project
        past_review.pushes({"c": "1\n"})
        assert await first(hints, lambda hint: hint.ref == "refs/heads/master" and hint.project == project)
        people.alice.abandons(change.number)
        assert await first(hints, lambda hint: hint.number == change.number)
    finally:
        await opened.__aexit__(None, None, None)  # type: ignore[attr-defined]


@pytest.mark.long
async def test_a_line_that_is_dead_ends_the_stream(
    running: LocalGerrit, people: ReviewingPeople, clone: Clone, server: Callable[..., Server], tmp_path: Path
) -> None:
    proxy = Proxy("127.0.0.1", running.ssh_port)
    await proxy.start()
    known = tmp_path / "known_proxy"
    known.write_text(server_lines(running, proxy.port))
    change = clone.proposes({"a": "1\n"})
    through = server(port=str(proxy.port), known_hosts=str(known), keepalive="1")
    hints, opened = await open_for(through, people, change.number)
    try:
        proxy.stall()
        with pytest.raises(StreamDead, match="ssh ended with 255"):
            await first(hints, lambda _: False)
    finally:
        await opened.__aexit__(None, None, None)  # type: ignore[attr-defined]
        await proxy.stop()


def server_lines(running: LocalGerrit, port: int) -> str:
    return "".join(f"{line}\n".replace(f":{running.ssh_port} ", f":{port} ") for line in running.host_keys)


async def refusal(server: Server) -> str:
    async with stream(server) as hints:
        with pytest.raises(StreamDead) as dead:
            await first(hints, lambda _: False)
    return str(dead.value)


def strange_key(file: Path) -> str:
    """Create an unknown key; return its public half."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return " ".join(file.with_suffix(".pub").read_text().split()[:2])


async def test_a_server_without_the_known_key_is_not_listened_to(
    running: LocalGerrit, server: Callable[..., Server], tmp_path: Path
) -> None:
    nobody = tmp_path / "nobody"
    nobody.write_text("")
    why = await refusal(server(known_hosts=str(nobody)))
    assert f"ssh-keyscan -p {running.ssh_port} 127.0.0.1" in why and str(nobody) in why
    other = tmp_path / "other"
    key = strange_key(tmp_path / "k")
    other.write_text(f"[127.0.0.1]:{running.ssh_port} {key}\n")
    assert "ssh-keyscan" in await refusal(server(known_hosts=str(other)))
    assert nobody.read_text() == "", "no key is learned"
    assert "refuses headgate" in await refusal(server(sshkey=str(tmp_path / "k")))
    assert "refuses alice" in await refusal(server(user="alice"))


async def test_no_server_is_a_dead_stream(server: Callable[..., Server]) -> None:
    assert "ssh ended with 255" in await refusal(server(port="1"))
    with pytest.raises(StreamDead, match="install openssh-client"):
        async with stream(server(), "no-such-ssh"):
            raise AssertionError("it was opened")
