"""Provide a tenant with full queues: 180 changes of five jobs each, in every possible state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headgate.adapters.sql.history import SqlHistory
from headgate.config.dynamic import TenantLayouts
from headgate.config.model import FrozenGraph, FrozenJob, JobDependency
from headgate.config.operator.model import Connection, Tenant
from headgate.config.parse import ParseCache
from headgate.gate.state.change import Change
from headgate.gate.state.model import Build, BuildSet, Item, Phase, Queue, State
from headgate.map.records import Finished, FinishedBuild
from headgate.map.state import writes
from headgate.ports.observer import Nobody, Observer
from headgate.recipes.mirror import Mirror
from headgate.recipes.requestforms import Owner, Request
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Op
from headgate.testing.layouts import parse_tenants
from headgate.web.access import Access
from headgate.web.app import create_app
from headgate.web.server import serve
from headgate.web.site import Site
from tests.integration.conftest import PIPELINES, TENANTS
from tests.site import site_of

NOW_MS = 1_800_000_000_000
JOBS = tuple(
    FrozenJob(name, voting=name != "docs", dependencies=(JobDependency("build"),) if name == "integration" else ())
    for name in ("build", "unit-tests-python-3.12", "lint", "docs", "integration")
)
SUBJECTS = (
    "Read the whole answer before the connection is closed",
    "Retry uploads",
    "Use one clock everywhere, so that what is compared was measured alike, and tests need not wait for it",
)


@dataclass(slots=True)
class Fixed:
    """Provide a configuration that does not change."""

    tenant: Tenant
    layouts: TenantLayouts
    loaded: asyncio.Event = field(default_factory=asyncio.Event)


def item(pipeline: str, number: int, ahead: str | None, began: int) -> Item:
    """`began`: 0 waits for its turn, 1 runs, 2 fails, 3 is done."""
    name = f"{pipeline}{number}"
    change = Change(
        connection="local",
        project=f"git.example/code/{('api', 'lib')[number % 2]}",
        branch="master",
        topic=f"topic-{number}",
        commit=f"{number:08x}" * 5,
        ref=f"refs/for/master/topic-{number}",
        message=SUBJECTS[number % 3],
        owner="Ada",
    )
    builds = {}
    for place, job in enumerate(JOBS):
        done = began == 3 or (began > 0 and place < number % 4)
        if began == 0 or (began < 3 and job.name == "integration"):
            continue
        good = done or (began == 2 and place == 0)
        result = ("FAILURE" if began == 2 and place == 0 else "SUCCESS") if good else None
        ended = NOW_MS - 1_000 * number if result else 0
        builds[job.name] = Build(
            id=f"{name}b{place}", job=job.name, result=result, voting=job.voting, requested_ms=NOW_MS - 90_000,
            start_ms=ended - 61_000 if result else 0, end_ms=ended,
        )  # fmt: skip
    phase, graph = (Phase.MERGED, FrozenGraph(JOBS)) if began else (Phase.WAITING, None)
    buildset = BuildSet(id=f"{name}s", ahead=ahead and f"{ahead}s", merge=phase, graph=graph, builds=builds)
    return Item(id=name, change=change, event="e", enqueued_ms=NOW_MS - 200_000, buildset=buildset if began else None)


def crowd() -> dict[str, State]:
    check = tuple(
        Queue(id=f"c{n}", name="code", items=(item("check", n, None, 1 + n % 3),), window=0, dynamic=True)
        for n in range(120)
    )
    gate = [item("gate", n, f"gate{n - 1}" if n else None, (2 if n == 3 else 1) if n < 20 else 0) for n in range(60)]
    return {
        "check": State(queues=check),
        "gate": State(queues=(Queue(id="g", name="integrated", items=tuple(gate), window=20),)),
    }


@dataclass
class Availability:
    """Tell whether the store can be reached, as a test decides."""

    away_since_ms: int | None = None
    away_why: str = ""


@asynccontextmanager
async def crowded(
    root: Path, access: Access | None = None, tenants: str = TENANTS, observer: Observer | None = None
) -> AsyncIterator[tuple[Site, str]]:
    """Provide the site, and its address."""
    store = Store(MemoryBackend())
    context = Context(store, Mirror(store, "/zuul"), lambda: NOW_MS, observer=observer or Nobody())
    tenant = parse_tenants(tenants, "tenants.yaml", {"local": Connection("local", "git.example")})["example"]
    cache = ParseCache()
    config = cache.parse(tenant.projects[0], "master", {"zuul.yaml": PIPELINES})
    fixed = Fixed(tenant, TenantLayouts.of(tenant, {tenant.projects[0].project: {"master": config}}, cache))
    fixed.loaded.set()
    for name, state in crowd().items():
        ops = list(writes(context.map.tenant("example").pipeline(name), State(), state))
        ops += [op for _, one in state.items() for op in running(context, one)]
        for start in range(0, len(ops), 100):
            await store.commit([], ops[start : start + 100])
    history = SqlHistory(f"sqlite:///{root}/history.sqlite")
    for number in range(120):
        await history.record(ended(number))
    site = site_of(context, {"example": fixed}, history, root / "logs", access, availability=Availability())
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    mirror = asyncio.ensure_future(context.mirror.run())
    serving = asyncio.ensure_future(serve(create_app(site), "127.0.0.1", 0, stop, bound.set_result))
    try:
        await context.mirror.ready()
        yield site, f"http://127.0.0.1:{await bound}"
    finally:
        stop.set()
        await serving
        mirror.cancel()
        await asyncio.gather(mirror, return_exceptions=True)
        history.close()


def running(context: Context, one: Item) -> list[Op]:
    """Requests of the running builds."""
    found: list[Op] = []
    for build in one.buildset.builds.values() if one.buildset else ():
        if build.result is None and not build.id.endswith("b3"):
            ago_s = (len(found) + 1) * (int(one.change.commit[:8], 16) % 20 + 3)
            owner = Owner("here", start_ms=NOW_MS - 1_000 * ago_s)
            found += context.builds.submit(Request(id=build.id, state="running", owner=owner), b"{}")
    return found


def ended(number: int) -> Finished:
    one = item("past", number, None, 3)
    assert one.buildset is not None, "it was begun"
    result = "FAILURE" if number % 5 == 0 else "SUCCESS"
    return Finished(
        buildset=one.buildset.id,
        tenant="example",
        pipeline="gate",
        change=one.change,
        event="e",
        result=result,
        message="Build succeeded.\n\n- build : SUCCESS in 1m 01s",
        enqueued_ms=NOW_MS - 1_000_000 - 60_000 * number,
        ended_ms=NOW_MS - 900_000 - 60_000 * number,
        builds=tuple(
            msgspec.convert({
                "uuid": b.id, "job_name": b.job, "voting": b.voting, "log_url": "", "error": "", "nodeset": "",
                "result": "FAILURE" if result == "FAILURE" and b.job == "lint" else "SUCCESS",
                "start_ms": NOW_MS - 990_000 - 60_000 * number, "end_ms": NOW_MS - 929_000 - 60_000 * number,
                "artifacts": [{"name": "wheel", "url": "dist/x.whl"}, {"name": "evil", "url": "javascript:alert(1)"}]
                if b.job == "build" else [], "provides": [],
            }, FinishedBuild)
            for b in one.buildset.builds.values()
        ),
        item=one.id,
    )  # fmt: skip
