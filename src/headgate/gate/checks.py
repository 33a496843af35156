"""What pipelines said of a patchset, where another one asks for it before it takes the change up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from headgate.config.forges.facts import Checked
from headgate.config.keys.forms import BY_DEFAULT
from headgate.config.model import Pipeline
from headgate.gate.change import Standing
from headgate.gate.world import World

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


def asked_for(said: dict[str, Any]) -> dict[str, str]:
    """Return pipeline -> what it must have said, of a requirement as it is written."""
    wanted = said.get("check", {})
    return {BY_DEFAULT: wanted} if isinstance(wanted, str) else dict(wanted)


def concerns(pipeline: Pipeline, name: str) -> bool:
    """Does it ask what the pipeline of this name said?"""
    return any(name in asked_for(said) for said in (*pipeline.require.values(), *pipeline.reject.values()))


def unchecked(world: World, standing: Standing) -> str:
    """Return what keeps a change out of what pipelines said of its patchset; empty: nothing does."""
    pipeline, connection, key = world.pipeline, standing.change.connection, standing.change.key
    said = {one.pipeline: one.result for one in _current(standing) if one.tenant == world.tenant}
    for name, result in asked_for(pipeline.require.get(connection, {})).items():
        if said.get(name) != result:
            return f"{key}: the pipeline {name} has not reported {result} on this patchset"
    for name, result in asked_for(pipeline.reject.get(connection, {})).items():
        if said.get(name) == result:
            return f"{key}: the pipeline {name} has reported {result} on this patchset"
    return ""


def vouching(standing: Standing, word: Checked) -> Standing:
    """Return the standing with what a pipeline says now; what it said before, and what was said of other patchsets,
    is forgotten."""
    others = (one for one in _current(standing) if (one.tenant, one.pipeline) != (word.tenant, word.pipeline))
    return replace(standing, checks=(*others, word))


def _current(standing: Standing) -> Iterator[Checked]:
    return (one for one in standing.checks if one.commit == standing.change.commit)
