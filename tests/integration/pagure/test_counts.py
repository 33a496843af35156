"""Test the number of calls for one change on Pagure, from its proposal to its landing, and what costs none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.gate.state.change import EventKind
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import MergeLanded
from tests.integration.github.test_reporting import report
from tests.integration.pagure.ground import PROJECT, Ground, opened, watched
from tests.integration.pagure.test_landing import as_tested, change_of


@pytest.mark.long
async def test_one_change_checked_and_gated(here: Ground) -> None:
    """Two processes are used, as the scheduler watches and a courier reports and lands; the project requires a
    score."""
    here.project.options["Minimum_score_to_merge_pull-request"] = 1
    _, worker = here.driver("worker")

    async def tell(pull: Any, kind: str, pipeline: str, **how: Any) -> None:
        work = replace(report(kind, kind), pipeline=pipeline)
        how = {"comment": False, **how}
        await worker.report(OutboxMessage("", work, key=f"{pipeline}-{kind}", change=change_of(pull), how=how))

    async with watched(here) as gate:
        before = len(here.calls)
        pull = opened(here)
        await here.settled()
        await tell(pull, "start", "check", status="pending")
        await tell(pull, "success", "check", status="success", comment=True)
        here.bob.thumb(pull)
        await here.settled()
        assert [one.met for one in gate.change_state(1).details.rules or ()] == [True]  # type: ignore[union-attr]
        await tell(pull, "start", "gate", status="pending")
        await tell(pull, "success", "gate", status="success")
        done = await worker.land(*as_tested(here, pull))
        assert isinstance(done, MergeLanded) and not done.differs
        gate.known[f"{PROJECT}#1"] = replace(gate.change_state(1), open=False, landed=True, untold=True)
        await here.settled()
    await worker.close()
    cost = Counter(here.calls[before:])
    assert pull.status == "Merged" and not gate.change_state(1).untold
    assert EventKind.MERGED in [event.kind for event in gate.events]
    # Two polls of two calls, once options, people and the token of the webhooks; four flags; who we are and a comment
    # in two calls; a merge in three.
    assert cost.total() <= 17, cost
    assert not here.refused


@pytest.mark.long
async def test_deliveries_that_are_nothing_cost_no_call(here: Ground) -> None:
    """Deliveries about something unknown, irrelevant, or Headgate's own actions."""
    other = here.hub.project("acme/other", {"a": "1"}, hook=here.hook)
    async with watched(here) as gate:
        pull = opened(here)
        await here.settled()
        before = len(here.calls)
        here.ada.propose(other, "topic", {"a": "2"})
        here.bot.comment(pull, "From the gate")
        here.bot.flag(pull, "Zuul: example/gate")
        here.hub.acts.post.tell(here.project, here.eve.account, "issue.new", issue={"id": 3})
        await here.settled()
        assert len(here.calls) == before
        here.ada.close(pull)
        await here.settled()
        after_close = len(here.calls)
        here.bob.comment(pull, "A word on what is closed")
        await here.settled()
        assert len(here.calls) == after_close
    assert gate.answered and all("is not tested here" in why for why in here.refused)
