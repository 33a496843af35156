"""Test that a limit reported to one process stops all processes of the account, for few requests to the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headgate.base.tasks import end
from headgate.map.check import check
from headgate.map.places import Map
from headgate.map.trees import StoreTree
from headgate.ports.reporter import ReporterAway
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.limits import SharedLimits
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.testing.clock import DEADLINE_S
from headgate.testing.forges.github.people import GitHub
from tests.integration.github.ground import Ground, ground, opened
from tests.integration.github.test_reporting import outbox_message


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        yield found


@asynccontextmanager
async def process(backend: MemoryBackend, here: Ground) -> AsyncIterator[SharedLimits]:
    """Provide the shared state of a process, while its mirror follows the store."""
    store = Store(backend)
    context = Context(store, Mirror(store, Map().path), lambda: int(here.hub.world.clock.now_s() * 1000))
    shared = SharedLimits(context)
    tasks = [asyncio.ensure_future(context.mirror.run()), asyncio.ensure_future(shared.run())]
    try:
        await context.mirror.ready()
        yield shared
    finally:
        await end(*tasks)


@pytest.mark.long
async def test_a_refusal_of_one_process_stops_other_processes_of_the_same_account(here: Ground) -> None:
    backend, pull, key = MemoryBackend(), opened(here), f"installation {here.installation.id}"
    away = here.hub.repository("far/away", {"a": "1\n"})
    here.hub.install(here.app, "far")
    async with process(backend, here) as one, process(backend, here) as two:
        here.client.limits = one.of("hub")
        other, forge = here.driver("other")
        other.limits = two.of("hub")
        for teller in (here.forge, forge):
            await teller.report(outbox_message(pull, "start"))  # they have their tokens
        writes = [shared.context.store.counts.commits + shared.context.store.counts.reads for shared in (one, two)]

        here.hub.limits.punish(key, 1800)
        count = len(here.hub.server.log)
        for _ in range(3):
            with pytest.raises(ReporterAway) as refused:
                await here.forge.report(outbox_message(pull, "start", "Anew"))
            assert refused.value.alone and 1700 < refused.value.wait_s <= 1801
        path = Map().cache.connection("hub").limits.path
        async with asyncio.timeout(DEADLINE_S):
            while two.context.mirror.get(path) is None:
                await two.context.mirror.moved(two.context.mirror.moves)
        for _ in range(3):
            with pytest.raises(ReporterAway) as refused:
                await forge.report(outbox_message(pull, "start", "Anew"))
            assert refused.value.alone and 1700 < refused.value.wait_s <= 1801
        assert len(here.hub.server.log) == count + 1, "one refusal is enough for all"
        counts = [shared.context.store.counts.commits + shared.context.store.counts.reads for shared in (one, two)]
        assert [after - before for before, after in zip(writes, counts, strict=True)] == [2, 0]
        assert (await other.get(await forge._tokens.of("far/away"), f"/repos/{away.full_name}")).status == 200

        here.hub.world.clock.advance(1802)
        await forge.report(outbox_message(pull, "success"))
        found = check(list(backend.tree.under(Map().path)), [StoreTree(Map().path, Map)])
        assert not found.unknown and not found.undecodable, found.text()
    await other.close()


@pytest.mark.long
async def test_a_limit_that_is_nearly_reached_is_reported_once(here: Ground) -> None:
    backend, pull, key = MemoryBackend(), opened(here), f"installation {here.installation.id}"
    async with process(backend, here) as one, process(backend, here) as two:
        here.client.limits = one.of("hub")
        other, forge = here.driver("other")
        other.limits = two.of("hub")
        await forge.report(outbox_message(pull, "start"))
        budget = here.hub.limits.of(key, "core")
        budget.used = int(budget.limit * 0.95)
        before = one.context.store.counts.commits
        for text in ("once", "twice", "again"):
            await here.forge.report(outbox_message(pull, "start", text))
        account = f"{key} core"
        async with asyncio.timeout(DEADLINE_S):
            while not two.of("hub").known(account).spare_s:
                await two.context.mirror.moved(two.context.mirror.moves)
        assert one.context.store.counts.commits == before + 1
        count = len(here.hub.server.log)
        with pytest.raises(ReporterAway):
            await other.get(await forge._tokens.of("acme/rocket"), "/repos/acme/rocket", urgent=False)
        assert len(here.hub.server.log) == count, "what can wait is not asked"
        await forge.report(outbox_message(pull, "success"))
    await other.close()
