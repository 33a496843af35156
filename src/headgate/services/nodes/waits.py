"""Record why a request waits for machines, since when, and its failures; and decide when it gives back those that it
has.

Where others use an account that this installation cannot see, each may get some of the machines that it wants, and wait
for the rest for ever. A request that has some machines and makes no progress therefore gives them back after a while,
and tries again after a random time, during which the others can complete theirs. Both times grow with every attempt, so
that less and less is made in vain.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.map.inventory.nodes import NodeWait

TRIED_MAX = 12
"""Limit of recent failures that people are shown."""
HELD_FIRST_S, HELD_MAX_S = 300.0, 2_400.0
"""First and longest time for which a request keeps machines while it lacks others. The time doubles with each attempt.
Up to as much is added at random, so that two requests that wait for each other do not give up at the same time."""
PAUSE_FIRST_S, PAUSE_MAX_S = 60.0, 900.0
"""First and longest pause before the request tries again. The pause doubles each time, and up to as much is added at
random."""


def explained(known: NodeWait | None, request: str, why: str, now_ms: int) -> NodeWait:
    """Return the record of a request that waits for this reason, with the time since which it has been the reason."""
    if known is not None and known.why == why:
        return known
    return replace(known or NodeWait(request), why=why, since_ms=now_ms)


def with_tries(wait: NodeWait, tried: Sequence[str]) -> NodeWait:
    """Return the record with the failures since."""
    return replace(wait, tried=(*wait.tried, *tried)[-TRIED_MAX:])


def partly(wait: NodeWait, held: int | None, now_ms: int) -> NodeWait:
    """Return the record of a request that waits for room in an account that others use, too. It has, or could have,
    `held` of its machines; None means that it waits for something else.
    """
    if held is None:
        return wait
    # Progress begins the time anew: whoever gets more machines does not give up.
    if not held or held > wait.held or not wait.held_ms:
        return replace(wait, held=held, held_ms=now_ms if held else 0)
    kept_s = (now_ms - wait.held_ms) / 1000
    if kept_s < _grown_s(wait, "held", HELD_FIRST_S, HELD_MAX_S):
        return wait
    pause_s = _grown_s(wait, "pause", PAUSE_FIRST_S, PAUSE_MAX_S)
    attempt = (
        f"{held} of its machines were there for {kept_s:.0f} s, and others who use the account left no room for more"
    )
    why = f"its machines were given back, as others use the account, too; it asks again after {pause_s:.0f} s"
    # It waits elsewhere the next time (`at`), since others keep this account full.
    gone = replace(wait, at="", held=0, held_ms=0, gave=wait.gave + 1, again_ms=now_ms + round(1000 * pause_s))
    return with_tries(explained(gone, wait.request, why, now_ms), [attempt])


def _grown_s(wait: NodeWait, kind: str, first_s: float, most_s: float) -> float:
    """Return a time that grows with every attempt: different for each request, and the same at every look."""
    # A digest instead of a random number: each look computes the same time, without storing it.
    chance = int(derived(wait.request, kind, str(wait.gave))[:8], 16) / 2**32
    # The exponent is limited because it grows for as long as the request waits.
    return min(first_s * 2.0 ** min(wait.gave, 30), most_s) * (1 + chance)
