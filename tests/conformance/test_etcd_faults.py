"""Test etcd across a network that breaks, and with logins that are refused."""

from __future__ import annotations

import asyncio
import os
import string
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest
from grpc import aio

from headgate.base.ids import fresh
from headgate.store.etcd import link
from headgate.store.etcd.address import parse
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.etcd.link import EtcdLink
from headgate.store.types import (
    Append,
    At,
    Conflict,
    Delete,
    Entry,
    EntryChanged,
    Put,
    Snapshot,
    StoreError,
    Unavailable,
)
from headgate.testing.clock import DEADLINE_S
from headgate.testing.conformance import first
from headgate.testing.servers.certificates import GeneratedCertificates, make
from headgate.testing.servers.databases import Etcd, etcd, etcd_cluster
from headgate.testing.servers.faults import Proxy, proxy
from headgate.testing.servers.program import free_ports
from tests.waiting import nothing_happens, until, wait_for


@pytest.fixture
async def line(etcd_server: Etcd) -> AsyncIterator[Proxy]:
    async with proxy(etcd_server.port) as between:
        yield between


@pytest.fixture
async def backend(line: Proxy) -> AsyncIterator[EtcdBackend]:
    opened = await EtcdBackend.open(f"etcd://127.0.0.1:{line.port}/{fresh()}")
    await opened.commit([], [Delete("/none")])  # the first one raises its fence before it is sent
    yield opened
    line.restore()
    await opened.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "SHORT_S", 0.5)
    monkeypatch.setattr(link, "CONNECT_S", 2.0)


async def test_a_watch_continues_where_it_was_and_reads_no_value_again(backend: EtcdBackend, line: Proxy) -> None:
    await backend.commit([], [Put(f"/w/{n}", b"x" * 100_000) for n in range(5)])
    watch = backend.watch("/w")
    async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
        (snapshot,) = await first(watch, 1)
        assert isinstance(snapshot, Snapshot) and len(snapshot.entries) == 5
        line.cut()
        await backend.get("/any")
        (entry,) = await backend.commit([], [Put("/w/new", b"1")])
        before = backend.traffic.received_bytes
        assert entry is not None and await first(watch, 1) == [EntryChanged(entry)]
        assert backend.traffic.received_bytes - before < 10_000


