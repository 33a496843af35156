"""Who has to do with a change, for people."""

from __future__ import annotations

from headgate.config.forges.people import person
from headgate.gate.change import ChangeState


def named(standing: ChangeState) -> str:
    """Return one line of who proposed and who approved this patchset; empty where nobody is known by name."""
    found = approvers(standing)
    parts = [f"proposed by {', '.join(standing.proposers)}"] if standing.proposers else []
    parts += [f"approved by {', '.join(found)}"] if found else []
    said = "; ".join(parts)
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def approvers(standing: ChangeState) -> tuple[str, ...]:
    """Return who approved this patchset, as far as they are known by name."""
    mine = {person(word.who): word.who for word in standing.approvals if word.commit == standing.change.commit}
    return tuple(sorted(mine.values()))
