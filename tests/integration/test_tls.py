"""One TLS for every server: what a command, the pages and the executors make of it, and certificates that change."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headgate.base.errors import UserError
from headgate.cli.identity.tls import tls_of
from headgate.cli.settings import Settings, read
from headgate.testing.repositories import Repositories
from headgate.web.serve import Certificates, Tls
from tests.e2e.headgate import SETTINGS, Headgate

from .conftest import TENANTS


def certificate(directory: Path, name: str = "gate.example") -> Tls:
    """A new one, in the same files."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (directory / "gate.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    (directory / "gate.pem").write_bytes(made.public_bytes(pem))
    return Tls(directory / "gate.pem", directory / "gate.key")


def test_the_pages_speak_tls_and_a_command_trusts_that_certificate_alone(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": "- job: {name: base, parent: null}\n"})
    for name in ("code/api", "code/lib"):
        repositories.create(name, {"README": "read me\n"})
    section = f"[tls]\ncertificate = {tls.certificate}\nkey = {tls.key}\n"
    gate = Headgate(repositories, TENANTS, settings=SETTINGS + section)
    gate.start(scheme="https")
    try:
        command = [str(Path(sys.executable).with_name("headgate")), "components", "--url", gate.url]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0 and "scheduler/" in done.stdout, done.stderr
        other = tmp_path / "other"
        other.mkdir()
        certificate(other)
        (other / "headgate.conf").write_text(
            "[tls]\ncertificate = gate.pem\nkey = gate.key\n[web]\ntoken = not-for-strangers\n"
        )
        done = subprocess.run(command, cwd=other, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1 and "CERTIFICATE_VERIFY_FAILED" in done.stderr, done.stderr
    finally:
        gate.stop()


def shown(certificates: Certificates) -> bytes:
    """The certificate of a handshake."""
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
    certificates = Certificates(tls)
    before = shown(certificates)
    assert shown(certificates) == before
    certificate(tmp_path)
    after = shown(certificates)
    assert after != before
    tls.certificate.write_text("damaged")
    assert shown(certificates) == after and "the old is shown" in caplog.text


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
        Certificates(Tls(tmp_path / "none", tmp_path / "none"))


async def test_half_a_handshake_keeps_nobody_out(tmp_path: Path) -> None:
    from headgate.web.process import create_waiting_app
    from headgate.web.serve import HANDSHAKES_MAX, serve
    from headgate.web.vitals import Vitals

    class Reach:
        away_since_ms = None
        away_why = ""

    tls, stop = certificate(tmp_path), asyncio.Event()
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    app = create_waiting_app(Vitals(Reach(), lambda: b""))
    serving = asyncio.ensure_future(serve(app, "127.0.0.1", 0, stop, port.set_result, tls=tls))
    try:
        silent = [await asyncio.open_connection("127.0.0.1", await port) for _ in range(2 * HANDSHAKES_MAX)]
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", await port, ssl=client)
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" in await reader.readline()
            assert await silent[0][0].read() == b"", "the oldest give way"
        for _, one in (*silent, (reader, writer)):
            one.close()
    finally:
        stop.set()
        await serving
