"""Compare the inventory with a plain table of PostgreSQL: pages of many matches, and many objects at once."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable

import psycopg

from bench.inventory import CALLER, PARTITION, ROUNDS, STORES, TYPE, an_object, filled, median_ms
from headgate.inventory.filters import Filter, PropertyConditions, PropertyFilter
from headgate.services.inventory.draft import Create
from headgate.services.inventory.inventory import Inventory
from headgate.testing.servers.databases import postgres

SIZE = 100_000
PAGE = 100
DEEP = 20
"""Number of pages before the deep one."""
TOGETHER = 1_000
"""Number of objects in one request."""
TABLE = """
create table object (uuid char(32) primary key, type text not null, project text not null, name text not null,
    properties jsonb not null, tags text[] not null, unique (type, project, name));
create index on object using gin (properties jsonb_path_ops);
create index on object using gin (tags);
"""
QUESTIONS: dict[str, tuple[Filter, str]] = {
    "half of them": (
        Filter((PARTITION,), (TYPE,), "blue", wanted=PropertyConditions(require_tags=("t1",))),
        "tags @> array['t1']",
    ),
    "a tenth": (
        Filter((PARTITION,), (TYPE,), "blue", wanted=PropertyConditions(require_items=(PropertyFilter("b", "3"),))),
        """properties @> '{"b": "3"}'""",
    ),
    "a tenth with the tag": (
        Filter(
            (PARTITION,),
            (TYPE,),
            "blue",
            wanted=PropertyConditions(require_items=(PropertyFilter("b", "3"),), require_tags=("t1",)),
        ),
        """properties @> '{"b": "3"}' and tags @> array['t1']""",
    ),
    "all": (Filter((PARTITION,), (TYPE,), "blue"), "true"),
}
"""Name -> the filter for an inventory and the SQL condition for the table."""


def table(url: str, size: int) -> tuple[float, dict[str, tuple[float, float]]]:
    """Return the seconds of the insertions, and for each query the milliseconds of the first page and a deep one."""
    with psycopg.connect(url) as connection:
        connection.execute(TABLE)
        connection.commit()
        began = time.perf_counter()
        for number in range(size):
            one = an_object(number, size)
            connection.execute(
                "insert into object values (%s, %s, %s, %s, %s, %s)",
                (one.uuid, one.type, one.project, one.name, json.dumps(dict(one.properties)), list(one.tags)),
            )
        connection.commit()
        inserted_s = time.perf_counter() - began
        connection.execute("analyze object")
        return inserted_s, {name: _pages(connection, where) for name, (_, where) in QUESTIONS.items()}


def _pages(connection: psycopg.Connection[tuple[str, ...]], where: str) -> tuple[float, float]:
    query = f"select * from object where {where} and uuid > %s order by uuid limit {PAGE}"

    def page(after: str) -> str:
        rows = connection.execute(query, (after,)).fetchall()
        return str(rows[-1][0]) if rows else after

    after = ""
    for _ in range(DEEP):
        after = page(after)
    return _median_ms(lambda: page("")), _median_ms(lambda: page(after))


def _median_ms(work: Callable[[], object]) -> float:
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return sorted(found)[ROUNDS // 2]


async def measured_inventory(name: str, size: int) -> tuple[float, dict[str, tuple[float, float]]]:
    """Measure the same for an inventory on a store; objects are created as `headgate inventory import` does."""
    async with STORES[name]() as backend, filled(backend, 0) as measured:
        inventory = measured.inventory
        began = time.perf_counter()
        for start in range(0, size, TOGETHER):
            steps = [Create(an_object(number, size)) for number in range(start, min(size, start + TOGETHER))]
            outcomes, _ = await inventory.apply_in_parts(CALLER, steps)
            assert all(isinstance(one, tuple) for one in outcomes)
        inserted_s = time.perf_counter() - began
        return inserted_s, {name: await _turned(inventory, one) for name, (one, _) in QUESTIONS.items()}


async def _turned(inventory: Inventory, one: Filter) -> tuple[float, float]:
    token = ""
    for _ in range(DEEP):
        token = (await inventory.page(CALLER, [one], limit=PAGE, token=token)).next_token
    first = await median_ms(lambda _: inventory.page(CALLER, [one], limit=PAGE))
    return first, await median_ms(lambda _: inventory.page(CALLER, [one], limit=PAGE, token=token))


def measure(size: int = SIZE, stores: tuple[str, ...] = ("sqlite",)) -> list[list[str]]:
    """Return rows for people: a name, the table's time, and the time of each store as a multiple of it."""
    with postgres() as url:
        plain_s, plain = table(url, size)
    found = {name: asyncio.run(measured_inventory(name, size)) for name in stores}
    several = (f"{s:.1f} s ({s / plain_s:.1f}x)" for s, _ in found.values())
    rows = [[f"{size:,} objects created one by one, in one transaction there", f"{plain_s:.1f} s", *several]]
    for name, pages in plain.items():
        for number, which in enumerate(("first", f"{DEEP + 1}st")):
            ours = (pages_of[name][number] for _, pages_of in found.values())
            cells = (f"{ms:.1f} ms ({ms / pages[number]:.1f}x)" for ms in ours)
            rows.append([f"{which} page of {PAGE}, {name} match", f"{pages[number]:.1f} ms", *cells])
    return rows


if __name__ == "__main__":
    for cells in measure(int(sys.argv[1]) if len(sys.argv) > 1 else SIZE, tuple(sys.argv[2:]) or ("sqlite",)):
        print(" | ".join(cells))
