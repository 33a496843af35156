"""Record what pipelines say of a patchset, for pipelines that require it before they take the change up."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from headgate.config.forges.facts import PipelineCheck
from headgate.config.forges.git import asked_for
from headgate.config.model import Pipeline
from headgate.gate.change import ChangeState

_WORDS = {
    "SUCCESS": "success",
    "FAILURE": "failure",
    "MERGE_CONFLICT": "failure",
    "MERGE_FAILURE": "failure",
    "CONFIG_ERROR": "failure",
}
"""Result of a buildset -> what is asked for; of others nothing is said."""


def word_of(result: str) -> str:
    """Return what a result says of a change; empty: nothing, and what was said before stands."""
    return _WORDS.get(result, "")


def concerns(pipeline: Pipeline, name: str) -> bool:
    """Return whether the pipeline's requirements look at results of the pipeline `name`."""
    return any(name in asked_for(said.get("check")) for said in (*pipeline.require.values(), *pipeline.reject.values()))


def vouching(change_state: ChangeState, word: PipelineCheck) -> ChangeState:
    """Return the change state with what a pipeline says now; what it said before, and what was said of other patchsets,
    is forgotten."""
    others = (one for one in _current(change_state) if (one.tenant, one.pipeline) != (word.tenant, word.pipeline))
    return replace(change_state, checks=(*others, word))


def _current(change_state: ChangeState) -> Iterator[PipelineCheck]:
    return (one for one in change_state.checks if one.commit == change_state.change.commit)
