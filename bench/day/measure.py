"""Measure one run of a day: its cost per change, and the time for which changes waited for Headgate."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from bench.day.past import Past, Times
from bench.day.processes import Running, Usage, running
from headgate.base.tasks import end
from headgate.testing.day.people import DayHub, DayPeople
from headgate.testing.day.plan import DayPlan, tenants

PACE_S = 0.4
"""Seconds between changes: 2,000 come in 800 s, so a day passes 108 times as fast."""
MINUTE_S = 60 * PACE_S * 2_000 / 86_400
"""Duration of one minute of a build."""
PATIENCE_S = 20.0
START_S, DAY_MAX_S = 900.0, 3_600.0
RESTING_S, BEGUN_MIN = 0.05, 20
"""CPU seconds of an idle process in three seconds; store requests of a scheduler that has started."""
RECONFIGURED_S = 20.0
"""Longest time until the cron line is in force and all processes are idle again."""
LIVING = ("scheduler", "merger")


class Day(NamedTuple):
    """Hold the figures of a run."""

    projects: int
    changes: int
    schedulers: int
    builds: int
    buildsets: int
    wall_s: float
    start: dict[str, Usage]
    """Kind -> its usage until the first change could come."""
    used: dict[str, Usage]
    """Kind -> its usage before the first change."""
    checked_s: Times
    gated_s: Times
    landed_s: Times
    load: tuple[float, float]
    """Load average of the machine over the last minute, at the beginning and at the end of the day."""


def measure(projects: int, changes: int, schedulers: int = 1, store: str = "etcd", periodic: bool = True) -> Day:
    """Run a day.  Raise RuntimeError, TimeoutError."""
    plan = DayPlan(projects, changes)
    with tempfile.TemporaryDirectory(prefix="day-", dir=os.environ.get("DAY_DIR")) as name:
        root = Path(name)
        hub = DayHub(root / "hub", plan)
        (root / "tenants.yaml").write_text(tenants(plan))
        with running(root, store) as here:
            here.start("merger", 1)
            here.start("scheduler", schedulers)
            here.start_machines(plan, MINUTE_S)
            try:
                return asyncio.run(_day(plan, hub, here, root, periodic))
            finally:
                _keep_output(root)


async def _day(plan: DayPlan, hub: DayHub, here: Running, root: Path, periodic: bool) -> Day:
    past = Past(root / "history.sqlite")
    people = DayPeople(hub, plan, plan.changes_count * PACE_S, PATIENCE_S)
    await _started(here)
    if periodic:  # only now is it known when the day begins
        hub.schedule(_soon(plan.changes_count))
        await _started(here)
    start, load, began = here.used(), os.getloadavg()[0], time.monotonic()
    following = asyncio.ensure_future(past.follow(people.tell))
    coming = asyncio.ensure_future(people.day())
    try:
        async with asyncio.timeout(DAY_MAX_S):
            await asyncio.wait({following, coming}, return_when=asyncio.FIRST_COMPLETED)
            # It never ends on its own, so it has failed: awaiting it raises the error.
            if following.done():
                await following
            await coming
            await past.quiet()
    except TimeoutError as late:
        raise TimeoutError(f"{len(people.open)} changes are open: {people.open[:20]}") from late
    finally:
        await end(following, coming)
    wall_s, used = time.monotonic() - began, here.used()
    return Day(
        plan.projects_count,
        plan.changes_count,
        len(here.programs["scheduler"]),
        *past.counted(),
        wall_s,
        start,
        {kind: usage.since(start[kind]) for kind, usage in used.items()},
        past.requested(people.proposed_s, "check"),
        past.requested(people.approved_s, "gate"),
        past.landed(plan),
        (load, os.getloadavg()[0]),
    )


async def _started(here: Running) -> None:
    """Wait until the configuration is in force, all projects have been read, and no process is busy."""
    end_s, before = time.monotonic() + START_S, list[Usage]()
    while time.monotonic() < end_s:
        await asyncio.sleep(3)
        with suppress(OSError):  # they do not serve their metrics yet
            used = here.used()
            now = [used[kind] for kind in LIVING]
            pairs = zip(now, before, strict=True) if before else ()
            rest = [
                # A process at rest uses next to no CPU, and starts no git.
                one.cpu_s - other.cpu_s < RESTING_S * len(here.programs[kind]) and one.git_s == other.git_s
                for kind, (one, other) in zip(LIVING, pairs, strict=False)
            ]
            before = now
            if rest and all(rest) and now[0].requests > BEGUN_MIN:
                return
    raise TimeoutError("the schedulers do not come to rest")


def _soon(changes: int) -> str:
    """Return a cron line for the afternoon of a day that begins about now."""
    moment = datetime.now(UTC) + timedelta(seconds=RECONFIGURED_S + 0.6 * changes * PACE_S)
    return f"{moment.minute} {moment.hour} * * * {moment.second}"


def _keep_output(root: Path) -> None:
    """Copy the output of the processes to the directory `DAY_LOGS`."""
    if place := os.environ.get("DAY_LOGS"):
        for log in root.glob("*/output"):
            Path(place).mkdir(parents=True, exist_ok=True)
            (Path(place) / log.parent.name).write_bytes(log.read_bytes())
