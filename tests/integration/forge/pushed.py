"""Test and land a change by a push, on any forge."""

from __future__ import annotations

from headgate.adapters.git.engine import GitEngine
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import LandAnswer, LandRequest, MergeAnswer, MergeRequest


async def pushed(engine: GitEngine, change: Change, mode: str = "merge") -> LandAnswer:
    """Merge the change for a test and push the result, as a merger does."""
    item = MergeItem(
        "item", change.project, change.connection, change.branch, change.ref, change.commit, mode, 1_700_000_000,
        change.message,
    )  # fmt: skip
    merged = await engine.do(MergeRequest("buildset", (item,), {}))
    assert isinstance(merged, MergeAnswer) and merged.state is not None, merged
    commit = merged.state.merged[change.project][change.branch]
    answer = await engine.do(LandRequest("buildset", merged.state, change, commit, "note"))
    assert isinstance(answer, LandAnswer)
    return answer
