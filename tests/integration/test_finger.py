"""Test live logs over finger: the answers, the permissions, and what clients cannot do."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.adapters.process.joblog import follow
from headgate.base.errors import UserError
from headgate.base.tasks import end, run_until
from headgate.cli.identity.credentials import tls_of_finger
from headgate.cli.settings import Settings
from headgate.config.operator.model import Tenant
from headgate.map.places import Map
from headgate.recipes.claims import Claim
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Request
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.store.store import Session, Store
from headgate.testing.clock import DEADLINE_S
from headgate.web import finger
from headgate.web.buildlogs import BuildLogs
from headgate.web.finger import Gateway
from headgate.web.peers.connections import Tls

from .test_tls import authority, certificate

BUILD, HIDDEN, WAITING = "0123456789abcdef" * 2, "b" * 32, "c" * 32
ODD = b"\x1b[2J\x00\xff\xfe {{ x }}\r\n" + "gr\u00fc\u00dfe\n".encode()


@dataclass
class Place:
    """Provide a gateway, running builds, and their logs."""

    root: Path
    port: int = 0
    context: Context = field(init=False)
    tenants: dict[str, Tenant] = field(default_factory=lambda: {"open": Tenant("open", ()), "shut": shut()})
    claims: dict[str, Claim] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Build -> number of times that a client began to follow it."""

    def __post_init__(self) -> None:
        store = Store(MemoryBackend())
        self.context = Context(store, Mirror(store, Map().path), lambda: 0)

    async def submit(self, build: str, tenant: str) -> None:
        queue = self.context.builds
        await self.context.store.commit([], queue.submit(Request(build, meta={"tenant": tenant}), b"{}"))
        await self.context.mirror.reached(f"{queue.places.requests}/{build}")

    async def begun(self, build: str, tenant: str, session: Session) -> None:
        queue = self.context.builds
        await self.submit(build, tenant)
        found = queue.find(build, self.context.mirror)
        assert found is not None
        claim = await queue.claim(found, session)
        assert claim is not None
        self.claims[build] = claim
        await until(
            self.context.mirror, lambda: (now := queue.find(build, self.context.mirror)) is not None and now.locked
        )

    def writes(self, build: str, text: bytes) -> None:
        (self.root / build).mkdir(exist_ok=True)
        with open(self.root / build / "job-output.txt", "ab") as file:
            file.write(text)

    async def ends(self, build: str) -> None:
        assert await self.claims[build].complete([], b"{}")
        await until(self.context.mirror, lambda: self.context.builds.find(build, self.context.mirror) is None)

    def answer(self, line: bytes) -> AsyncGenerator[bytes, None]:
        gateway = Gateway(self.context, lambda: self.tenants, BuildLogs(self.root, follow))
        return gateway.answer(line)

    async def answer_to(self, line: bytes) -> bytes:
        """Return everything that a raw client receives."""
        reader, writer = await self.open()
        writer.write(line)
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
        writer.close()
        return answer

    async def open(self, tls: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)


def shut() -> Tenant:
    return replace(Tenant("shut", ()), access_rules=("somebody",))


async def until(mirror: Mirror, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not holds():
            await mirror.moved(mirror.moves)


@asynccontextmanager
async def place(root: Path, tls: Tls | None = None) -> AsyncIterator[tuple[Place, Session]]:
    here, ready, stop = Place(root), asyncio.Event(), asyncio.Event()

    def bound(port: int) -> None:
        here.port = port
        ready.set()

    async with here.context.store.session("executor") as session:
        served = finger.serve(lambda line: here.answer(line), "127.0.0.1", 0, stop, bound, tls)
        task = asyncio.ensure_future(run_until(stop, here.context.mirror.run(), served))
        await here.context.mirror.ready()
        try:
            await asyncio.wait_for(ready.wait(), DEADLINE_S)
            yield here, session
        finally:
            await end(task)


async def test_a_log_is_sent_byte_for_byte_and_followed_until_the_build_has_ended(tmp_path: Path) -> None:
    async with place(tmp_path) as (here, session):
        await here.begun(BUILD, "open", session)
        here.writes(BUILD, ODD)
        reader, writer = await here.open()
        writer.write(BUILD.encode() + b"\r\nanother line that nobody reads\n")
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.readexactly(len(ODD)) == ODD
            here.writes(BUILD, b"more")
            assert await reader.readexactly(4) == b"more"
            here.writes(BUILD, b"the end")
            await here.ends(BUILD)
            assert await reader.read() == b"the end", "what is written before the end is sent, and nothing after it"
        writer.close()
        assert await here.answer_to(BUILD.encode() + b"\n") == b"Build not found", "it does not run any more"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"d" * 32 + b"\n", b"Build not found"),
        (WAITING.encode() + b"\n", b"Build did not start yet"),
        (WAITING.encode() + b"\r\n", b"Build did not start yet"),
        (HIDDEN.encode() + b"\n", b"Build not found"),
        (b"\n", b"Invalid build UUID "),
        (b"../../etc/passwd\n", b"Invalid build UUID ../../etc/passwd"),
        (b"\x1b[2J\x00\xff\n", b"Invalid build UUID ?[2J??"),
        (b"root@elsewhere\n", b"Invalid build UUID root@elsewhere"),
        (b"a" * 1_022 + b"\n", b"Invalid build UUID " + b"a" * 64),
        (b"a" * 2_000_000, b"Invalid build UUID " + b"a" * 64),
    ],
)
async def test_a_request_for_anything_but_a_public_running_build_gets_a_plain_answer(
    tmp_path: Path, line: bytes, answer: bytes
) -> None:
    async with place(tmp_path) as (here, session):
        await here.submit(WAITING, "open")
        await here.begun(HIDDEN, "shut", session)
        here.writes(HIDDEN, b"secret")
        with_more = await here.answer_to(line) if len(line) < 5_000 else await flood(here, line)
        assert with_more == answer


