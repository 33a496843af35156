"""Limits of builds on a machine without control groups, and what becomes of the groups where there are some."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.process.bounds.budget import Bounds
from headgate.adapters.process.bounds.groups import Groups

from .bench import Bench

HOG = "exec python3 -c 'import time; b = bytearray(b\"x\" * 400_000_000); time.sleep(600)'"


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "found", staticmethod(lambda: Groups()))


@pytest.mark.usefixtures("no_groups")
@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
async def test_without_control_groups_memory_and_processes_are_looked_at(tmp_path: Path, sandbox: str) -> None:
    bench = Bench(tmp_path, sandbox, bounds=Bounds(memory_max_bytes=200_000_000, processes_max=60))
    outcome = await bench.build(run=(bench.script("hog", HOG),))
    assert (outcome.result, outcome.error) == ("FAILURE", "run: hog: memory limit of 200 MB reached")
    many = bench.script("many", "for i in $(seq 100); do sleep 600 & done; sleep 600")
    outcome = await bench.build(run=(many,))
    looked_at = outcome.error == "run: many: limit of 60 processes reached"
    assert outcome.result == "FAILURE" and (looked_at or "Cannot fork" in bench.log)  # a user of its own has no more
    assert (await bench.build(run=(bench.script("fine", "true"),))).result == "SUCCESS"


async def test_groups_end_with_their_builds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    groups = bench.runner.limiter.groups
    if not groups.parents:
        pytest.skip("no control group can be made here")
    building = bench.start(run=(bench.script("run", "echo begun; sleep 1"),))
    await bench.says("begun")
    assert any(list(parent.glob(f"{bench.id}-*")) for parent in groups.parents.values())
    await building
    assert not any(list(parent.glob("*/")) for parent in groups.parents.values())
    await bench.runner.close()
    assert not any(parent.exists() for parent in groups.parents.values())


async def test_a_limit_in_pre_run_is_a_failure_and_not_tried_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, bounds=Bounds(output_max_bytes=1_000_000))
    outcome = await bench.build(pre_run=(bench.script("noise", "yes"),))
    assert (outcome.result, outcome.error) == ("FAILURE", "pre-run: noise: output limit of 1 MB reached")
