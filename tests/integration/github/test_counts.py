"""Test the number of calls for one change on GitHub, from its proposal to its landing: at most 15 of REST and 2 of
GraphQL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import EventKind
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import MergeLanded
from headgate.testing.forges.github.people import GitHub
from tests.integration.github.ground import PROJECT, Ground, ground, opened, watched
from tests.integration.github.test_landing import as_tested
from tests.integration.github.test_reporting import change_of, report


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        yield found


def counted(here: Ground) -> tuple[int, int]:
    """Return the calls of REST and of GraphQL so far, including those with unchanged answers."""
    graphql = sum(one.template == "graphql" for one in here.hub.server.log)
    return len(here.hub.server.log) - graphql, graphql


@pytest.mark.long
async def test_one_change_checked_and_gated(here: Ground) -> None:
    """Two processes are used, as the scheduler watches and a courier reports and lands; the rules require a review,
    the gate's own check, and a foreign status, which another program sets meanwhile."""
    here.hub.protect(here.repository, approvals=1, contexts=("acme/gate",))
    queue = {"type": "non_fast_forward"}
    here.hub.ruleset(here.repository, queue)
    _, worker = here.driver("worker")

    async def tell(pull: Any, kind: str, pipeline: str, **how: str) -> None:
        work = replace(report(kind, kind), pipeline=pipeline)
        await worker.report(OutboxMessage("", work, key=f"{pipeline}-{kind}", change=change_of(pull), how=how))

    async with watched(here) as gate:
        assert await worker.look_up(f"{PROJECT}#1") is None  # it has a token
        before = counted(here)
        pull = opened(here)
        await here.settled()
        await tell(pull, "start", "check", check="in_progress")
        await tell(pull, "success", "check", check="success")
        here.bob.review(pull)
        await here.settled()
        assert [one.met for one in gate.change_state(1).details.rules or ()] == [False, True]  # type: ignore[union-attr]
        await tell(pull, "start", "gate", check="in_progress")
        await tell(pull, "success", "gate", check="success")
        done = await worker.land(*as_tested(here, pull))
        assert isinstance(done, MergeLanded) and not done.differs
        change_state = gate.change_state(1)
        gate.known[f"{PROJECT}#1"] = replace(change_state, open=False, landed=True, untold=True)
        await here.settled()
    await worker.close()
    rest, graphql = (after - was for after, was in zip(counted(here), before, strict=True))
    assert pull.merged and not gate.change_state(1).untold
    assert EventKind.MERGED in [event.kind for event in gate.events]
    assert rest <= 15 and graphql <= 2, f"{rest} of REST, {graphql} of GraphQL"
    assert len(pull.comments) == 2  # one of each pipeline


@pytest.mark.long
async def test_polling_unchanged_changes_costs_one_free_call(here: Ground) -> None:
    for n in range(5):
        here.ada.propose(here.repository, f"topic{n}", {f"{n}": ""})
    here.hub.world.clock.advance(60)
    client, here.forge = here.driver("often", every_s=0.5)
    here.gate.forge = here.forge
    async with watched(here) as gate:
        await gate.until(lambda: len(gate.known) == 5)
        await here.settled()
        before, unchanged = counted(here), client.calls["unchanged"]
        while client.calls["unchanged"] < unchanged + 3:
            here.ada.push(here.repository, "main", {f"x{client.calls['rest']}": ""})
            await here.settled()
        rest, graphql = (after - was for after, was in zip(counted(here), before, strict=True))
    assert graphql == 0
    lists = [one for one in here.hub.server.log if one.template == "/repos/{owner}/{repo}/pulls"]
    assert len(lists) >= 4 and rest <= 2 * len(lists) + 2
