"""Test pages of a large directory: complete, in order, and without a count of the rest by etcd for each."""

from __future__ import annotations

import random

import pytest

from headgate.base.ids import fresh
from headgate.store.etcd.backend import EtcdBackend
from headgate.store.etcd.link import EtcdLink
from headgate.store.etcd.wire import etcd_pb2 as pb
from headgate.store.types import OPS_MAX, Put
from headgate.testing.servers.databases import Etcd

COUNT = 3_000
CHANCE = random.Random(7)
NAMES = {
    "numbers": [f"name-{n:05}" for n in range(COUNT)],
    "uuids": [f"{CHANCE.getrandbits(128):032x}" for _ in range(COUNT)],
    "crowds": [f"{place}/{n}" for place in ("a", "a-b", "é", "zz") for n in range(COUNT // 4)],
    "few and far": [chr(ord("A") + n % 50) * (n // 50 + 1) for n in range(COUNT // 10)],
}


@pytest.mark.long
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("limit", [7, 100])
async def test_all_pages_together_contain_the_entire_directory(
    etcd_server: Etcd, kind: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[list[tuple[bytes, bytes]]] = []
    ask = EtcdLink.ask

    async def recorded(self: EtcdLink, method: str, request: object, answer: object, **more: object) -> object:
        if isinstance(request, pb.TxnRequest):
            requests.append([(one.range.key, one.range.range_end) for one in request.success])
        return await ask(self, method, request, answer, **more)  # type: ignore[arg-type]  # passed on as it is

    monkeypatch.setattr(EtcdLink, "ask", recorded)
    root = fresh()
    backend = await EtcdBackend.open(f"etcd://127.0.0.1:{etcd_server.port}/{root}")
    try:
        names = sorted(set(NAMES[kind]))
        for start in range(0, len(names), OPS_MAX):
            part = names[start : start + OPS_MAX]
            await backend.commit([], [Put(f"/d/{name}", b"") for name in part])
        for begins in ("", names[len(names) // 2][:1]):
            wanted, found, after = [name for name in names if name.startswith(begins)], list[str](), ""
            while page := await backend.scan("/d", begins=begins, after=after, limit=limit):
                found += [entry.path.removeprefix("/d/") for entry in page]
                after = found[-1]
            assert found == wanted
        if kind in ("numbers", "uuids"):
            requests.clear()
            for after in ("", names[0], names[COUNT // 2]):
                assert len(await backend.scan("/d", begins="", after=after, limit=limit)) == limit
            keys = [f"/{root}/d/{name}".encode() for name in names]
            counted = [sum(low <= key < high for key in keys) for ranges in requests for low, high in ranges]
            assert 3 * limit <= sum(counted) < 3 * 40 * limit and len(requests) <= 6
    finally:
        await backend.close()
