"""Test processes with a wrong store: they name the reason, wait if it may pass, and write nothing."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from headgate.base.ids import fresh
from headgate.map.places import Map
from headgate.map.records import Formats
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.types import Backend, Entry, Put
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.servers.certificates import GeneratedCertificates, make
from headgate.testing.servers.databases import Etcd, ZooKeeper, ZooKeeperKind, chroot, etcd, zookeeper
from headgate.testing.servers.program import Program, SmallDisk
from tests.conformance.test_etcd_faults import etcdctl
from tests.integration.conftest import TENANTS
from tests.waiting import wait_for

from .copies import CopiedProgram
from .headgate import SETTINGS

HEADGATE = str(Path(sys.executable).with_name("headgate"))
PROCESSES = (["scheduler"], ["web"], ["executor"])
REFUSED = 78
USER, PASSWORD = "gate", "pass-word"


@dataclass(frozen=True, slots=True)
class StoreAddresses:
    """Addresses, each of which is wrong in one way -> the error message."""

    waited_for: Mapping[str, str]
    refused: Mapping[str, str]
    newer: str
    """Of `refused`: records that a newer Headgate wrote. They can be exported unchanged."""
    taken: str
    """Of `refused`: foreign data."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GeneratedCertificates:
    return make(tmp_path_factory.mktemp("certificates"))


async def _put(backend: Backend, *puts: Put) -> None:
    await backend.commit([], list(puts))
    await backend.close()


async def _theirs(url: str, path: str) -> str:
    """A path below, which contains a foreign tree."""
    kind = ZooKeeperBackend if url.startswith("zookeeper") else EtcdBackend
    place = f"/{fresh()}"
    await _put(await kind.open(url), Put(place, b""), Put(f"{place}{path}", b"theirs"))
    return place


async def _newer(url: str) -> None:
    kind = ZooKeeperBackend if url.startswith("zookeeper") else EtcdBackend
    await _put(await kind.open(url), Map().system.formats.put(Formats(99)))


def _zookeeper(server: ZooKeeper, strict: ZooKeeper, files: GeneratedCertificates) -> StoreAddresses:
    plain, secure = f"zookeeper://127.0.0.1:{server.port}", f"127.0.0.1:{strict.port}"
    tls, login = f"?tls_ca={files.authority}&tls_cert=", f"zookeeper://{USER}:{PASSWORD}@{secure}"
    newer = plain + asyncio.run(chroot(server))
    asyncio.run(_newer(newer))
    taken = plain + asyncio.run(_theirs(newer, "/theirs")).replace("/", newer.removeprefix(plain) + "/", 1)
    return StoreAddresses(
        {
            f"{login}{tls}{files.stranger}": r"CERTIFICATE.*does it accept tls_cert",
            f"{login}{tls}{files.expired}": r"CERTIFICATE.*does it accept tls_cert",
            f"zookeeper://{secure}": r"does it require TLS",
            f"{plain}{tls}{files.client}": r"does it speak TLS",
            "zookeeper://127.0.0.1:1": r"127.0.0.1:1: connection refused",
        },
        {
            f"zookeeper://{USER}:not-{PASSWORD}@{secure}{tls}{files.client}": r"the password is wrong",
            f"{login}?tls_ca={files.stranger}&tls_cert={files.client}": r"the certificate of .* is not valid",
            f"zookeeper://{secure}{tls}{files.client}": r"requires a login: give user:password@",
            f"{plain}/nowhere": r"there is no node /nowhere; create it first",
            newer: r"format 99",
            taken: r"the root has (keys|nodes) of another program .*; nothing was written",
        },
        newer,
        taken,
    )


def _etcd(server: Etcd, strict: Etcd, files: GeneratedCertificates) -> StoreAddresses:
    plain, secure = f"etcd://127.0.0.1:{server.port}", f"127.0.0.1:{strict.port}/gate"
    tls, login = f"?tls_ca={files.authority}&tls_cert=", f"etcd://{USER}:{PASSWORD}@{secure}"
    newer = f"{plain}/{fresh()}"
    asyncio.run(_newer(newer))
    taken = plain + newer.removeprefix(plain) + asyncio.run(_theirs(newer, "/theirs"))
    return StoreAddresses(
        {
            f"{login}{tls}{files.stranger}": r"CERTIFICATE.*does it accept tls_cert",
            f"{login}{tls}{files.expired}": r"CERTIFICATE.*does it accept tls_cert",
            f"{login}?tls_ca={files.stranger}&tls_cert={files.client}": r"the certificate of .* is not valid",
            f"etcd://{secure}": r"does it require TLS",
            f"{plain}/{fresh()}{tls}{files.client}": r"does it speak TLS",
            "etcd://127.0.0.1:1": r"127.0.0.1:1: connection refused",
        },
        {
            f"etcd://{USER}:not-{PASSWORD}@{secure}{tls}{files.client}": r"the password is wrong",
            f"etcd://{secure}{tls}{files.client}": r"use a user with access",
            f"{login.removesuffix('/gate')}/elsewhere{tls}{files.client}": r"access to the keys below /elsewhere",
            newer: r"format 99",
            taken: r"the root has (keys|nodes) of another program .*; nothing was written",
        },
        newer,
        taken,
    )


