"""Test the number of calls for one change on GitLab, from its proposal to its landing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headgate.config.forges.facts import Details
from headgate.gate.state.change import EventKind
from headgate.map.outbox import OutboxMessage
from headgate.ports.forge import MergeLanded
from headgate.testing.forges.gitlab.model import FakeGitLabMergeRequest
from tests.integration.github.test_reporting import report
from tests.integration.gitlab.ground import PROJECT, Ground, as_tested, change_of, opened, watched


@pytest.mark.long
async def test_one_change_checked_and_gated_costs_twenty_calls_at_most(here: Ground) -> None:
    """Two processes are used, as the scheduler watches and a courier reports and lands; an approval is required, and
    a passed pipeline, which the gate's own status makes."""
    here.project.approvals, here.project.only_if_pipeline_succeeds = 1, True
    _, worker = here.driver("worker")

    async def tell(one: FakeGitLabMergeRequest, kind: str, pipeline: str, **how: object) -> None:
        work = replace(report(kind, kind), pipeline=pipeline)
        await worker.report(OutboxMessage("", work, key=f"{pipeline}-{kind}", change=change_of(one), how=how))

    async with watched(here) as gate:
        before = len(here.hub.server.log)
        one = opened(here)
        await here.settled()
        await tell(one, "start", "check", status="running", comment=False)
        await tell(one, "success", "check", status="success", comment=False)
        here.bob.approve(one)
        await here.settled()
        assert (gate.known[f"{PROJECT}#1"].details or Details()).rules == ()
        await tell(one, "start", "gate", status="running", comment=False)
        await here.settled()
        await tell(one, "success", "gate", status="success")
        done = await worker.land(*as_tested(here, one))
        assert isinstance(done, MergeLanded) and not done.differs
        change_state = gate.known[f"{PROJECT}#1"]
        gate.known[f"{PROJECT}#1"] = replace(change_state, open=False, landed=True, untold=True)
        await here.settled()
    await worker.close()
    calls = [f"{call.method} {call.template}" for call in here.hub.server.log[before:]]
    assert one.state == "merged" and EventKind.MERGED in [event.kind for event in gate.events]
    assert len(calls) <= 20, calls


@pytest.mark.long
async def test_polling_unchanged_changes_costs_one_call(here: Ground) -> None:
    for n in range(5):
        here.ada.propose(here.project, f"topic{n}", {f"{n}": ""})
    client, here.forge = here.driver("often", every_s=0.3)
    here.gate.forge = here.forge
    async with watched(here) as gate:
        await gate.until(lambda: len(gate.known) == 5)
        await here.settled()
        before, unchanged = len(here.hub.server.log), client.calls["unchanged"]
        while client.calls["unchanged"] < unchanged + 3:
            here.ada.push(here.project, f"x{client.calls['rest']}", {"x": ""})
            await here.settled()
    assert {call.template for call in here.hub.server.log[before:]} == {"/projects/{project}/merge_requests"}
