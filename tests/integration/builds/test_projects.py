"""Test which repositories are in the work directory, and in which state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headgate.config.model import FrozenJob, Node, Nodeset, ProjectFilter, RequiredProject
from headgate.gate.state.change import Change
from headgate.gate.state.gitwork import MergeItem
from headgate.gate.state.works import BuildOutcome, BuildSpec, RepoState
from headgate.testing.clock import DEADLINE_S

from .bench import Alone, Bench

LISTS = "cd $ZUUL_SRC_ROOT; for found in */*/*; do echo there-$found; done"
OURS, AHEAD, OTHER, NEEDED = "h/org/ours", "h/org/ahead", "h/org/other", "h/org/needed"


async def built(bench: Bench, **job: Any) -> BuildOutcome:
    """Build a change of OURS, behind changes of AHEAD and OTHER, in a job that requires NEEDED."""
    chain = tuple(
        MergeItem(item, project, "local", "master", f"refs/for/master/{item}", "2" * 40)
        for item, project in (("one", AHEAD), ("two", OTHER), ("three", OURS))
    )
    change = Change("local", OURS, "master", "topic", "1" * 40, ref="refs/for/master/three")
    bench.id = "build"
    frozen = FrozenJob(name="job", required_projects=(RequiredProject(NEEDED, "local"),), **job)
    spec = BuildSpec(bench.id, "set", "t", "gate", "three", frozen, change)
    async with asyncio.timeout(DEADLINE_S):
        return await bench.runner.run(spec, RepoState(chain), asyncio.Event(), Alone())


def there(bench: Bench) -> set[str]:
    return {line.rpartition("there-")[2] for line in bench.log.splitlines() if "| there-" in line}


NAMED, OWN = ProjectFilter("name", "org/ahead"), ProjectFilter("change")


@pytest.mark.parametrize(
    ("included", "excluded", "wanted"),
    [
        (None, None, {OURS, AHEAD, OTHER, NEEDED}),
        ((OWN,), None, {OURS, NEEDED}),
        ((ProjectFilter("item"), NAMED), None, {OURS, AHEAD, NEEDED}),
        (None, (NAMED, ProjectFilter("name", OTHER)), {OURS, NEEDED}),
        ((OWN, NAMED), (NAMED,), {OURS, NEEDED}),
        ((), None, {NEEDED}),
        (None, (ProjectFilter("name", "org/needed"),), {OURS, AHEAD, OTHER, NEEDED}),
    ],
)
async def test_projects_of_changes_are_checked_out_as_the_job_selects_them(
    tmp_path: Path, included: Any, excluded: Any, wanted: set[str]
) -> None:
    bench = Bench(tmp_path)
    run = (bench.script("run", LISTS),)
    outcome = await built(bench, run=run, include_projects=included, exclude_projects=excluded)
    assert outcome.result == "SUCCESS" and there(bench) == wanted
    variables = bench.log_json("zuul-info/inventory.yaml")["all"]["vars"]["zuul"]
    assert set(variables["projects"]) == wanted and variables["project"]["canonical_name"] == OURS


async def test_a_job_with_reuse_receives_only_the_repositories_that_it_names(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    outcome = await built(bench, run=(bench.script("run", LISTS),), reuse=True)
    assert outcome.result == "SUCCESS" and outcome.narrow and there(bench) == {OURS, NEEDED}
    variables = bench.log_json("zuul-info/inventory.yaml")["all"]["vars"]["zuul"]
    assert set(variables["projects"]) == {OURS, NEEDED}
    assert [one["project"]["canonical_name"] for one in variables["items"]] == [OURS], "not what is ahead"


@pytest.mark.parametrize(
    ("checkout", "nodes", "files"),
    [(True, (), True), (False, (), False), ("auto", (), True), ("auto", (Node(("one",), "any"),), False)],
)
async def test_files_are_checked_out_if_the_job_selects_them(
    tmp_path: Path, checkout: bool | str, nodes: tuple[Node, ...], files: bool
) -> None:
    bench = Bench(tmp_path)
    run = (bench.script("run", f"test {'-e' if files else '! -e'} $ZUUL_SRC_ROOT/{OURS}/README"),)
    outcome = await built(bench, run=run, workspace_checkout=checkout, nodeset=Nodeset(nodes=nodes))
    assert outcome.result == "SUCCESS", "the playbook itself is checked out in any case"
    assert bench.log_json("zuul-info/inventory.yaml")["all"]["vars"]["zuul"]["workspace_checkout"] is files