async def flood(here: Place, line: bytes) -> bytes:
    """Sent by a client that does not stop after the answer."""
    reader, writer = await here.open()
    writer.write(line)
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.read(200)
    writer.transport.abort()
    return answer


async def test_a_tenant_that_is_closed_meanwhile_is_closed_to_who_follows(tmp_path: Path) -> None:
    async with place(tmp_path) as (here, session):
        await here.begun(BUILD, "open", session)
        here.writes(BUILD, b"before")
        reader, writer = await here.open()
        writer.write(BUILD.encode() + b"\n")
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.readexactly(6) == b"before"
            here.tenants["open"] = replace(shut(), name="open")
            here.writes(BUILD, b"secret")
            assert await reader.read() == b""
        writer.close()


async def test_a_half_closed_client_is_served_and_a_disconnected_one_noticed_although_the_log_is_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place(tmp_path) as (here, session):
        ended = asyncio.Event()
        monkeypatch.setattr(here, "answer", noted(here.answer, ended))
        await here.begun(BUILD, "open", session)
        here.writes(BUILD, b"before")
        half, writer = await here.open()
        writer.write(BUILD.encode() + b"\n")
        writer.write_eof()
        async with asyncio.timeout(DEADLINE_S):
            assert await half.readexactly(6) == b"before"
            here.writes(BUILD, b"after")
            assert await half.readexactly(5) == b"after"
        at_once = struct.pack("ii", 1, 0)  # the kernel informs the other side when it answers the next probe
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()


def noted(
    answer: Callable[[bytes], AsyncGenerator[bytes, None]], ended: asyncio.Event
) -> Callable[[bytes], AsyncGenerator[bytes, None]]:
    async def noting(line: bytes) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in answer(line):
                yield piece
        finally:
            ended.set()

    return noting


async def test_with_tls_nobody_is_answered_who_shows_no_certificate_of_the_authority(tmp_path: Path) -> None:
    signer = authority(tmp_path)
    tls = certificate(tmp_path, "localhost", by=signer)
    (tmp_path / "stranger").mkdir()
    strange = certificate(tmp_path / "stranger", "localhost")
    async with place(tmp_path, Tls(tls.certificate, tls.key, tmp_path / "ca.pem")) as (here, _):

        async def tls_answer(shown: Tls | None) -> bytes:
            client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
            client.check_hostname = False
            if shown is not None:
                client.load_cert_chain(shown.certificate, shown.key)
            try:
                reader, writer = await here.open(client)
                writer.write(b"d" * 32 + b"\n")
                async with asyncio.timeout(DEADLINE_S):
                    answer = await reader.read()
                writer.transport.abort()
            except (ssl.SSLError, ConnectionError):
                return b""
            return answer

        assert await tls_answer(tls) == b"Build not found"
        assert await tls_answer(None) == b"" and await tls_answer(strange) == b""
        assert await tls_answer(tls) == b"Build not found"


def test_settings_that_want_half_of_tls_are_refused(tmp_path: Path) -> None:
    conf = tmp_path / "headgate.conf"
    assert tls_of_finger(Settings(conf, {"fingergw": {}, "tls": {"certificate": "c", "key": "k"}})) is None
    found = tls_of_finger(Settings(conf, {"fingergw": {"tls_cert": "c", "tls_key": "k", "tls_ca": "a"}}))
    assert found == Tls(tmp_path / "c", tmp_path / "k", tmp_path / "a")
    with pytest.raises(UserError, match=r"\[fingergw\] needs all of tls_cert, tls_key, tls_ca"):
        tls_of_finger(Settings(conf, {"fingergw": {"tls_cert": "c", "tls_key": "k"}}))
