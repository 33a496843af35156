"""Record what pipelines say of a patchset, for pipelines that require it before they take the change up."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from headgate.config.forges.facts import PipelineCheck
from headgate.config.forges.git import required_results
from headgate.config.model import Pipeline
from headgate.gate.change import ChangeState

_WORDS = {
    "SUCCESS": "success",
    "FAILURE": "failure",
    "MERGE_CONFLICT": "failure",
    "MERGE_FAILURE": "failure",
    "CONFIG_ERROR": "failure",
}
"""Result of a buildset -> word that requirements can ask for; other results have none."""


def word_of(result: str) -> str:
    """Return the word that a result leaves for a change; empty if it leaves none, so that an earlier word stands."""
    return _WORDS.get(result, "")


def concerns(pipeline: Pipeline, name: str) -> bool:
    """Return whether the pipeline's requirements look at results of the pipeline `name`."""
    requirements = (*pipeline.require.values(), *pipeline.reject.values())
    return any(name in required_results(one.get("check")) for one in requirements)


def vouching(change_state: ChangeState, word: PipelineCheck) -> ChangeState:
    """Return the change state with the current word of a pipeline. Its earlier word is dropped, as are all words on
    other patchsets."""
    others = (one for one in _current(change_state) if (one.tenant, one.pipeline) != (word.tenant, word.pipeline))
    return replace(change_state, checks=(*others, word))


def _current(change_state: ChangeState) -> Iterator[PipelineCheck]:
    return (one for one in change_state.checks if one.commit == change_state.change.commit)
