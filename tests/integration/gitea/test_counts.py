"""Test the number of calls for one change on Gitea, from its proposal to its landing, and for another poll."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.adapters.forges import poll
from headgate.gate.state.change import EventKind
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import MergeLanded
from tests.integration.gitea.ground import PROJECT, Ground, opened, watched
from tests.integration.gitea.test_landing import as_tested
from tests.integration.gitea.test_reporting import change_of
from tests.integration.github.test_reporting import report


@pytest.mark.long
async def test_one_change_checked_and_gated(here: Ground) -> None:
    """Two processes are used, as the scheduler watches and a courier reports and lands; the rules require a review
    and the gate's own status."""
    here.hub.world.mergeability_asks = 0
    here.hub.protect(here.repository, approvals=1, contexts=("acme/gate",))
    _, worker = here.driver("worker")

    async def tell(pull: Any, kind: str, pipeline: str, **how: Any) -> None:
        work = replace(report(kind, kind), pipeline=pipeline)
        how = {"comment": False, **how}
        await worker.report(OutboxMessage("", work, key=f"{pipeline}-{kind}", change=change_of(pull), how=how))

    async with watched(here) as gate:
        before = len(here.hub.server.log)
        pull = opened(here)
        await here.settled()
        await tell(pull, "start", "check", status="pending")
        await tell(pull, "success", "check", status="success", comment=True)
        here.bob.review(pull)
        await here.settled()
        assert [one.met for one in gate.change_state(1).details.rules or ()] == [True, False]  # type: ignore[union-attr]
        await tell(pull, "start", "gate", status="pending")
        await tell(pull, "success", "gate", status="success")
        done = await worker.land(*as_tested(here, pull))
        assert isinstance(done, MergeLanded) and not done.differs
        gate.known[f"{PROJECT}#1"] = replace(gate.change_state(1), open=False, landed=True, untold=True)
        await here.settled()
    await worker.close()
    cost = len(here.hub.server.log) - before
    assert pull.merged and not gate.change_state(1).untold
    assert EventKind.MERGED in [event.kind for event in gate.events]
    # Two polls of five calls, once the rule, two permissions; four statuses, who we are, one comment in two calls; a
    # merge in four.
    assert cost <= 24, [f"{one.method} {one.template}" for one in here.hub.server.log[before:]]


@pytest.mark.long
async def test_polling_unchanged_changes_is_bounded(here: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many open changes, few are polled in turn besides those that moved."""
    monkeypatch.setattr(poll, "IN_TURN_MAX", 2)
    for n in range(3):
        here.ada.propose(here.repository, f"topic{n}", {f"{n}": ""})
    here.hub.world.clock.advance(60)
    _, here.forge = here.driver("often", every_s=0.3)
    here.gate.forge = here.forge
    lists = "/repos/{owner}/{repo}/pulls"
    async with watched(here) as gate:
        await gate.until(lambda: len(gate.known) == 3)
        await here.settled()
        begun = len(here.hub.server.log)
        while sum(one.template == lists for one in here.hub.server.log[begun:]) < 3:
            here.ada.push(here.repository, "main", {f"x{len(here.hub.server.log)}": ""})
            await here.settled()
        log = here.hub.server.log[begun:]
    await here.forge.close()
    begins = [n for n, one in enumerate(log) if one.template == lists]
    turns = [log[begin:end] for begin, end in pairwise(begins)]
    looked = [[one.answer["number"] for one in turn if one.template == f"{lists}/{{index}}"] for turn in turns]
    assert all(len(turn) == 2 for turn in looked) and looked[0] != looked[1]
    assert gate.reported.count("pull_request.opened") == 3
