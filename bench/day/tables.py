"""Print the cost of a day as a table: `DAY_PROJECTS`, `DAY_CHANGES`, `DAY_STORE` and `DAY_SHORT` change the run."""

from __future__ import annotations

import os
from typing import NamedTuple

from bench.day.measure import Day, measure
from headgate.cli.terminal.screen import TextTable

PROJECTS, CHANGES = 1_281, 2_000
KINDS = ("scheduler", "merger", "machines", "store")


class Size(NamedTuple):
    projects: int
    changes: int
    schedulers: int


def sizes(projects: int, changes: int) -> tuple[Size, ...]:
    """Return the runs: the complete day with one scheduler and with three, fewer changes, and fewer projects."""
    full = tuple(Size(projects, changes, schedulers) for schedulers in (1, 3))
    shorter = tuple(Size(projects, changes * part // 8, 1) for part in (1, 4))
    smaller = tuple(Size(projects * part // 8, changes // 8, 1) for part in (1, 4))
    return (*full, *shorter, *smaller)


def days() -> TextTable:
    """Run a day of `DAY_CHANGES` in `DAY_PROJECTS`, and parts of it."""
    projects, changes = (int(os.environ.get(f"DAY_{n}", d)) for n, d in (("PROJECTS", PROJECTS), ("CHANGES", CHANGES)))
    store = os.environ.get("DAY_STORE", "etcd")
    wanted = sizes(projects, changes)[: 2 if "DAY_SHORT" in os.environ else None]
    return table([measure(*size, store=store) for size in wanted], store)


def table(found: list[Day], store: str) -> TextTable:
    """Return a column for each run."""
    title = f"A day of an organisation, on {store}: 19 pipelines, builds that run nothing; CPU in ms, for each change"
    made = TextTable("", *(f"{one.projects:,} x {one.changes:,}" for one in found), title=title)

    def row(name: str, *cells: str) -> None:
        made.add_row(name, *cells)

    row("schedulers", *(str(one.schedulers) for one in found))
    row("builds", *(f"{one.builds:,}" for one in found))
    for kind in KINDS:
        row(f"CPU ms a change: {kind}", *(f"{one.used[kind].cpu_s / one.changes * 1000:.0f}" for one in found))
    for kind in ("scheduler", "merger"):
        row(f"CPU ms a change: git of {kind}", *(f"{one.used[kind].git_s / one.changes * 1000:.0f}" for one in found))
    for kind in ("scheduler", "merger"):
        row(f"store requests a change: {kind}", *(f"{one.used[kind].requests / one.changes:.1f}" for one in found))
    for kind in KINDS:
        row(f"memory of one {kind}, MB", *(f"{one.used[kind].memory_mb:.0f}" for one in found))
    row("proposed to first build, p50 / p95 s", *(_times(one.checked_s) for one in found))
    row("approved to first build, p50 / p95 s", *(_times(one.gated_s) for one in found))
    row("last result to landed, p50 / p95 s", *(_times(one.landed_s) for one in found))
    row("start: CPU s of schedulers, merger", *(_started(one) for one in found))
    row("wall s of the day", *(f"{one.wall_s:.0f}" for one in found))
    row("load before, after", *(f"{one.load[0]:.1f}, {one.load[1]:.1f}" for one in found))
    return made


def _times(times: tuple[float, float]) -> str:
    return f"{times[0]:.2f} / {times[1]:.2f}"


def _started(day: Day) -> str:
    return ", ".join(f"{day.start[kind].cpu_s + day.start[kind].git_s:.0f}" for kind in ("scheduler", "merger"))
