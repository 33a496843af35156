"""Test one TLS configuration for every server: commands, pages and executors use it, and changed certificates are
loaded."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headgate.base.errors import UserError
from headgate.cli.identity.credentials import tls_of
from headgate.cli.settings import Settings, read
from headgate.queue import Message, Queues, SourceDown, Worker, job
from headgate.queue.messages.board import MessageBoard
from headgate.testing.clock import DEADLINE_S
from headgate.testing.queues.harness import APP, KEY, serving
from headgate.testing.repositories import Repositories
from headgate.web.peers.connections import ServerCertificates, Tls
from tests.e2e.headgate import SETTINGS, Headgate

from .conftest import TENANTS

Signer = tuple[x509.Name, ec.EllipticCurvePrivateKey]


def authority(directory: Path) -> Signer:
    """The CA of its certificate is in `ca.pem`."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(exist_ok=True)
    (directory / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return who, key


def certificate(directory: Path, name: str = "gate.example", by: Signer | None = None) -> Tls:
    """Create a new one, in the same files."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing = by or (who, key)
    names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signing, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / "gate.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    (directory / "gate.pem").write_bytes(made.public_bytes(pem))
    return Tls(directory / "gate.pem", directory / "gate.key")


@pytest.mark.long
def test_the_pages_speak_tls_and_a_command_trusts_that_certificate_alone(tmp_path: Path) -> None:
    tls = certificate(tmp_path, by=authority(tmp_path))
    authority(tmp_path / "stranger")
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": "- job: {name: base, parent: null}\n"})
    for name in ("code/api", "code/lib"):
        repositories.create(name, {"README": "read me\n"})
    section = f"[tls]\ncertificate = {tls.certificate}\nkey = {tls.key}\n"
    settings = SETTINGS.replace("[web]\n", "[web]\ntoken = not-for-strangers\n")
    gate = Headgate(repositories, TENANTS, settings=settings + section)
    gate.start(scheme="https")
    try:
        command = [str(Path(sys.executable).with_name("headgate")), "components", "--url", gate.url]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        assert done.returncode == 0 and "scheduler/" in done.stdout, done.stderr
        other = tmp_path / "other"
        other.mkdir()
        certificate(other)
        (other / "headgate.conf").write_text(
            "[tls]\ncertificate = gate.pem\nkey = gate.key\n[web]\ntoken = not-for-strangers\n"
        )
        done = subprocess.run(command, cwd=other, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        assert done.returncode == 1 and "CERTIFICATE_VERIFY_FAILED" in done.stderr, done.stderr
        for name, status in (("ca.pem", 0), ("stranger/ca.pem", 1), ("", 1)):  # of settings that serve nothing
            ca = f"ca = {tmp_path / name}" if name else ""
            (other / "headgate.conf").write_text(f"[tls]\n{ca}\n[web]\ntoken = not-for-strangers\n")
            done = subprocess.run(command, cwd=other, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
            assert done.returncode == status, done.stderr
            assert status == 0 or "CERTIFICATE_VERIFY_FAILED" in done.stderr
        unchecked = [command[0], "--insecure", "--auth-token", "not-for-strangers", *command[1:]]
        done = subprocess.run(unchecked, cwd=other, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        assert done.returncode == 0 and "scheduler/" in done.stdout, done.stderr
    finally:
        gate.stop()


JOB = """
async def done(message, context):
    print("processed", message.body, flush=True)
    raise SystemExit(0)
"""


@pytest.mark.long
async def test_queue_clients_trust_the_configured_authority_and_no_other(tmp_path: Path) -> None:
    tls = certificate(tmp_path, by=authority(tmp_path))
    authority(tmp_path / "stranger")
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    async with serving(board, tls=tls) as server:
        url = f"{server}/v1/{APP}/"
        for ca, refused in (("", True), (tmp_path / "stranger/ca.pem", True), (tmp_path / "ca.pem", False)):
            with pytest.raises(SourceDown) if refused else nullcontext():
                async with Queues(url, KEY, ca=ca) as queues:
                    await queues.post("q", "hello")
        with pytest.raises(UserError, match="cannot read certificates from it"):
            async with Queues(url, KEY, ca=tmp_path / "gate.key"):
                pass

        got, stop = list[str](), asyncio.Event()

        @job("q")
        def take(message: Message, context: object) -> None:
            got.append(message.body)
            loop.call_soon_threadsafe(stop.set)

        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DEADLINE_S):
            await Worker(url, KEY, [take], ca=tmp_path / "ca.pem").run(stop)
        assert got == ["hello"]

        (tmp_path / "jobs_of_tls.py").write_text(JOB)
        (tmp_path / "worker.conf").write_text(
            f"[qdo-worker]\njob = jobs_of_tls:done\n[queuey]\nconnection = {url}\napp_key = {KEY}\n"
        )
        for section, text in (("", "CERTIFICATE_VERIFY_FAILED"), ("[tls]\nca = ca.pem\n", "q")):
            conf = tmp_path / "worker.conf"
            conf.write_text(conf.read_text() + section)
            status, answer = await _command(tmp_path, "queue", "list", "-c", "worker.conf")
            assert (status == 0) == bool(section) and text in answer, answer
        status, answer = await _command(tmp_path, "worker", "-c", "worker.conf")
        assert "processed hello" in answer, answer
        (tmp_path / "worker.conf").write_text(f"[queuey]\nconnection = {url}\napp_key = {KEY}\n")
        (tmp_path / "headgate.conf").write_text("[tls]\nca = ca.pem\n")
        assert (await _command(tmp_path, "queue", "list", "-c", "worker.conf"))[0] == 0
    await board.close()


async def _command(at: Path, *words: str) -> tuple[int, str]:
    """Return the exit status, and the output."""
    program = str(Path(sys.executable).with_name("headgate"))
    process = await asyncio.create_subprocess_exec(
        program, *words, cwd=at, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


def shown(certificates: ServerCertificates) -> bytes:
    """Return the certificate of a handshake."""
    theirs, ours = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    asking = client.wrap_bio(theirs, ours)
    answering = certificates.context().wrap_bio(ours, theirs, server_side=True)
    for _ in range(4):
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = asking.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_certificate_that_changes_is_shown_from_then_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = certificate(tmp_path)
    certificates = ServerCertificates(tls)
    before = shown(certificates)
    assert shown(certificates) == before
    certificate(tmp_path)
    after = shown(certificates)
    assert after != before
    tls.certificate.write_text("damaged")
    assert shown(certificates) == after and "the previous one stays in use" in caplog.text


def test_a_section_of_its_own_wins_over_the_common_one(tmp_path: Path) -> None:
    conf = tmp_path / "headgate.conf"
    conf.write_text("[tls]\ncertificate = a\nkey = b\n[inventory]\ncert_path = c\nkey_path = d\n")
    settings = read(conf)
    names = ("cert_path", "key_path", "client_ca_path")
    assert tls_of(settings) == Tls(tmp_path / "a", tmp_path / "b")
    assert tls_of(settings, "inventory", names) == Tls(tmp_path / "c", tmp_path / "d")
    conf.write_text("[tls]\ncertificate = a\nkey = b\nclient_ca = e\n")
    assert tls_of(read(conf), "inventory", names) == Tls(tmp_path / "a", tmp_path / "b", tmp_path / "e")
    with pytest.raises(UserError, match="needs both"):
        tls_of(Settings(conf, {"tls": {"certificate": "a"}}))
    with pytest.raises(UserError, match="cannot be used"):
        ServerCertificates(Tls(tmp_path / "none", tmp_path / "none"))


async def test_half_a_handshake_keeps_nobody_out(tmp_path: Path) -> None:
    from headgate.web.peers.connections import HANDSHAKES_MAX
    from headgate.web.process import Vitals, create_waiting_app
    from headgate.web.server import serve

    class Reachable:
        away_since_ms = None
        away_why = ""

    tls, stop = certificate(tmp_path), asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    app = create_waiting_app(Vitals(Reachable(), lambda: b""))
    serving = asyncio.ensure_future(serve(app, "127.0.0.1", 0, stop, port.set_result, tls=tls))
    try:
        silent = [await asyncio.open_connection("127.0.0.1", await port) for _ in range(2 * HANDSHAKES_MAX)]
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", await port, ssl=client)
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            assert await silent[0][0].read() == b"", "the oldest give way"
        for _, one in (*silent, (reader, writer)):
            one.close()
    finally:
        stop.set()
        await serving
