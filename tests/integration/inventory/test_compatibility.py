"""Test a client that knows only the published definitions, against the service as a program."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.inventory.model import Partition
from headgate.map.check import check
from headgate.map.inventory.places import InventoryMap
from headgate.map.trees import StoreTree
from headgate.services.inventory.fsck import examine
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.sqlite import SqliteReader
from headgate.store.types import Entry
from headgate.store.zookeeper.backend import ZooKeeperBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers import databases
from headgate.testing.servers.databases import chroot, zookeeper, zookeeper_installed

HERE = Path(__file__).parent


async def run(*command: str, **environment: str) -> str:
    """Return its output; raise an error when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@asynccontextmanager
async def service(
    directory: Path, *options: str, identity: str = "trust", environment: Mapping[str, str] = {}
) -> AsyncIterator[str]:
    """Return its address. Original clients have no tokens: for them it is open."""
    process = await asyncio.create_subprocess_exec(
        headgate(), "inventory", "serve", "--port", "0", "--identity", identity, *options,
        cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        text = ""
        async with asyncio.timeout(DEADLINE_S):
            while not (at := re.search(r"gRPC is at (\S+)", text)):
                line = await process.stdout.readline()
                assert line, text
                text += line.decode()
        yield at[1]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def generated(directory: Path) -> None:
    """Generate the client's modules from the definitions."""
    out = [f"--python_out={directory}", f"--grpc_python_out={directory}"]
    await run(sys.executable, "-m", "grpc_tools.protoc", f"-I{HERE}", *out, str(HERE / "runmetadata.proto"))


LAYOUT = (
    r"types/object/runm\.image",
    r"types/runm\.provider/runm\.compute",
    r"partitions/by-uuid/[0-9a-f]{32}",
    r"partitions/by-name/part0",
    r"definitions/by-uuid/[0-9a-f]{32}",
    r"definitions/by-type/runm\.provider/default",
    r"partitions/[0-9a-f]{32}/definitions/by-type/runm\.provider/default",
    r"partitions/[0-9a-f]{32}/definitions/by-type/runm\.provider/by-type/runm\.compute",
    r"objects/by-uuid/[0-9a-f]{32}",
    r"partitions/[0-9a-f]{32}/objects/by-type/runm\.provider/by-name/node6",
    r"partitions/[0-9a-f]{32}/objects/by-type/runm\.image/by-project/proj0/by-name/debian",
    r"partitions/[0-9a-f]{32}/properties/by-type/runm\.image/architecture/x86_64/[0-9a-f]{32}",
    r"partitions/[0-9a-f]{32}/tags/unicorn/[0-9a-f]{32}",
)


@pytest.mark.long
async def test_a_client_of_the_published_definitions_works_unchanged(tmp_path: Path) -> None:
    await generated(tmp_path)
    store = tmp_path / "inventory.sqlite"
    async with service(tmp_path, "--store", f"sqlite:///{store}") as address:
        await drive(tmp_path, address)
        reader = SqliteReader(store)
        found = await reader.list("/runm/metadata")
        await reader.close()
    hold(found)


@pytest.mark.long
@pytest.mark.skipif(not zookeeper_installed(), reason="needs Debian's package zookeeper")
async def test_the_compatible_service_runs_on_zookeeper(tmp_path: Path) -> None:
    await generated(tmp_path)
    with zookeeper(tmp_path / "zookeeper") as server:
        url = f"zookeeper://127.0.0.1:{server.port}{await chroot(server)}"
        async with service(tmp_path, "--store", url, "--prefix", "lab/") as address:
            await drive(tmp_path, address)
        backend = await ZooKeeperBackend.open(url)
        found = await backend.list("/lab/runm/metadata")
        await backend.close()
        hold(found, "/lab/runm/metadata")
        assert examine(InventoryMap("/lab/runm/metadata"), found) == []


@pytest.mark.long
@pytest.mark.skipif(not databases.etcd_installed(), reason="needs Debian's package etcd-server")
async def test_the_compatible_service_runs_on_etcd_and_registers_there(tmp_path: Path) -> None:
    """`etcdctl` shows the published layout."""
    await generated(tmp_path)
    with databases.etcd(tmp_path / "etcd") as server:
        port = str(server.port)
        async with service(tmp_path, "--etcd-endpoints", f"http://127.0.0.1:{port}", "--prefix", "/") as address:
            await drive(tmp_path, address)
            assert await _keys(port, "gsr/") == [f"gsr/services/runmachine-metadata/{address}"]
            assert await _keys(port, "/gsr") == []
        assert await _keys(port, "gsr") == []
        keys = await _keys(port, "/runm/metadata/")
        backend = await EtcdBackend.open(f"etcd://127.0.0.1:{port}")
        found = await backend.list("/runm/metadata")
        await backend.close()
        assert sorted(entry.path for entry in found) == keys
        hold(found)
        assert examine(InventoryMap(), found) == []


@pytest.mark.long
@pytest.mark.skipif(not databases.etcd_installed(), reason="needs Debian's package etcd-server")
@pytest.mark.parametrize(
    "options", [("--compatible",), ("--prefix", "runm-metadata/"), ("--compatible", "--prefix", "runm-metadata")]
)
async def test_the_compatible_service_reads_keys_where_the_original_stored_them(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Its default prefix has no leading slash, and other services are registered in the same etcd."""
    await generated(tmp_path)
    with databases.etcd(tmp_path / "etcd") as server:
        port, root = str(server.port), "runm-metadata/runm/metadata"
        for key, value in {
            "gsr/services/runmachine-resource/10.0.0.1:10001": "",
            f"{root}/partitions/by-name/old": "d" * 32,
            f"{root}/partitions/by-uuid/{'d' * 32}": Partition("d" * 32, "old").to_wire().decode(),
        }.items():
            await run("etcdctl", f"--endpoints=127.0.0.1:{port}", "put", "--", key, value, ETCDCTL_API="3")
        async with service(tmp_path, "--etcd-endpoints", f"http://127.0.0.1:{port}", *options) as address:
            known = {"RUNM_PORT": address.rpartition(":")[2], "RUNM_HOST": "127.0.0.1", "RUNM_USER": "ada"}
            assert "old" in await run(headgate(), "inventory", "partition", "list", **known)
            await drive(tmp_path, address)
            assert await _keys(port, "gsr/") == [
                f"gsr/services/runmachine-metadata/{address}", "gsr/services/runmachine-resource/10.0.0.1:10001",
            ]  # fmt: skip
        keys = await _keys(port, root)
        backend = await EtcdBackend.open(f"etcd://127.0.0.1:{port}/runm-metadata?bare=yes&shared=yes")
        found = await backend.list("/runm/metadata")
        await backend.close()
        assert sorted(f"runm-metadata{entry.path}" for entry in found) == keys
        assert await _keys(port, "/") == []
        hold(found)


@pytest.mark.long
@pytest.mark.skipif(not databases.etcd_installed(), reason="needs Debian's package etcd-server")
@pytest.mark.parametrize("prefix", ["", "lab/registry/", "/lab/registry"])
async def test_the_registry_has_the_key_that_its_programs_read(tmp_path: Path, prefix: str) -> None:
    """The key matches byte for byte, has an empty value and a lease, and disappears with the service."""
    with databases.etcd(tmp_path / "etcd") as server:
        port = str(server.port)
        environment = {"GSR_KEY_PREFIX": prefix} if prefix else {}
        store = ("--compatible", "--store", f"etcd://127.0.0.1:{port}")
        async with service(tmp_path, *store, environment=environment) as address:
            key = f"{prefix.rstrip('/') or 'gsr'}/services/runmachine-metadata/{address}"
            got = ("etcdctl", f"--endpoints=127.0.0.1:{port}", "get", key, "-w", "json")
            async with asyncio.timeout(DEADLINE_S):
                while "kvs" not in (document := json.loads(await run(*got, ETCDCTL_API="3"))):
                    pass  # it registers once it is served
            (found,) = document["kvs"]
            assert base64.b64decode(found["key"]).decode() == key
            assert "value" not in found and found["lease"]
        assert await _keys(port, key) == []


@pytest.mark.long
async def test_definitions_are_as_the_original_has_them(tmp_path: Path) -> None:
    """The initial definition, and one of its compiler for a property with only an enumeration."""
    await generated(tmp_path)
    options = ("--compatible", "--store", f"sqlite:///{tmp_path / 'inventory.sqlite'}")
    async with service(tmp_path, *options) as address:
        output = await run(sys.executable, str(HERE / "fixtures.py"), address, PYTHONPATH=str(tmp_path))
    assert "the fixtures are in" in output


def headgate() -> str:
    return str(Path(sys.executable).with_name("headgate"))


async def _keys(port: str, prefix: str) -> list[str]:
    """Read with etcd's own program."""
    endpoints = f"--endpoints=127.0.0.1:{port}"
    output = await run("etcdctl", endpoints, "get", "--prefix", "--keys-only", prefix, ETCDCTL_API="3")
    return sorted(line for line in output.splitlines() if line)


async def drive(directory: Path, address: str) -> None:
    output = await run(sys.executable, str(HERE / "client.py"), address, PYTHONPATH=str(directory))
    assert "every method answers as published" in output


def hold(found: Sequence[Entry], root: str = "/runm/metadata") -> None:
    """Every place of the layout is used, and no entry is unknown to the map."""
    paths = [entry.path for entry in found]
    for place in LAYOUT:
        assert any(re.fullmatch(f"{root}/{place}", path) for path in paths), place
    tree = StoreTree(root, InventoryMap)
    findings = check(found, (tree,))
    assert findings.good, findings.text()
    assert all(place.startswith(f"{root}/definitions/by-type/<type>/by-type") for place in findings.unused)
