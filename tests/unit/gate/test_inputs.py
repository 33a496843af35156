"""Test the digest of a build's inputs: it changes with any input, and does not depend on ids."""

from __future__ import annotations

from dataclasses import replace as replace_dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.base.ids import derived
from headgate.config.model import (
    FrozenJob,
    IncludeVars,
    JobDependency,
    JobRole,
    Node,
    Nodeset,
    Playbook,
    PlaybookSecret,
    RequiredProject,
)
from headgate.gate.builds.reuse import inputs_of
from headgate.gate.builds.start import variables
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import Trees
from headgate.gate.state.model import Build, BuildSet, Item
from headgate.gate.state.returns import Sealed
from headgate.gate.state.works import RepoState
from headgate.gate.state.world import World
from headgate.testing.plays import Play

SECRET = PlaybookSecret("token", "config", data={"t": {"!encrypted/pkcs1-oaep": ["first"]}})
BASE = Playbook("config", "git", "master", "base.yaml", trusted=True, secrets=(SECRET,), roles=(JobRole("r", "git"),))
OWN = Playbook("p", "git", "master", "unit.yaml", roles=(JobRole("roles", "git"),))
JOB = FrozenJob(
    name="unit",
    pre_run=(BASE,),
    run=(OWN,),
    required_projects=(RequiredProject("lib", "git"),),
    include_vars=(IncludeVars("v.yaml", "vars", "git"), IncludeVars("w.yaml", "site", "git", trusted=True)),
    vars={"x": 1},
    ansible_version="11",
    nodeset=Nodeset(nodes=(Node(("n",), "small"),)),
    reuse=True,
)
PROJECTS = ("p", "lib", "roles", "config", "r", "vars", "site", "other")
HEADS = {name: {"master": f"{name} tree", "old": f"{name} old"} for name in PROJECTS}
CHANGE = Change("git", "p", "master", "A", "a" * 40, ref="refs/for/master/A", message="Say so\n", files=("f",))
ITEM = Item("i1", CHANGE, event="e1", enqueued_ms=5)
STATE = RepoState(
    heads={name: {f"refs/heads/{branch}": f"{name} {branch} commit" for branch in HEADS[name]} for name in PROJECTS},
    merged={"p": {"master": "made"}, "lib": {"master": "made, too"}, "other": {"master": "made of others"}},
    trees={"p": {"master": "p with A"}, "lib": {"master": "lib with B"}, "other": {"master": "other with C"}},
    known=Trees(HEADS, {"p": {"master": "p beneath"}}),
)


def digest(
    state: RepoState = STATE,
    item: Item = ITEM,
    job: FrozenJob = JOB,
    world: World | None = None,
    *,
    buildset: str = "b1",
    build: str = "",
    attempt: int = 1,
    given: tuple[dict[str, object], ...] = (),
    before: dict[str, Build] | None = None,
) -> str:
    world = world or Play().world
    depends = replace(job, dependencies=()) if before is None else job
    graph = Play(*(FrozenJob(name=name) for name in before or {}), depends).layout.freeze("gate", "p", "master")
    of = BuildSet(buildset, state=state, graph=graph, builds=before or {})
    one = Build(build, job.id, attempt=attempt, given=given)
    return inputs_of(item, of, depends, variables(item, of, depends, one, world.tenant, world.pipeline), world)


def of_trees(project: str, branch: str, tree: str) -> RepoState:
    """Return another tree at the head of a branch and, after a merge, another one."""
    heads = {**HEADS, project: {**HEADS[project], branch: tree}}
    return replace(STATE, known=replace(STATE.known, heads=heads))


def merged(project: str, tree: str) -> RepoState:
    return replace(STATE, trees={**STATE.trees, project: {"master": tree}})


def world(**other: Any) -> World:
    found = Play().world
    return replace_dataclass(found, pipeline=replace(found.pipeline, **other))


FRESH = replace(BASE, secrets=(replace(SECRET, data={"t": {"!encrypted/pkcs1-oaep": ["second"]}}),))
MATTERS: dict[str, dict[str, Any]] = {
    "the proposed tree": {"state": merged("p", "p with A, otherwise")},
    "what the change is merged onto": {
        "state": replace(STATE, known=replace(STATE.known, bases={"p": {"master": "x"}}))
    },
    "another branch of its repository": {"state": of_trees("p", "old", "x")},
    "a required project, with what is proposed": {"state": merged("lib", "x")},
    "another branch of it": {"state": of_trees("lib", "old", "x")},
    "roles": {"state": of_trees("roles", "master", "x")},
    "a trusted playbook": {"state": of_trees("config", "master", "x")},
    "roles of a trusted playbook": {"state": of_trees("r", "master", "x")},
    "a file of variables": {"state": of_trees("vars", "master", "x")},
    "a trusted file of variables": {"state": of_trees("site", "master", "x")},
    "variables": {"job": replace(JOB, vars={"x": 2})},
    "a secret": {"job": replace(JOB, pre_run=(FRESH,))},
    "a label": {"job": replace(JOB, nodeset=Nodeset(nodes=(Node(("n",), "large"),)))},
    "an image": {"job": replace(JOB, image="h/i:1")},
    "the version of Ansible": {"job": replace(JOB, ansible_version="9")},
    "a playbook more": {"job": replace(JOB, post_run=(OWN,))},
    "the branch that is checked out": {"job": replace(JOB, override_checkout="old")},
    "the tenant": {"world": replace_dataclass(Play().world, tenant="other")},
    "the pipeline": {"world": world(name="check")},
    "trust": {"world": world(post_review=True)},
    "the patchset": {"item": replace(ITEM, change=replace(CHANGE, commit="b" * 40))},
    "the change": {"item": replace(ITEM, change=replace(CHANGE, topic="B"))},
    "its message": {"item": replace(ITEM, change=replace(CHANGE, message="Say no\n"))},
    "an artifact of a change ahead": {"given": ({"name": "i", "url": "http://i/1"},)},
    "another build of it": {"given": ({"name": "i", "url": "http://i/1", "build": "again"},)},
}


