"""Provide reports of pipelines, and servers that receive them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope
from msgspec.structs import replace

from headgate.map.outbox import OutboxMessage, QueueReport, ReportedBuild

REPORT = QueueReport(
    v=1,
    kind="report",
    id="r1",
    at_ms=1_700_000_000_000,
    tenant="example",
    pipeline="gate",
    project="git.example/code/api",
    branch="main",
    change="topic,abcdef12",
    commit="a" * 40,
    item="i1",
    buildset="b1",
    result="FAILURE",
    message="Build failed.\nhttps://gate.example/t/example/buildset/b1\n\n- unit : FAILURE",
    report="failure",
    subject="Make it faster",
    root="https://gate.example",
    builds=(ReportedBuild(job="unit", build="u1", attempt=1, result="FAILURE", error="exit status 1"),),
)


def outbox_message(key: str = "k1", options: dict[str, Any] | None = None, **changed: Any) -> OutboxMessage:
    return OutboxMessage("", replace(REPORT, **changed), options=options or {}, key=key)


@dataclass(slots=True)
class Mailbox:
    """Provide a mail server, and the mails that it received."""

    port: int = 0
    mails: list[Envelope] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    """Recipient -> the server's answer."""
    answer: str = "250 OK"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Envelope, to: str, options: Any) -> str:
        if to in self.answers:
            return self.answers[to]
        envelope.rcpt_tos.append(to)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:
        if self.answer.startswith("250"):
            self.mails.append(envelope)
            self.encrypted.append(session.ssl is not None)
        return self.answer

    def login(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.logins.append((data.login.decode(), data.password.decode()))
        return AuthResult(success=data.password == b"right", handled=False)


@asynccontextmanager
async def mailbox(port: int = 0, **how: Any) -> AsyncIterator[Mailbox]:
    box = Mailbox()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(box, authenticator=box.login, **how), "127.0.0.1", port)
    box.port = server.sockets[0].getsockname()[1]
    try:
        yield box
    finally:
        server.close()


@dataclass(slots=True)
class Call:
    head: str
    headers: dict[str, str]
    body: bytes


@asynccontextmanager
async def listener(answer: Callable[[Call], bytes]) -> AsyncIterator[tuple[str, list[Call]]]:
    """Provide an HTTP server's address, and the requests that it received."""
    calls: list[Call] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:-2])
            named = {name.lower(): value for name, value in headers.items()}
            body = await reader.readexactly(int(named.get("content-length", "0")))
            calls.append(Call(lines[0], named, body))
            writer.write(answer(calls[-1]))
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", calls
    finally:
        server.close()


def answered(status: str, *headers: str, body: str = "") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", body]
    return "\r\n".join(lines).encode()
