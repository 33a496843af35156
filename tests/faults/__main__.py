"""`make faults`: every fault, in turn, on one fleet; as a table."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.faults.engines import zookeepers
from tests.faults.faults import FAULTS, Outcome, suffer
from tests.faults.fleet import KINDS, fleet

CHANGES = 30


def table(outcomes: Sequence[Outcome]) -> Table:
    kinds = ", ".join(f"{KINDS.count(kind)} {kind}s" for kind in dict.fromkeys(KINDS))
    found = Table(
        "fault",
        "changes",
        "landed",
        "rejected",
        "all ended after",
        "nothing left after",
        title=f"Three servers; {kinds}",
    )
    for one in outcomes:
        cells = (one.fault, one.changes, one.landed, one.failed, f"{one.ended_s:.1f} s", f"{one.rest_s:.1f} s")
        found.add_row(*(str(cell) for cell in cells))
    return found


async def run(root: Path, names: Sequence[str], count: int) -> list[Outcome]:
    async with zookeepers(root / "servers") as engine, fleet(root / "gate", engine) as found:
        return [await suffer(found, name, count) for name in names]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        Console(width=120).print(table(asyncio.run(run(Path(directory), list(FAULTS), CHANGES))))
