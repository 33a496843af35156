"""Test a pipeline with `rerun-only-failed`: jobs that passed on the same code do not run again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as replace_dataclass

import pytest
from msgspec.structs import replace

from headgate.config.model import (
    FrozenJob,
    IncludeVars,
    JobDependency,
    JobRole,
    Playbook,
    PlaybookSecret,
    RequiredProject,
)
from headgate.gate.builds.graph import NOTHING_PROVIDED
from headgate.gate.builds.reuse import reused, work_of
from headgate.gate.state.actions import Merge, Record
from headgate.gate.state.model import BuildSet
from headgate.gate.state.world import World
from headgate.testing.plays import Play

SECRET = PlaybookSecret("token", "config", data={"t": {"!encrypted/pkcs1-oaep": ["first"]}})
BASE = Playbook("config", "git", "master", "pre.yaml", trusted=True, secrets=(SECRET,))
LINT = FrozenJob(name="lint", pre_run=(BASE,), run=(Playbook("p", "git", "master", "lint.yaml"),))
UNIT = FrozenJob(name="unit", pre_run=(BASE,))
HEADS = {"p": "1" * 40, "config": "2" * 40}


class Stage(Play):
    """Play a tenant with a config-project, whose history may be unavailable."""

    away = False

    @property
    def world(self) -> World:
        world = super().world
        beside = replace_dataclass(world.beside, away=self.away, trusted={"config": "git"})
        return replace_dataclass(world, beside=beside)


def stage(*jobs: FrozenJob, manager: str = "independent") -> Stage:
    play = Stage(*(jobs or (LINT, UNIT)), manager=manager)
    play.pipeline = replace(play.pipeline, rerun_only_failed=True)
    play.heads = HEADS
    return play


def was_tested(play: Play, *failing: str, name: str = "A") -> BuildSet:
    """Test the change; its result is in the history from then on."""
    play.merges()
    while jobs := [job for n, job in play.builds if n == name]:
        play.ends(name, jobs[0], "FAILURE" if jobs[0] in failing else "SUCCESS")
    (record,) = (one for one in play.actions if isinstance(one, Record))
    assert record.item.buildset is not None
    play.past = record.item.buildset
    return play.past


def failed_once(*jobs: FrozenJob, failing: str = "unit") -> Stage:
    play = stage(*jobs)
    play.propose(play.change("A"))
    was_tested(play, failing)
    assert play.ended["A"] == "FAILURE"
    return play


def again(play: Play) -> list[str]:
    """Return the jobs that run when the same patchset is tested again."""
    play.propose(play.change("A"))
    play.merges()
    return [job for name, job in play.builds if name == "A"]


def test_only_jobs_that_failed_run_again() -> None:
    play = failed_once()
    assert play.past is not None
    old = play.past.builds["lint"].id
    assert again(play) == ["unit"]
    play.passes("A")
    assert play.ended["A"] == "SUCCESS"
    assert f" : SUCCESS (not run again: build {old} succeeded on the same code)" in play.messages["A"]
    assert f"- lint http://h/t/t/build/{old} : SUCCESS" in play.messages["A"]
    (record,) = (one for one in play.actions if isinstance(one, Record))
    assert record.item.buildset is not None
    build = record.item.buildset.builds["lint"]
    assert build.id != old and build.work == play.past.builds["lint"].work and build.start_ms == 0


def test_failed_jobs_run_again_as_often_as_needed() -> None:
    play = failed_once()
    for _ in range(2):
        play.propose(play.change("A"))
        was_tested(play, "unit")
    assert again(play) == ["unit"]


def test_once_all_passed_all_is_run_again() -> None:
    play = stage()
    play.propose(play.change("A"))
    was_tested(play)
    assert again(play) == ["lint", "unit"]


def test_a_pipeline_that_does_not_say_so_runs_all_and_asks_for_nothing_more() -> None:
    play = failed_once()
    play.pipeline = replace(play.pipeline, rerun_only_failed=False)
    play.propose(play.change("A"))
    (merge,) = (one.work for one in play.actions if isinstance(one, Merge))
    assert set(merge.projects) == {"p"}
    assert again(play) == ["lint", "unit"]


def test_results_from_before_the_pipeline_reused_builds_are_run_again() -> None:
    play = stage()
    play.pipeline = replace(play.pipeline, rerun_only_failed=False)
    play.propose(play.change("A"))
    assert {build.work for build in was_tested(play, "unit").builds.values()} == {""}
    play.pipeline = replace(play.pipeline, rerun_only_failed=True)
    assert again(play) == ["lint", "unit"]


def test_jobs_wait_for_the_lookup_of_earlier_results_but_not_for_an_unavailable_history() -> None:
    play = failed_once()
    past, play.past = play.past, None
    assert again(play) == []
    play.past = past
    play.act()
    assert [job for _, job in play.builds] == ["unit"]
    play = failed_once()
    play.past = None
    assert again(play) == []
    play.away = True
    play.act()
    assert [job for _, job in play.builds] == ["lint", "unit"]
    play.away, play.past = False, past
    play.act()
    begun = play.item("A").buildset
    assert begun is not None and begun.builds["lint"].result is None, "what has begun goes on"


def _other(name: str, head: str) -> Callable[[Play], None]:
    def do(play: Play) -> None:
        play.heads = {**HEADS, name: head}

    return do


def _defined(job: FrozenJob) -> Callable[[Play], None]:
    def do(play: Play) -> None:
        play.layout.jobs = tuple(job if one.name == job.name else one for one in play.layout.jobs)

    return do


def _renamed(play: Play) -> None:
    play.pipeline = replace(play.pipeline, name="check")


BOOK = replace(BASE, secrets=(replace(SECRET, data={"t": {"!encrypted/pkcs1-oaep": ["second"]}}),))
CHANGED: dict[str, Callable[[Play], None]] = {
    "a push to the config-project that its trusted playbook is of": _other("config", "3" * 40),
    "a push to the branch": _other("p", "3" * 40),
    "its definition": _defined(replace(LINT, vars={"x": 1})),
    "a playbook more": _defined(replace(LINT, post_run=(BASE,))),
    "a secret": _defined(replace(LINT, pre_run=(BOOK,))),
    "another pipeline": _renamed,
    "a required project whose head nobody knows": _defined(
        replace(LINT, required_projects=(RequiredProject("other", "git"),))
    ),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_job_that_passed_runs_again_if_anything_differs(change: Callable[[Play], None]) -> None:
    play = failed_once()
    change(play)
    assert again(play) == ["lint", "unit"]


def test_success_in_another_tenant_does_not_count() -> None:
    play = failed_once()
    world = replace_dataclass(play.world, tenant="other")
    play.propose(play.change("A"))
    play.past, past = None, play.past
    play.merges()
    item = play.item("A")
    assert item.buildset is not None and past is not None
    assert work_of(item, item.buildset, LINT, play.world) == past.builds["lint"].work
    assert work_of(item, item.buildset, LINT, world) not in ("", past.builds["lint"].work)
    play.past = past
    assert set(reused(item, item.buildset, play.world) or {}) == {"lint"}
    assert reused(item, item.buildset, replace_dataclass(play.world, tenant="other")) == {}


UNKNOWN = {
    "playbook": replace(LINT, run=(Playbook("other", "git", "master", "x.yaml"),)),
    "roles of a playbook": replace(LINT, run=(replace(BASE, roles=(JobRole("other", "git"),)),)),
    "roles": replace(LINT, roles=("other",)),
    "required project": replace(LINT, required_projects=(RequiredProject("other", "git"),)),
    "variables": replace(LINT, include_vars=(IncludeVars("v.yaml", "other", "git"),)),
}


@pytest.mark.parametrize("job", UNKNOWN.values(), ids=UNKNOWN)
def test_a_job_that_uses_a_repository_with_an_unknown_head_runs_again(job: FrozenJob) -> None:
    play = failed_once(job, UNIT)
    assert again(play) == ["lint", "unit"]


def test_another_change_ahead_is_other_code() -> None:
    play = stage(manager="dependent")
    play.approve("A")
    was_tested(play, "unit")
    play.approve("B", "A")
    play.merges()
    assert [job for name, job in play.builds if name == "A"] == ["lint", "unit"]


def test_another_patchset_runs_all_jobs() -> None:
    play = failed_once()
    play.propose(play.change("A", commit="d" * 40))
    play.merges()
    assert [job for _, job in play.builds] == ["lint", "unit"]


def test_jobs_that_exchange_data_are_run_again_together() -> None:
    build = FrozenJob(name="build")
    play = failed_once(LINT, build, replace(UNIT, dependencies=(JobDependency("build"),)), failing="build")
    assert again(play) == ["build"], "unit was skipped, and lint is beside them"
    play = failed_once(LINT, build, FrozenJob(name="docs", dependencies=(JobDependency("lint"),)), UNIT, failing="unit")
    assert again(play) == ["unit"], "docs was told what it needed then"


def test_jobs_that_a_failed_job_depends_on_run_again_with_it() -> None:
    play = stage(LINT, FrozenJob(name="build"), replace(UNIT, dependencies=(JobDependency("build"),)))
    play.propose(play.change("A"))
    was_tested(play, "unit")
    assert again(play) == ["build"]


def test_with_an_initializer_all_is_run_again() -> None:
    play = stage(FrozenJob(name="prepare", type="initializer"), LINT, UNIT)
    play.propose(play.change("A"))
    was_tested(play, "unit")
    assert again(play) == ["prepare"]


def test_a_job_that_requires_artifacts_of_changes_ahead_runs_again() -> None:
    play = failed_once(replace(LINT, requires=("images",)), UNIT)
    assert again(play) == ["lint", "unit"]


def test_artifacts_are_available_to_changes_behind() -> None:
    play = stage(replace(LINT, provides=("images",)), UNIT)
    play.propose(play.change("A"))
    play.merges()
    play.ends("A", "lint", "SUCCESS", zuul={"artifacts": [{"name": "i", "url": "http://i/1"}], "log_url": "http://l"})
    play.fails("A", "unit")
    (record,) = (one for one in play.actions if isinstance(one, Record))
    play.past = record.item.buildset
    play.layout.jobs = (*play.layout.jobs, FrozenJob(name="deploy", requires=("images",)))
    assert again(play) == ["unit", "deploy"]
    play.propose(play.change("B", "A"))
    play.past = NOTHING_PROVIDED
    play.merges()
    (found,) = play.running_spec("B", "deploy").zuul["artifacts"]
    assert (found["url"], found["change"]) == ("http://i/1", "A")
    play.passes("A")
    assert "- lint http://l : SUCCESS (not run again" in play.messages["A"]


def test_a_noop_job_does_not_affect_which_jobs_run_again() -> None:
    noop = FrozenJob(name="noop", noop=True)
    play = failed_once(noop, replace(LINT, dependencies=(JobDependency("noop"),)), UNIT)
    assert again(play) == ["unit"]
    play.passes("A")
    assert "- noop : SUCCESS\n" in play.messages["A"]


def test_a_further_try_is_of_the_same_work() -> None:
    play = stage()
    play.propose(play.change("A"))
    play.merges()
    play.ends("A", "lint", None)
    assert play.running_spec("A", "lint").attempt == 2
    tested_on = was_tested(play, "unit")
    assert tested_on.builds["lint"].work
    assert again(play) == ["unit"]
