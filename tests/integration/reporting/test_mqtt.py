"""Test reports as messages of MQTT, with a real broker."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from headgate.adapters.reporters.mqtt import Broker, MqttReporter, MqttUnusable, message, topic_of
from headgate.ports.reporter import ReporterAway, ReportRefused
from headgate.testing.servers.certificates import make
from headgate.testing.servers.program import Program, free_ports
from tests.waiting import until

from .reports import outbox_message

MOSQUITTO = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
needs_broker = pytest.mark.skipif(not Path(MOSQUITTO).exists(), reason="needs Debian's package mosquitto")


def hashed(root: Path) -> Path:
    """Write a password file with the one user."""
    file = root / "secrets"
    file.touch(mode=0o600)
    subprocess.run(["mosquitto_passwd", "-b", str(file), "gate", "right"], check=True)
    return file


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@asynccontextmanager
async def broker(root: Path, *settings: str) -> AsyncIterator[int]:
    """Provide the port of a broker that admits user `gate` with the password `right`."""
    (port,) = free_ports(1)
    secrets = hashed(root)
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous false", f"password_file {secrets}", "user root", *settings]
    (root / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    running = Program([MOSQUITTO, "-c", str(root / "mosquitto.conf")], root)
    running.start()
    try:
        await until("it listens", partial(_listens, port))
        yield port
    finally:
        running.kill()


def section_of(port: int, **more: str) -> dict[str, str]:
    return {"server": "127.0.0.1", "port": str(port), "user": "gate", "password": "right", **more}


def reporter(port: int, root: Path = Path("/nowhere"), **more: str) -> MqttReporter:
    return MqttReporter(Broker.of(section_of(port, **more), root))


@asynccontextmanager
async def listening(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[list[tuple[str, int, Any]]]:
    """Provide topic, quality and content of received messages."""
    messages = list[tuple[str, int, Any]]()
    client = aiomqtt.Client("127.0.0.1", port, username="gate", password="right", tls_context=tls)

    async def hear() -> None:
        async for one in client.messages:
            assert isinstance(one.payload, bytes)
            messages.append((str(one.topic), one.qos, json.loads(one.payload)))

    async with client:
        await client.subscribe("#", qos=2)
        task = asyncio.ensure_future(hear())
        try:
            yield messages
        finally:
            task.cancel()
            await asyncio.wait([task])


@needs_broker
async def test_subscribers_receive_each_report(tmp_path: Path) -> None:
    async with broker(tmp_path) as port, listening(port) as messages:
        await reporter(port).tell(outbox_message())
        for qos in ("0", "1", "2"):
            await reporter(port).tell(
                outbox_message("k2", {"topic": "ci/{project}/{patchset}", "qos": qos}, branch="a#b")
            )
        await until("4 are heard", lambda: len(messages) >= 4)
        assert {topic for topic, *_ in messages} == {"example/zuul/gate/code/api/main/topic", "ci/code/api/abcdef12"}
        assert sorted(quality for _, quality, _ in messages) == [0, 0, 1, 2]
        body = next(body for topic, _, body in messages if topic.startswith("example"))
        assert (body["id"], body["action"], body["tenant"], body["change"]) == ("k1", "failure", "example", "topic")
        assert body["timestamp"] == 1_700_000_000 and body["buildset"]["result"] == "FAILURE"
        (build,) = body["buildset"]["builds"]
        assert build["job_name"] == "unit" and build["web_url"] == "https://gate.example/t/example/build/u1"


@needs_broker
async def test_a_broker_that_is_down_or_refuses_the_password_is_tried_again(tmp_path: Path) -> None:
    async with broker(tmp_path) as port:
        with pytest.raises(ReporterAway, match=f"127.0.0.1:{port}"):
            await reporter(port, password="wrong").tell(outbox_message())
    with pytest.raises(ReporterAway, match=f"127.0.0.1:{port}"):
        await reporter(port).tell(outbox_message())


@needs_broker
async def test_the_broker_proves_its_identity(tmp_path: Path) -> None:
    ours, theirs = make(tmp_path / "ours"), make(tmp_path / "theirs")
    async with broker(tmp_path, f"certfile {ours.server}", f"keyfile {ours.server}") as port:
        tls = ssl.create_default_context(cafile=ours.authority)
        async with listening(port, tls) as messages:
            await reporter(port, tmp_path, ca_certs="ours/" + ours.authority.name).tell(
                outbox_message(options={"qos": "1"})
            )
            await until("one is heard", lambda: len(messages) >= 1)
            with pytest.raises(ReporterAway, match="certificate verify failed"):
                await reporter(port, ca_certs=str(theirs.authority)).tell(outbox_message())


async def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.adapters.reporters.mqtt.TIMEOUT_S", 0.2)
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with server:
        with pytest.raises(ReporterAway):
            await reporter(server.sockets[0].getsockname()[1]).tell(outbox_message())


@pytest.mark.parametrize(
    ("pattern", "changed", "topic"),
    [
        ("{tenant}/{nothing}", {"tenant": "$SYS"}, "_SYS/{nothing}"),
        ("a/{branch}", {"branch": "x/+/#\0\n"}, "a/x/_/___"),
        ("{project}", {"project": "git.example/größe"}, "größe"),
        ("ü" * 40_000, {}, "ü" * 32_767),
    ],
)
def test_topics_are_valid_whatever_the_names_in_them(pattern: str, changed: dict[str, str], topic: str) -> None:
    assert topic_of(pattern, outbox_message(**changed).report) == topic


async def test_errors_in_settings_and_sending_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ReportRefused):
        await reporter(1).tell(outbox_message(options={"qos": "3"}))
    for more in ({"ca_certs": "missing"}, {"certfile": "missing"}):
        with pytest.raises(MqttUnusable, match="cannot be used"):
            reporter(1, tmp_path, **more)
    assert "right" not in repr(Broker.of(section_of(1), tmp_path))


def test_items_that_are_no_change_are_reported_with_their_ref() -> None:
    body = message(outbox_message(ref="refs/tags/v1", change="v1,abc"))
    assert body["ref"] == "refs/tags/v1" and "change" not in body and "patchset" not in body
