"""Approvals of what nobody has proposed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headgate.adapters.git.poll.misfits import Misfits
from headgate.adapters.git.poll.names import APPROVED, FOR, Names
from headgate.gate.change import ChangeState

APPROVES_NOTHING = "it approves what nobody has proposed"


def orphans(
    refs: Mapping[str, str], project: str, names: Names, now: Iterable[ChangeState], misfits: Misfits
) -> dict[str, str]:
    """Return the refs that approve nothing, with their commits, except for landed changes; `misfits` collects them for
    people. `now`: known changes, the latest last."""
    found: dict[str, str] = {}
    known = {change_state.change.key: change_state for change_state in now}
    for ref, commit in refs.items():
        name = ref.removeprefix(APPROVED)
        if name == ref or FOR + name in refs or names.misfit(project, name):
            continue
        branch, topic = names.split(project, name)
        landed_state = known.get(f"{project}/{branch}/{topic}")
        # Its approval may outlive the landing where the server lets nobody delete refs.
        if landed_state is not None and landed_state.landed and landed_state.change.commit == commit:
            continue
        found[ref] = commit
        misfits.add(ref, f"{APPROVES_NOTHING}; push it to {FOR}{name}, or remove this ref")
    return found
