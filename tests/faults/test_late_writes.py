"""Test a process that is stopped while its commit is in the network, until another process has its lock."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.base.ids import fresh
from headgate.recipes.lock import lock
from headgate.store.store import Store
from headgate.store.types import Put
from headgate.testing.servers.databases import Etcd, ZooKeeper, chroot
from headgate.testing.servers.faults import proxy
from headgate.testing.servers.program import Program
from tests.faults.holder import HELD, LOCK, NOTICED, PLACE, REFUSED, open_store
from tests.waiting import slow, until

TTL_S = 2.0
TOP = Path(__file__).parents[2]

Url = Callable[[int], str]
"""Return the address of the store at a port."""


@pytest.fixture(params=["zookeeper", "etcd"])
async def place(request: pytest.FixtureRequest) -> tuple[int, Url]:
    """Return the server's port, and a function from a port to the address of a new tree."""
    server: ZooKeeper | Etcd = request.getfixturevalue(f"{request.param}_server")
    if isinstance(server, Etcd):
        root = fresh()
        return server.port, lambda port: f"etcd://127.0.0.1:{port}/{root}"
    path = await chroot(server)  # a connection that outlives the session, or the server itself would drop what is late
    return server.port, lambda port: f"zookeeper://127.0.0.1:{port}{path}?session_s=40"


@pytest.mark.long
@pytest.mark.sampled(2)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "unguarded"])
async def test_a_write_sent_before_the_session_ended_is_refused_when_it_arrives(
    tmp_path: Path, place: tuple[int, Url], guarded: bool
) -> None:
    """Without the guard the late commit is written, which proves that the guard refuses it."""
    real, url = place
    backend = await open_store(url(real))
    store = Store(backend, ttl_s=TTL_S)

    async with proxy(real) as line:
        kind = "guarded" if guarded else "unguarded"
        command = [sys.executable, "-m", "tests.faults.holder", url(line.port), str(TTL_S), kind]
        victim = Program(command, tmp_path, {"PYTHONPATH": str(TOP)})
        victim.start()
        try:
            await until("the lock is held", lambda: HELD in victim.log.read_text())
            while b"old " not in line.withheld:  # except what a connection says of itself
                line.restore()
                await slow(0.01)
                line.mute()
                await until("a write is withheld", lambda: line.withheld != b"")
            victim.signal(signal.SIGSTOP)
            async with store.session("new") as session, lock(store, session, LOCK).hold() as guard:
                await store.commit([], [Put("/new", b"")], guards=[guard])
                before = await store.list(PLACE)
                line.restore()
                await until("what was withheld has come", lambda: not line.withheld)
                victim.signal(signal.SIGCONT)
                await until("the process has ended", lambda: not victim.running)
                text = victim.log.read_text()
                assert REFUSED in text or NOTICED in text, text
                after = await store.list(PLACE)
        finally:
            victim.kill()
            await backend.close()
    assert (after == before) is guarded, after[len(before) :]
