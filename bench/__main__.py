"""Print all measurements as tables: `python -m bench [NAME…]`."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.attacks import measure as attacks
from bench.day.tables import days
from bench.gate import COMPONENTS, apart, gate_of, in_flight, latency
from bench.inventory import measure as inventory
from bench.isolation import BUILDS
from bench.isolation import measure as isolation
from bench.layouts import measure as layout_cost
from bench.merge import measure
from bench.month import HEADINGS
from bench.month import measure as month
from bench.objects import measure as objects
from bench.playbooks import AIM, PHASES
from bench.playbooks import measure as playbooks
from bench.queues.rebalance import rebalance
from bench.queues.tables import latency as queue_latency
from bench.queues.tables import memory as queue_memory
from bench.queues.tables import throughput as queue_throughput
from bench.store import items as store_items
from bench.store import raw, single_steps
from bench.tenant import REPOSITORIES
from bench.tenant import measure as offline
from bench.viewers import BUSY, NOBODY, VIEWERS, WATCHED
from bench.viewers import measure as viewers
from headgate.cli.terminal.screen import Terminal, TextTable
from headgate.testing.gate import cost_of_item
from headgate.testing.month import CHANGES
from headgate.testing.month import REPOSITORIES as PROJECTS
from headgate.testing.stores.wire import REFERENCE as STEPS

REFERENCE = {1: 278, 10: 871, 50: 3551, 100: 6901}
"""Requests of Zuul per item, without its executor and event consumption."""

PUSHES = 20
"""Number of pushes whose latency is measured."""


def items() -> TextTable:
    table = TextTable(
        "jobs",
        "commits",
        "reads",
        "requests",
        "reference",
        "ratio",
        "bytes written",
        title="One item, approval to landed",
    )
    for jobs in (1, 10, 50, 100):
        with tempfile.TemporaryDirectory() as name:
            cost = asyncio.run(cost_of_item(Path(name), jobs))
        cells = (
            jobs,
            cost.commits,
            cost.reads,
            cost.requests,
            REFERENCE[jobs],
            f"{cost.requests / REFERENCE[jobs]:.3f}",
        )
        table.add_row(*(str(cell) for cell in cells), f"{cost.written_bytes:,}")
    return table


def on_servers() -> TextTable:
    title = "One item over the network: requests, and kB both ways (100 jobs in the reference: 8,600 kB written)"
    table = TextTable("jobs", "reference", "ZooKeeper", "ratio", "kB", "etcd", "ratio", "kB", title=title)
    found = store_items(tuple(REFERENCE))
    for jobs, reference in REFERENCE.items():
        cells = [str(jobs), str(reference)]
        for of_store in found.values():
            _, requests, size_bytes = of_store[jobs]
            cells += [str(requests), f"{requests / reference:.3f}", f"{size_bytes / 1000:,.0f}"]
        table.add_row(*cells)
    return table


def on_wire() -> TextTable:
    title = "Single steps over the network: requests of all processes that take part"
    table = TextTable("step", "reference", "ZooKeeper", "ratio", "etcd", "ratio", title=title)
    found = single_steps()
    for step, reference in STEPS.items():
        cells = [step, str(reference)]
        for of_store in found.values():
            cells += [str(of_store[step]), f"{of_store[step] / reference:.3f}"]
        table.add_row(*cells)
    return table


def limit() -> TextTable:
    title = "What our layer costs: 64 at once, 512 bytes"
    table = TextTable("store", "operation", "plain /s", "ours /s", "ratio", title=title)
    for store, rates in raw().items():
        for name, (plain, ours) in rates.items():
            table.add_row(store, name, f"{plain:,.0f}", f"{ours:,.0f}", f"{ours / plain:.2f}")
    return table


def merging() -> TextTable:
    found = asyncio.run(measure())
    table = TextTable("engine", "seconds", "ratio", "aim", title=f"A chain of {found['merges']} speculative merges")
    table.add_row("git merge in a work tree", f"{found['work_tree_s']:.2f}", "1.00", "")
    ratio = found["headgate_s"] / found["work_tree_s"]
    table.add_row("Headgate, bare repository", f"{found['headgate_s']:.2f}", f"{ratio:.2f}", "0.33")
    return table


def running() -> TextTable:
    found = latency(PUSHES)
    table = TextTable("measure", "here", "aim", title="headgate run, embedded store, one process")
    table.add_row("push of an approval to first build, p50", f"{found['p50_s'] * 1000:.0f} ms", "300 ms")
    table.add_row(f"the slowest of {PUSHES}", f"{found['slowest_s'] * 1000:.0f} ms", "")
    table.add_row("resident memory, idle", f"{found['memory_mb']:.0f} MB", "120 MB")
    table.add_row("resident memory, 180 × 5 in flight", f"{in_flight(180, 5):.0f} MB", "300 MB")
    return table


def growth() -> TextTable:
    table = TextTable(
        "changes x 5 jobs", "wall s", "wall s a change", "CPU s a change", "memory", title="A gate of no-time jobs"
    )
    for changes in (20, 60, 180):
        found = gate_of(changes)
        per = (found["wall_s"] / changes, found["cpu_s"] / changes)
        table.add_row(
            str(changes), f"{found['wall_s']:.1f}", *(f"{x:.3f}" for x in per), f"{found['memory_mb']:.0f} MB"
        )
    return table


def looked_on() -> TextTable:
    title = f"A gate that {VIEWERS:,} people look on at: medians of runs that take turns"
    columns = ("wall s", "CPU s of the gate", "more CPU than nobody", "than a busy machine", "aim", "for pages")
    table, found = TextTable("who looks on", *columns, title=title), viewers()
    for condition, cost in found.items():
        more = [f"{cost.cpu_s / found[other].cpu_s - 1:+.1%}" for other in (NOBODY, BUSY)]
        pages = f"{cost.pages_s:.2f} ({cost.pages_s / (cost.cpu_s - cost.pages_s):.1%})"
        aim = "10%" if condition == WATCHED else ""
        table.add_row(condition, f"{cost.wall_s:.1f}", f"{cost.cpu_s:.2f}", *more, aim, pages)
    return table


def components() -> TextTable:
    title = "CPU seconds a change, each component a process of its own, on etcd"
    table = TextTable("changes x 5 jobs", *COMPONENTS, title=title)
    for changes in (20, 60, 180):
        used = apart(changes)
        table.add_row(str(changes), *(f"{used[kind] / changes:.3f}" for kind in COMPONENTS))
    return table


def large() -> TextTable:
    table = TextTable(
        "command", "seconds", "MB", title=f"A tenant of {REPOSITORIES:,} repositories with two branches each"
    )
    for command, (seconds, size_mb) in offline().items():
        table.add_row(f"headgate {command}", f"{seconds:.1f}", f"{size_mb:.0f}")
    return table


def layouts() -> TextTable:
    table = TextTable(
        "projects x 2 branches", "jobs", "cold", "one file landed", "one file proposed", "all graphs", "memory",
        title="Layouts, in one process (aim: 20 ms for a proposal at 1,300 projects)",
    )  # fmt: skip
    for projects in (200, REPOSITORIES):
        c = layout_cost(projects)
        times = (f"{c.cold_s:.2f} s", f"{c.landed_s * 1000:.0f} ms", f"{c.proposed_s * 1000:.1f} ms")
        graphs = f"{c.frozen_s:.2f} s for {c.graphs:,}"
        table.add_row(f"{projects:,}", f"{c.jobs:,}", *times, graphs, f"{c.memory_mb:.0f} MB")
    return table


def inventories() -> TextTable:
    rows = inventory()
    table = TextTable(*rows[0], title="The inventory (aims: 5 reads; 100x at 100,000; create 1.5x of one transaction)")
    for row in rows:
        table.add_row(*row.values())
    return table


def beside_a_table() -> TextTable:
    title = "The inventory beside a table of PostgreSQL (aims: 5x for the objects, 20x for a page)"
    table = TextTable("what", "PostgreSQL", "SQLite", title=title)
    for row in objects():
        table.add_row(*row)
    return table


def walls() -> TextTable:
    table = TextTable("walls", "wall s", "CPU s", title=f"An empty job, mean of {BUILDS} (aim: 0.3 s more than none)")
    for name, (wall_s, cpu_s) in isolation().items():
        table.add_row(name, f"{wall_s:.3f}", f"{cpu_s:.3f}")
    return table


def warm() -> TextTable:
    title = f"A playbook of one task in its sandbox, ms, {PHASES} of each kind in turn (aim: {AIM})"
    table = TextTable("Ansible", "least, copy", "new", "ratio", "median, copy", "new", "ratio", title=title)
    for name, taken in playbooks().items():
        both = (taken.copy_s, taken.new_s)
        least, median = ([f"{of(found) * 1000:.0f}" for found in both] for of in (min, statistics.median))
        table.add_row(name, *least, f"{taken.least:.2f}", *median, f"{taken.median:.2f}")
    return table


def months() -> TextTable:
    title = f"A month of {CHANGES:,} changes to {PROJECTS} repositories in one queue: reuse as parts of without"
    table = TextTable(*HEADINGS, title=title)
    for row in month():
        table.add_row(*row)
    return table


TABLES: dict[str, Sequence[Callable[[], TextTable]]] = {
    "run": (running,),
    "isolation": (walls,),
    "playbooks": (warm,),
    "attacks": (attacks,),
    "growth": (growth,),
    "viewers": (looked_on,),
    "components": (components,),
    "items": (items,),
    "store": (on_servers, on_wire, limit),
    "merge": (merging,),
    "layouts": (layouts,),
    "tenant": (large,),
    "month": (months,),
    "queues": (queue_throughput, queue_latency, rebalance, queue_memory),
    "inventory": (inventories,),
    "objects": (beside_a_table,),
    "day": (days,),
}
"""Name on the command line -> its tables; without a name, all are printed."""


def main(names: Sequence[str]) -> None:
    """Print the tables of these names.  Raise SystemExit for an unknown name."""
    if unknown := [name for name in names if name not in TABLES]:
        raise SystemExit(f"there is no table named {', '.join(unknown)}; there are {', '.join(TABLES)}")
    terminal = Terminal()
    for name in names or TABLES:
        for table in TABLES[name]:
            terminal.print(table())
            terminal.print()


if __name__ == "__main__":
    main(sys.argv[1:])