async def test_a_network_that_breaks_again_and_again_only_delays_a_read(
    backend: EtcdBackend, line: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await backend.commit([], [Put("/w/a", b"1")])
    call, broken = EtcdLink._call, list[str]()

    async def breaks(self: EtcdLink, channel: aio.Channel, method: str, *how: object) -> object:
        if len(broken) == 8:
            return await call(self, channel, method, *how)  # type: ignore[arg-type]  # passed on as they came
        line.stall()
        begun = asyncio.ensure_future(call(self, channel, method, *how))  # type: ignore[arg-type]
        await until("the call is withheld", lambda: line.withheld, every_s=0.01)
        line.cut()
        line.restore()
        broken.append(method)
        return await begun

    monkeypatch.setattr(EtcdLink, "_call", breaks)
    watch = backend.watch("/w")
    async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
        (snapshot,) = await first(watch, 1)
    assert isinstance(snapshot, Snapshot) and len(snapshot.entries) == 1
    assert broken == ["KV/Txn"] * 8


async def test_a_commit_whose_answer_is_lost_cannot_take_effect_later(
    backend: EtcdBackend, line: Proxy, impatient: None
) -> None:
    line.stall()  # the request is on its way, and arrives when nobody expects it any more
    with pytest.raises(Unavailable):
        await backend.commit([], [Append("/q", b"late")])
    line.restore()
    found = list(await backend.list("/q"))  # it took effect by now, or never will
    written = await backend.commit([], [Append("/q", b"again")])

    async def more() -> list[Entry]:
        listed = list(await backend.list("/q"))
        return [] if listed == [*found, *written] else listed

    await nothing_happens(more, for_s=1)


async def test_a_write_whose_answer_is_lost_stays_written(backend: EtcdBackend, line: Proxy) -> None:
    line.deaf()  # it arrives before it is given up
    with pytest.raises(Unavailable):
        await backend.commit([At("/a", None)], [Put("/a", b"1")])
    line.restore()
    with pytest.raises(Conflict):
        await backend.commit([At("/a", None)], [Put("/a", b"2")])
    assert [entry.value for entry in await backend.list("")] == [b"1"]


async def test_an_unreachable_server_is_reported_quickly(impatient: None) -> None:
    (port,) = free_ports(1)
    with pytest.raises(Unavailable, match="no server can be reached"):
        await EtcdBackend.open(f"etcd://127.0.0.1:{port}")


async def test_the_next_server_is_used_when_one_is_down(etcd_server: Etcd) -> None:
    (dead,) = free_ports(1)
    backend = await EtcdBackend.open(f"etcd://127.0.0.1:{dead},127.0.0.1:{etcd_server.port}/{fresh()}")
    await backend.commit([], [Put("/a", b"1")])
    assert await backend.get("/a") is not None
    await backend.close()


@pytest.mark.long
async def test_one_of_three_servers_may_die(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as servers:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        backend = await EtcdBackend.open(f"etcd://{hosts}/{fresh()}")
        lease = await backend.grant(30)
        await backend.commit([], [Put("/mine", b"", lease)])
        watch = backend.watch("/q")
        async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
            await first(watch, 1)
            (await asyncio.to_thread(_leader, servers)).program.kill()
            written = 0
            async with asyncio.timeout(DEADLINE_S):
                while written < 10:
                    try:
                        await backend.commit([], [Append("/q", str(written).encode())])
                        written += 1
                    except Unavailable:  # written or not: the store shows it
                        written = len(await again(backend))
                seen = 0
                while seen < 10:
                    seen += isinstance(await anext(watch), EntryChanged)
            values = [entry.value for entry in await again(backend)]
            assert values == sorted(set(values)), "nothing twice, all in order"
            await backend.keep_alive(lease)
        await backend.close()


@pytest.mark.long
async def test_leadership_is_handed_over_while_many_write(tmp_path: Path) -> None:
    with etcd_cluster(tmp_path) as servers:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
        backend = await EtcdBackend.open(f"etcd://{hosts}/{fresh()}")
        over = asyncio.Event()

        async def write(name: str) -> int:
            """Append until the test is over; return the number of entries."""
            count = 0
            while not over.is_set():
                try:
                    await backend.commit([], [Append(f"/{name}", str(count).encode())])
                    count += 1
                except Unavailable:  # and nothing else
                    count = len(await again(backend, f"/{name}"))
            return count

        writers = {name: asyncio.ensure_future(write(name)) for name in string.ascii_letters}
        for _ in range(6):
            await asyncio.to_thread(_hand_over, servers)
        over.set()
        for name, writer in writers.items():
            async with asyncio.timeout(DEADLINE_S):
                count = await writer
            assert [entry.value for entry in await again(backend, f"/{name}")] == [b"%d" % n for n in range(count)]
        await backend.close()


def _leader(servers: Sequence[Etcd]) -> Etcd:
    """Wait until a server leads, and return it."""
    found: Etcd = wait_for("one leads", lambda: next((server for server in servers if server.leads), None))
    return found


def _hand_over(servers: Sequence[Etcd]) -> None:
    """Move the lead to another server, even if the servers elect leaders on their own meanwhile."""
    wait_for("the lead is handed over", lambda: _handed_over(servers))


def _handed_over(servers: Sequence[Etcd]) -> bool:
    leader = _leader(servers)
    other = next(server for server in servers if server is not leader)
    try:
        listed = etcdctl([f"127.0.0.1:{leader.port}"], "member", "list")
        (number,) = [line.split(",")[0] for line in listed.splitlines() if f", {other.name}," in line]
        etcdctl([f"127.0.0.1:{leader.port}"], "move-leader", number)
    except subprocess.CalledProcessError:
        return False
    return True


async def again(backend: EtcdBackend, parent: str = "/q") -> Sequence[Entry]:
    async def listed() -> list[Sequence[Entry]]:
        try:
            return [await backend.list(parent)]
        except Unavailable:
            return []

    (found,) = await until("the store answers again", listed)
    return found


# --- access


def etcdctl(endpoint: Sequence[str], *words: str) -> str:
    """Run etcdctl and return its output.  `endpoint`: an address, and flags."""
    command = ["etcdctl", f"--endpoints={endpoint[0]}", *endpoint[1:], *words]
    environment = {**os.environ, "ETCDCTL_API": "3"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GeneratedCertificates:
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, files: GeneratedCertificates) -> Iterator[Etcd]:
    """Run a server with TLS, client certificates, and a user who may access some keys."""
    with etcd(tmp_path_factory.mktemp("strict"), files) as running:
        flags = [f"https://127.0.0.1:{running.port}", f"--cacert={files.authority}"]
        flags += [f"--cert={files.client}", f"--key={files.client}"]
        for words in (
            "user add root:secret",
            "user grant-role root root",
            "role add gate",
            "role grant-permission gate readwrite --prefix=true /gate",
            "user add gate:word",
            "user grant-role gate gate",
            "auth enable",
        ):
            etcdctl(flags, *words.split())
        yield running


def strict_url(
    server: Etcd, files: GeneratedCertificates, login: str = "gate:word@", root: str = "/gate", own: Path | None = None
) -> str:
    tls = f"tls_ca={files.authority}&tls_cert={own or files.client}"
    return f"etcd://{login}127.0.0.1:{server.port}{root}?{tls}"


async def test_with_certificate_and_password_one_comes_in(strict: Etcd, files: GeneratedCertificates) -> None:
    backend = await EtcdBackend.open(strict_url(strict, files))
    lease = await backend.grant(5)
    written = await backend.commit([], [Put("/a", b"1"), Put("/mine", b"2", lease)])
    assert list(await backend.list("")) == written
    watch = backend.watch("/a")
    async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
        await first(watch, 1)
        await backend.commit([], [Put("/a", b"3")])
        await first(watch, 1)
    await backend.close()


@pytest.mark.parametrize(
    ("login", "root", "message"),
    [
        ("gate:wrong@", "/gate", "the user 'gate' or the password is wrong"),
        ("gate:word@", "/elsewhere", "access to the keys below /elsewhere"),
        ("", "/gate", "use a user with access"),
    ],
)
async def test_a_refused_login_is_reported_with_the_reason(
    strict: Etcd, files: GeneratedCertificates, login: str, root: str, message: str
) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        await EtcdBackend.open(strict_url(strict, files, login, root))
    assert "wrong@" not in str(caught.value)


async def test_a_certificate_of_a_stranger_is_reported(
    strict: Etcd, files: GeneratedCertificates, impatient: None
) -> None:
    with pytest.raises(Unavailable, match="tls_cert"):
        await EtcdBackend.open(strict_url(strict, files, own=files.stranger))


async def test_a_root_with_keys_of_another_program_is_refused(etcd_server: Etcd) -> None:
    root = f"/{fresh()}"
    etcdctl([f"127.0.0.1:{etcd_server.port}"], "put", f"{root}/theirs", "x")
    with pytest.raises(StoreError, match="the root has keys of another program"):
        await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}{root}")


@pytest.mark.parametrize(
    ("mark", "message"), [('{"headgate": 99}', "newer Headgate"), ("garbage", "Headgate did not write")]
)
async def test_a_tree_of_another_format_is_not_changed(etcd_server: Etcd, mark: str, message: str) -> None:
    root = f"/{fresh()}"
    etcdctl([f"127.0.0.1:{etcd_server.port}"], "put", f"{root}~mark", mark)
    with pytest.raises(StoreError, match=message):
        await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}{root}")


