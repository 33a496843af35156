"""Test jobs that try to keep a place of a semaphore, which others need, for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.process.phaselimits import PAUSE_TIMES, POST_TIMES, PhaseLimits
from headgate.config.model import ATTEMPTS_MAX
from tests.integration.builds.bench import Bench
from tests.waiting import wait_for

from .arena import ATTACKER, NEIGHBOURS, Arena

CAREFUL = """
- semaphore: {name: shared}
- job: {name: careful, run: jobs/unit, semaphores: shared}
"""
NEIGHBOUR = {"zuul.yaml": "- project: {check: {jobs: [careful]}}\n"}
ENDLESS = "- job: {name: hold, pre-run: jobs/hold, run: jobs/hold, semaphores: shared, attempts: 1000000000}\n"
PAUSES = """
- job: {name: hold, run: jobs/hold, semaphores: shared}
- job: {name: more, run: jobs/unit, semaphores: shared, dependencies: [hold]}
"""
PAUSE = """#!/bin/sh
echo '{"data": {"zuul": {"pause": true}}}' >$ZUUL_LOG_DIR/../results.json
"""


def _attacked(root: Path, files: Mapping[str, str], jobs: str, settings: str = "") -> tuple[str, list[dict[str, Any]]]:
    """Return the report on the attacker's change, and the builds of its job, once the neighbour has the semaphore."""
    project, others = NEIGHBOURS[0], {NEIGHBOURS[0]: NEIGHBOUR}
    with Arena(root, config=CAREFUL, others=others, settings=settings) as arena:
        own = f"{files['zuul.yaml']}- project: {{check: {{jobs: {jobs}}}}}\n"
        attack = arena.propose(ATTACKER, "attack", {"jobs/unit": "#!/bin/sh\n", **files, "zuul.yaml": own})
        held = "/api/tenant/example/semaphores"
        wait_for("the semaphore is held", lambda: any(one["holders"]["count"] for one in arena.headgate.get(held)))
        mine = arena.propose(project, "mine", {"mine": "x\n"})
        assert "careful" in arena.note_section(project, mine, "check")
        told = arena.note_section(ATTACKER, attack, "check")
        builds = "/api/tenant/example/builds?job_name=hold&limit=100"
        return told, wait_for("the builds are recorded", lambda: arena.headgate.get(builds))


@pytest.mark.long
def test_a_job_with_endless_attempts_ends(tmp_path: Path) -> None:
    told, builds = _attacked(tmp_path, {"zuul.yaml": ENDLESS, "jobs/hold": "#!/bin/sh\nfalse\n"}, "[hold]")
    assert "RETRY_LIMIT" in told and len(builds) == ATTEMPTS_MAX


@pytest.mark.long
def test_a_paused_job_whose_dependents_cannot_start_ends(tmp_path: Path) -> None:
    """They wait for the semaphore that it holds."""
    settings = "default_timeout = 2\n"
    told, (build,) = _attacked(tmp_path, {"zuul.yaml": PAUSES, "jobs/hold": PAUSE}, "[hold, more]", settings)
    assert build["result"] == "TIMED_OUT" and f"after a pause of {2 * PAUSE_TIMES} s" in told


async def test_playbooks_after_the_run_share_a_time_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, limits=PhaseLimits(post_timeout_s=1))
    run, endless = bench.script("run", "true"), [bench.script(f"post-{n}", "sleep 600") for n in range(30)]
    async with asyncio.timeout(60):
        outcome = await bench.build(run=(run,), post_run=tuple(endless))
    assert outcome.result == "POST_FAILURE"
    assert 0 < bench.log.count("limit (1 s) [post-") <= POST_TIMES
