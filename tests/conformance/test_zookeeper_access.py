"""Test who may log in, and where: credentials, certificates, foreign data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.store.types import Put, StoreError, Unavailable
from headgate.store.zookeeper import session as sessions
from headgate.store.zookeeper.address import parse
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.store.zookeeper.wire import connection, jute
from headgate.store.zookeeper.wire.connection import ZooKeeperSessionIdentity, ZooKeeperTraffic
from headgate.testing.servers.certificates import GeneratedCertificates, make
from headgate.testing.servers.databases import ZooKeeper, ZooKeeperKind, chroot, zookeeper

USERS = (("gate", "secret"), ("other", "hidden"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GeneratedCertificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def open_server(zookeeper_server: ZooKeeper) -> ZooKeeper:
    return zookeeper_server


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory, files: GeneratedCertificates) -> Iterator[ZooKeeper]:
    """Run a server with TLS, client certificates and users."""
    with zookeeper(tmp_path_factory.mktemp("strict"), ZooKeeperKind(files, USERS)) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for servers that never answer; others have their usual time."""
    monkeypatch.setattr(sessions, "START_S", 0.5)


async def closed(url: str) -> None:
    await (await ZooKeeperBackend.open(url)).close()


def strict(
    server: ZooKeeper, files: GeneratedCertificates, login: str = "gate:secret", certificate: Path | None = None
) -> str:
    own = certificate or files.client
    return f"zookeeper://{login}@127.0.0.1:{server.port}?tls_ca={files.authority}&tls_cert={own}"


@pytest.mark.long
async def test_with_certificate_and_password_one_comes_in(
    strict_server: ZooKeeper, files: GeneratedCertificates
) -> None:
    backend = await ZooKeeperBackend.open(strict(strict_server, files))
    lease = await backend.grant(5)
    written = await backend.commit([], [Put("/a", b"1"), Put("/mine", b"2", lease)])
    assert list(await backend.list("")) == written
    await backend.close()
    with pytest.raises(StoreError, match="ACL allows only other users"):
        await closed(strict(strict_server, files, "other:hidden"))


async def test_a_wrong_password_is_reported(strict_server: ZooKeeper, files: GeneratedCertificates) -> None:
    with pytest.raises(StoreError, match=r"user 'gate' was refused: .* the password is wrong") as caught:
        await closed(strict(strict_server, files, "gate:wrong"))
    assert "wrong@" not in str(caught.value) and ":wrong" not in str(caught.value)


async def test_a_certificate_of_a_stranger_is_reported(
    strict_server: ZooKeeper, files: GeneratedCertificates, impatient: None
) -> None:
    with pytest.raises(Unavailable, match="tls_cert"):
        await closed(strict(strict_server, files, certificate=files.stranger))


async def test_a_server_of_a_stranger_is_not_talked_to(strict_server: ZooKeeper, files: GeneratedCertificates) -> None:
    url = strict(strict_server, files).replace(f"tls_ca={files.authority}", f"tls_ca={files.stranger}")
    with pytest.raises(StoreError, match=r"certificate of 127.0.0.1:.* is not valid"):
        await closed(url)


async def test_the_error_about_a_plain_connection_to_a_tls_port_mentions_tls(
    strict_server: ZooKeeper, impatient: None
) -> None:
    with pytest.raises(Unavailable, match="TLS"):
        await closed(f"zookeeper://127.0.0.1:{strict_server.port}")


async def test_unreadable_certificate_files_are_named(open_server: ZooKeeper, tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("nothing")
    for file, message in (("ca", "not a file of certificates"), ("none", "not a file of certificates")):
        with pytest.raises(StoreError, match=message):
            await closed(f"zookeeper://127.0.0.1:{open_server.port}?tls_ca={tmp_path / file}")


async def test_an_unreachable_server_is_reported(impatient: None) -> None:
    with pytest.raises(Unavailable, match=r"127.0.0.1:1: connection refused"):
        await closed("zookeeper://127.0.0.1:1")


async def test_a_missing_root_is_named(open_server: ZooKeeper) -> None:
    with pytest.raises(StoreError, match=r"there is no node /nowhere; create it first, .* create /nowhere"):
        await closed(f"zookeeper://127.0.0.1:{open_server.port}/nowhere")


async def _link(server: ZooKeeper) -> sessions.ZooKeeperLink:
    address = parse(f"zookeeper://127.0.0.1:{server.port}")
    return await sessions.attach(address, ZooKeeperSessionIdentity(5_000), ZooKeeperTraffic(), lambda *_: None)


async def test_a_root_with_nodes_of_another_program_is_refused(open_server: ZooKeeper) -> None:
    root = await chroot(open_server)
    link = await _link(open_server)
    await link.multi(jute.Do.MULTI, [jute.create(f"{root}/theirs", b"x", 0, jute.OPEN_ACL)])
    with pytest.raises(StoreError, match=r"the root has nodes of another program .theirs.; nothing was written"):
        await closed(f"zookeeper://127.0.0.1:{open_server.port}{root}")
    done = await link.multi(jute.Do.MULTI_READ, [jute.children(root)])
    assert done.answers == [["theirs"]]
    link.close()


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (b'{"headgate": 99}', "newer Headgate .format 99"),
        (b'{"headg', "Headgate did not write"),
        (b"[]", "Headgate did not write"),
        (None, "Headgate did not write"),
    ],
)
async def test_a_foreign_mark_is_reported(open_server: ZooKeeper, mark: bytes | None, message: str) -> None:
    root = await chroot(open_server)
    link = await _link(open_server)
    await link.multi(jute.Do.MULTI, [jute.create(f"{root}/~", mark, 0, jute.OPEN_ACL)])
    link.close()
    with pytest.raises(StoreError, match=message):
        await closed(f"zookeeper://127.0.0.1:{open_server.port}{root}")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("zookeeper://h:x", "'h:x' is not a host:port"),
        ("zookeeper://", "is not a host:port"),
        ("zookeeper://h,:1", "is not a host:port"),
        ("zookeeper://h/a//b", "not a store path"),
        ("zookeeper://h?tls=yes", "unknown option 'tls'"),
        ("zookeeper://user@h", "user:password"),
        ("zookeeper://h?tls_cert=x", "needs tls_ca"),
        ("zookeeper://h?session_s=-1", "from 0.1 to 600"),
    ],
)
def test_an_invalid_address_is_reported(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        parse(url)


def test_an_address_is_read() -> None:
    found = parse("zookeeper://a%40b:p%3Aw@h1,h2:2182,[::1]:9/x/y/?session_s=4")
    assert found.hosts == (("h1", 2181), ("h2", 2182), ("::1", 9))
    assert (found.chroot, found.user, found.password, found.session_s) == ("/x/y", "a@b", "p:w", 4.0)
    assert str(found) == "zookeeper://h1:2181,h2:2182,::1:9/x/y"


def test_the_answer_to_a_challenge_is_that_of_the_standard() -> None:
    """The expected response is an example from the specification of the DIGEST-MD5 mechanism, except for its
    digest-uri."""
    challenge = b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",algorithm=md5-sess,charset=utf-8'
    response = connection.digest_answer(challenge, "chris", "secret", "OA6MHXh6VqTrRk", uri="imap/elwood.innosoft.com")
    assert b"response=d388dad90d4bbd760a152321f2143af7" in response