async def test_a_watch_reads_everything_again_after_a_compaction(
    backend: EtcdBackend, line: Proxy, etcd_server: Etcd
) -> None:
    watch = backend.watch("/w")
    async with aclosing(watch):  # type: ignore[type-var]  # an async generator behind its protocol
        await first(watch, 1)
        line.refuse()
        other = await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}{backend.address.root}")
        for number in range(3):
            (entry,) = await other.commit([], [Put("/w/a", str(number).encode())])
        assert entry is not None
        etcdctl([f"127.0.0.1:{etcd_server.port}"], "compact", str(entry.version))
        line.restore()
        assert await first(watch, 1) == [Snapshot((entry,))]
        await other.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("etcd://h:x", "not a host:port"),
        ("etcd://h?tls=1", "unknown option 'tls'"),
        ("etcd://u@h", "user:password"),
        ("etcd://h/a//b", "not a store path"),
        ("etcd://h?tls_cert=c", "tls_cert needs tls_ca"),
    ],
)
def test_a_wrong_address_is_reported(url: str, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        parse(url)


def test_unreadable_certificate_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"tls_ca=.*/missing cannot be read"):
        parse(f"etcd://h?tls_ca={tmp_path}/missing").tls()


@pytest.mark.parametrize("op", [Put("/a", b""), Append("/a", b"")])
async def test_a_fence_of_an_unexpected_version_is_raised_again(etcd_server: Etcd, op: Put | Append) -> None:
    backend = await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}/{fresh()}")
    try:
        await backend.commit([], [op])
        backend._commits._fenced += 1  # as when the request that raised it arrived twice
        (entry,) = await backend.commit([], [op])
        assert entry is not None and await backend.get(entry.path) == entry
    finally:
        await backend.close()