@pytest.mark.parametrize("what", MATTERS.values(), ids=MATTERS)
def test_the_digest_differs_with_any_other_input(what: dict[str, Any]) -> None:
    assert digest() and digest(**what) not in ("", digest())


IDS: dict[str, dict[str, Any]] = {
    "a buildset": {"buildset": "b2"},
    "a build": {"build": "x"},
    "an attempt": {"attempt": 2},
    "an item, its event and its time": {"item": replace(ITEM, id="i2", event="e2", enqueued_ms=9, resets=3)},
    "commits that are made": {"state": replace(STATE, merged={name: {"master": "again"} for name in STATE.merged})},
    "heads that hold the same": {
        "state": replace(STATE, heads={name: {ref: "moved" for ref in refs} for name, refs in STATE.heads.items()})
    },
    "a repository that it is not given": {"state": merged("other", "x")},
    "its branches": {"state": of_trees("other", "master", "x")},
    "a landed branch of a required project, under what was merged there": {"state": of_trees("lib", "master", "x")},
}


@pytest.mark.parametrize("what", IDS.values(), ids=IDS)
def test_the_digest_does_not_depend_on_ids(what: dict[str, Any]) -> None:
    assert digest(**what) == digest() != ""


UNKNOWN: dict[str, dict[str, Any]] = {
    "a merger that tells no trees": {"state": replace(STATE, known=Trees())},
    "no head of a project": {"state": replace(STATE, known=replace(STATE.known, heads={**HEADS, "lib": {}}))},
    "a branch whose tree is not told": {
        "state": replace(STATE, known=replace(STATE.known, heads={**HEADS, "r": {"master": "r tree"}}))
    },
    "no tree of what was merged": {"state": replace(STATE, trees={"p": {"master": "p with A"}})},
    "no tree beneath": {"state": replace(STATE, known=replace(STATE.known, bases={}))},
    "a job that does not say so": {"job": replace(JOB, reuse=False)},
    "a job for after": {"job": replace(JOB, type="reporter")},
    "a circle": {"item": replace(ITEM, others=(replace(CHANGE, topic="B"),))},
    "a ref": {"item": replace(ITEM, change=Change("git", "p", "master", commit="a" * 40, ref="refs/heads/master"))},
}


@pytest.mark.parametrize("what", UNKNOWN.values(), ids=UNKNOWN)
def test_some_inputs_give_no_digest(what: dict[str, Any]) -> None:
    assert digest(**what) == ""


def test_the_digest_depends_on_data_of_earlier_jobs_and_not_on_their_ids() -> None:
    job = replace(JOB, dependencies=(JobDependency("first"),))

    def after(**other: Any) -> str:
        first = replace(Build("f", "first", result="SUCCESS", data={"v": 1}), **other)
        return digest(job=job, before={"first": first})

    assert after() == after(id="g", start_ms=7, log_url="http://l") != ""
    assert after(data={"v": 2}) not in ("", after())
    made = {"zuul": {"artifacts": [{"name": "i", "url": "http://i/1"}]}, "v": 1}
    assert after(data=made) not in ("", after())
    assert after(secret=Sealed("git", "p")) == "", "nobody can tell whether that is the same"


def test_an_artifact_is_the_same_only_where_its_build_was_given_the_same() -> None:
    job = replace(JOB, dependencies=(JobDependency("image"),))
    data: dict[str, object] = {"zuul": {"artifacts": [{"name": "i", "url": "http://i/A-1"}]}}
    image = Build("f", "image", result="SUCCESS", data=data)

    def after(**other: Any) -> str:
        return digest(job=job, before={"image": replace(image, **other)})

    assert after() not in ("", after(id="g")), "it was built anew, of nobody knows what, and has the same address"
    narrow = after(inputs="d1", narrow=True)
    assert narrow == after(id="g", inputs="d1", narrow=True) == after(id=derived("b1", "image", "reused"), inputs="d1")
    assert narrow not in (after(), after(inputs="d2", narrow=True), after(inputs="d1"))
    assert after(result=None, paused=True) == "", "what it serves while it waits is not in its address"
