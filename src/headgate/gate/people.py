"""Tell people who has to do with a change."""

from __future__ import annotations

from headgate.config.forges.git import person
from headgate.gate.change import ChangeState


def named(change_state: ChangeState) -> str:
    """Return a line that names the people who proposed and who approved this patchset; empty if none is known by
    name."""
    found = approvers(change_state)
    parts = [f"proposed by {', '.join(change_state.proposers)}"] if change_state.proposers else []
    parts += [f"approved by {', '.join(found)}"] if found else []
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""


def approvers(change_state: ChangeState) -> tuple[str, ...]:
    """Return the names of the people who approved this patchset, as far as they are known."""
    mine = {person(word.who): word.who for word in change_state.approvals if word.commit == change_state.change.commit}
    return tuple(sorted(mine.values()))