@pytest.fixture(scope="module", params=["zookeeper", "etcd"])
def addresses(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, files: GeneratedCertificates
) -> Iterator[StoreAddresses]:
    """Addresses of an open server, and of one that requires TLS, client certificates and passwords. No other test
    uses either, because leases of other tests end at any time and would change the tree that is compared."""
    root, open_root = tmp_path_factory.mktemp("strict"), tmp_path_factory.mktemp("open")
    if request.param == "zookeeper":
        with zookeeper(root, ZooKeeperKind(files, ((USER, PASSWORD),))) as strict, zookeeper(open_root) as anyone:
            yield _zookeeper(anyone, strict, files)
        return
    with etcd(root, files) as strict, etcd(open_root) as anyone:
        flags = [f"https://127.0.0.1:{strict.port}", f"--cacert={files.authority}"]
        flags += [f"--cert={files.client}", f"--key={files.client}"]
        for words in (
            "user add root:secret",
            "user grant-role root root",
            "role add gate",
            "role grant-permission gate readwrite --prefix=true /gate",
            f"user add {USER}:{PASSWORD}",
            f"user grant-role {USER} gate",
            "auth enable",
        ):
            etcdctl(flags, *words.split())
        yield _etcd(anyone, strict, files)


def _begun(stack: ExitStack, root: Path, url: str, command: Sequence[str]) -> Program:
    root.mkdir()
    (root / "headgate.conf").write_text(f"[store]\nurl = {url}\n{SETTINGS}")
    (root / "tenants.yaml").write_text(TENANTS)
    (root / "hub").mkdir()
    program = CopiedProgram([HEADGATE, *command], root)
    program.start()
    stack.callback(program.kill)
    return program


def _quiet(output: str) -> None:
    assert "Traceback" not in output and PASSWORD not in output, output
    assert len(output.splitlines()) <= 6, f"it is said once: {output}"


@pytest.mark.long
@pytest.mark.sampled
def test_processes_wait_for_a_store_that_may_come_back(tmp_path: Path, addresses: StoreAddresses) -> None:
    with ExitStack() as stack:
        waiting = [
            (_begun(stack, tmp_path / f"{number}", url, PROCESSES[number % len(PROCESSES)]), message)
            for number, (url, message) in enumerate(addresses.waited_for.items())
        ]
        for program, message in waiting:
            wait_for(message, lambda: re.search(f"waiting for it: .*{message}", program.log.read_text()))  # noqa: B023 - called here
        for program, _ in waiting:
            assert program.running, program.log.read_text()
            _quiet(program.log.read_text())


@pytest.mark.long
def test_a_gate_on_a_full_disk_reports_that_once_and_ends_on_sigterm(tmp_path: Path) -> None:
    """SQLite renews sessions in memory, so it is never lost, unlike a server that does not answer."""
    gate = tmp_path / "gate"
    try:
        disk = SmallDisk(tmp_path / "disk", gate / "state", 20 * 2**20)
    except RuntimeError as error:
        pytest.skip(f"no small disk can be made here: {error}")
    (gate / "headgate.conf").write_text(f"[store]\nurl = sqlite:///{gate}/state/headgate.sqlite\n{SETTINGS}")
    (gate / "tenants.yaml").write_text(TENANTS)
    (gate / "hub").mkdir()
    program = Program(disk.inside([HEADGATE, "run", "--config", str(gate / "headgate.conf")]), gate)
    try:
        program.start()
        program.until(lambda: "pages are at" in program.log.read_text())
        disk.fill()
        program.until(lambda: "the disk is full" in program.log.read_text())
        assert program.stop() == 0, program.log.read_text()
        text = program.log.read_text()
        assert "available again" not in text and text.count("WARNING headgate.store") == 1, text
    finally:
        program.kill()
        disk.close()


async def _everything(url: str) -> Sequence[Entry]:
    """Entries of the complete store."""
    scheme, _, rest = url.partition("://")
    where = f"{scheme}://{rest.partition('/')[0]}"
    backend = EtcdBackend.beside(where, "") if scheme == "etcd" else await ZooKeeperBackend.open(f"{where}?adopt=yes")
    try:
        return await backend.list("")
    finally:
        await backend.close()


@pytest.mark.long
def test_a_store_that_cannot_be_used_ends_a_process_and_nothing_is_written(
    tmp_path: Path, addresses: StoreAddresses
) -> None:
    before = [asyncio.run(_everything(url)) for url in (addresses.newer, addresses.taken)]
    with ExitStack() as stack:
        begun = [
            (_begun(stack, tmp_path / f"{number}-{command[0]}", url, command), message)
            for number, (url, message) in enumerate(addresses.refused.items())
            for command in (PROCESSES[number % len(PROCESSES)], ["store", "export", "--store", url, "file"])
            if command[0] != "store" or url != addresses.newer
        ]
        for program, message in begun:
            wait_for(f"{message}: it ends", lambda: not program.running)  # noqa: B023 - called here
            text = program.log.read_text()
            assert program.process is not None and program.process.returncode, text
            assert program.process.returncode == REFUSED or "store" in program.command, text
            assert re.search(message, text), text
            _quiet(text)
            assert not (program.directory / "file").exists()
    assert [asyncio.run(_everything(url)) for url in (addresses.newer, addresses.taken)] == before
