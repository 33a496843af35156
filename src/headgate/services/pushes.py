"""Ask a forge whether a change may still be pushed.

The forge is asked immediately before the push, because the server that takes the push does not check: an account that
may bypass the rules of a branch would also push a change whose approval was withdrawn.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.gate.change import Change
from headgate.gate.requirements import amiss
from headgate.gate.work import Demands, LandRequest
from headgate.ports.forge import Forge

HOLDS_MS = 10_000
"""Time for which the answer of a forge is valid, because a merger may start late or find that a repository does not
answer."""


async def kept_back(forges: Mapping[str, Forge], work: LandRequest, tenant: str) -> str:
    """Return why the landing may not be pushed now, for people; empty if it may.

    Raise ReporterAway, ReportPutOff.
    """
    for part in (*work.parts, *work.later):
        change = part.change
        forge, demands = forges.get(change.connection), work.demands.get(change.connection, Demands("git"))
        # A forge that merges checks its own rules.
        if forge is None or forge.can.lands != "push":
            continue
        if why := await _of_one(forge, change, demands, tenant):
            return why
    return ""


async def _of_one(forge: Forge, change: Change, demands: Demands, tenant: str) -> str:
    """Return why one change may not be pushed. The merger knows which changes have landed as they were tested."""
    now = await forge.look_up(change.key)
    if now is None:
        return f"{change.key} is not there any more"
    # A new patchset was pushed after the test; pushing the old one would land what nobody wants any more.
    if now.change.commit != change.commit:
        return f"the head of {change.key} is no more {change.commit[:12]}, which was tested"
    if now.change.branch != change.branch:
        return f"{change.key} was tested on {change.branch}, and is for {now.change.branch} by now"
    # A part of the landing may be there already, from an attempt whose answer was lost.
    if now.landed:
        return ""
    return amiss(demands, now, tenant) if now.open else f"{change.key} is closed"
