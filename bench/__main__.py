"""Everything that is measured, as tables."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.merge import measure
from headgate.testing.measure import cost_of_item

REFERENCE = {1: 278, 10: 871, 50: 3551, 100: 6901}
"""Requests of the reference per item, without its executor and event consumption."""


def items() -> Table:
    table = Table(
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


def merging() -> Table:
    found = asyncio.run(measure())
    table = Table("engine", "seconds", "ratio", title=f"A chain of {found['merges']} speculative merges")
    table.add_row("git merge in a work tree", f"{found['work_tree_s']:.2f}", "1.00")
    table.add_row(
        "Headgate, bare repository", f"{found['headgate_s']:.2f}", f"{found['headgate_s'] / found['work_tree_s']:.2f}"
    )
    return table


if __name__ == "__main__":
    console = Console()
    console.print(items())
    console.print(merging())
