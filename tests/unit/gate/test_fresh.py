"""Test that a remembered build of a job that waits equals one that is made from nothing."""

from __future__ import annotations

from dataclasses import replace as replace_dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.config.model import FrozenGraph, FrozenJob, JobDependency
from headgate.gate.builds.carry import reset
from headgate.gate.builds.start import begun
from headgate.gate.state.actions import Action
from headgate.gate.state.change import Change, Landed
from headgate.gate.state.gitwork import Trees
from headgate.gate.state.model import Build, BuildSet, Item
from headgate.gate.state.works import RepoState
from headgate.testing.plays import Play

BEFORE, BESIDE = FrozenJob(name="before"), FrozenJob(name="beside")
JOB = FrozenJob(name="unit", reuse=True, dependencies=(JobDependency("before"),))
GRAPH = FrozenGraph((BEFORE, BESIDE, JOB))
MASTER = {"p": {"master": "x"}}
STATE = RepoState(heads={"p": {"refs/heads/master": "x"}}, merged=MASTER, trees=MASTER, known=Trees(MASTER, MASTER))
DONE = Build("b", "before", result="SUCCESS", data={"x": 1})
CHANGE = Change("git", "p", "master", "A", "a" * 40, ref="refs/for/master/A")
ITEM = Item("i", CHANGE)
WORLD = Play().world
ARTIFACT = {"name": "doc", "url": "https://x.example/"}
FACTS: dict[str, Any] = {
    "item": ITEM, "id": "s", "graph": GRAPH, "builds": {"before": DONE}, "attempt": 1, "world": WORLD, "given": (),
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "time": {"world": replace_dataclass(WORLD, now_ms=WORLD.now_ms + 5)},
    "data of a job before": {"builds": {"before": replace(DONE, data={"x": 2})}},
    "pause of a job before": {"builds": {"before": replace(DONE, result=None, paused=True)}},
    "another build before": {"builds": {"before": replace(DONE, id="c", paused=True)}},
    "no build before": {"builds": {}},
    "build beside": {"builds": {"before": DONE, "beside": Build("d", "beside")}},
    "definition": {"graph": FrozenGraph((BEFORE, BESIDE, replace(JOB, vars={"x": 1})))},
    "message": {"item": replace(ITEM, change=replace(CHANGE, message="Say more"))},
    "circle": {"item": replace(ITEM, others=(replace(CHANGE, project="q"),))},
    "part landed": {"item": replace(ITEM, landed=(Landed(CHANGE, "x"),))},
    "epilogue": {"item": replace(ITEM, epilogue=True)},
    "tenant": {"world": replace_dataclass(WORLD, tenant="other")},
    "pipeline": {"world": replace_dataclass(WORLD, pipeline=replace(WORLD.pipeline, post_review=True))},
    "digest of the work": {"world": replace_dataclass(WORLD, pipeline=replace(WORLD.pipeline, rerun_only_failed=True))},
    "attempt": {"attempt": 2},
    "artifacts": {"given": (ARTIFACT,)},
    "buildset": {"id": "t"},
}


def made(state: RepoState, facts: dict[str, Any]) -> Build:
    buildset = BuildSet(facts["id"], state=state, graph=facts["graph"], builds=facts["builds"])
    return begun(facts["item"], buildset, buildset.jobs[-1], facts["attempt"], facts["world"], facts["given"])


@pytest.mark.parametrize("change", CHANGES)
def test_a_remembered_build_equals_a_new_one_whatever_has_changed(change: str) -> None:
    state, other = replace(STATE), {**FACTS, **CHANGES[change]}
    first = made(state, FACTS)
    assert first.inputs
    for facts in (other, FACTS, other):
        assert made(state, facts) == made(replace(STATE), facts)
    assert (made(state, other) == first) == (change in ("nothing", "build beside"))


def test_the_state_of_an_earlier_base_retains_no_graph_and_no_builds() -> None:
    """It is part of the item while one of its builds continues, and graphs may be large."""
    play = Play(FrozenJob(name="unit", reuse=True))
    play.approve("A", "B")
    play.merges()
    item = play.item("B")
    assert item.buildset is not None and item.buildset.state is not None
    made(state := replace(STATE), FACTS)
    actions: list[Action] = []
    found = reset(replace(item, buildset=replace(item.buildset, state=state)), play.world, actions)
    assert list(map(vars, found.earlier.values())) == [{}] != [vars(state)]
