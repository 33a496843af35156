"""Try every fault in turn on one fleet for each kind of store, and print tables: `make faults`.

`python -m tests.faults [etcd|zookeeper] [part of a fault's name…]` tries some.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headgate.cli.terminal.screen import Terminal, TextTable
from tests.faults.engines import ENGINES
from tests.faults.faults import FAULTS, Outcome, on_the_map, suffer
from tests.faults.fleet import KINDS, fleet

CHANGES = 30
SWEPT_S = 10.0
"""Remains that are older than this were removed only by the safety net."""


def table(engine: str, outcomes: Sequence[Outcome]) -> TextTable:
    kinds = ", ".join(f"{KINDS.count(kind)} {kind}s" for kind in dict.fromkeys(KINDS))
    found = TextTable(
        "fault",
        "changes",
        "landed",
        "rejected",
        "all ended after",
        "nothing left after",
        "",
        title=f"Three servers of {engine}; {kinds}",
    )
    for one in outcomes:
        if one.untried:
            found.add_row(one.fault, f"not tried: {one.untried}")
            continue
        cells = (
            one.fault,
            one.changes,
            one.landed,
            one.failed,
            f"{one.ended_s:.1f} s",
            f"{one.rest_s:.1f} s",
            one.tried,
        )
        found.add_row(*(str(cell) for cell in cells))
    return found


async def run(root: Path, engine: str, names: Sequence[str], count: int) -> list[Outcome]:
    async with ENGINES[engine](root / "servers") as servers, fleet(root / "gate", servers) as found:
        outcomes = []
        for name in names:
            outcomes.append(one := await suffer(found, name, count))
            print(f"{engine}: {name}: {one.landed} landed, {one.failed} rejected", flush=True)
            if one.rest_s > SWEPT_S:
                print(f"left for {one.rest_s:.0f} s: {', '.join(one.left)}", flush=True)
        await on_the_map(found)
        return outcomes


def main(names: Sequence[str]) -> None:
    engines = [name for name in ENGINES if name in names] or list(ENGINES)
    parts = [part for part in names if part not in ENGINES] or [""]
    names = [name for name in FAULTS if any(part in name for part in parts)]
    for engine in engines:
        with tempfile.TemporaryDirectory() as directory:
            Terminal().print(table(engine, asyncio.run(run(Path(directory), engine, names, CHANGES))))


if __name__ == "__main__":
    main(sys.argv[1:])
