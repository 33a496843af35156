"""Measure the memory of a configuration in one process: read cold, after a landing, proposed, frozen."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import psutil
import yaml

from bench.tenant import PIPELINES, _central, _own
from headgate.config.dynamic import TenantLayouts
from headgate.config.operator.model import Connection, Tenant
from headgate.config.parse import ParseCache
from headgate.testing.layouts import parse_tenants

PROPOSALS = 20
HUB = {"hub": Connection("hub", "hub.example")}
Texts = dict[str, dict[str, dict[str, str]]]


class Cost(NamedTuple):
    projects: int
    jobs: int
    cold_s: float
    landed_s: float
    """Seconds after one file of one branch has changed."""
    proposed_s: float
    """Median of several changes, each of one file."""
    frozen_s: float
    """Seconds to freeze all projects in all pipelines."""
    graphs: int
    memory_mb: float


def measure(projects: int) -> Cost:
    tenant, texts = _tenant(projects), _texts(projects)
    # Garbage of the texts must not be freed in the middle, which would hide memory of the layout.
    gc.collect()
    before_bytes = psutil.Process().memory_info().rss
    cache = ParseCache()
    cold_s, layouts = _timed(lambda: TenantLayouts.of(tenant, _parsed(tenant, texts, cache), cache))
    memory_mb = (psutil.Process().memory_info().rss - before_bytes) / 1e6
    assert layouts.landed.errors == ()
    one, (name, text) = "hub.example/org/p7", next(iter(texts["hub.example/org/p7"]["master"].items()))
    proposed = []
    for n in range(PROPOSALS):
        # Each proposal has another value, so that no cache can answer it.
        other = {one: {"master": {name: text.replace("retries: 0", f"retries: {n + 100}")}}}
        proposed.append(_timed(lambda other=other: layouts.proposed(other, (one, "master")))[0])  # type: ignore[misc]
    changed = {**texts, one: {**texts[one], "master": {name: text + "\n# more\n"}}}
    landed_s, _ = _timed(lambda: TenantLayouts.of(tenant, _parsed(tenant, changed, cache), cache, before=layouts))
    frozen_s, graphs = _timed(lambda: _freeze(layouts))
    jobs = len(layouts.landed.jobs)
    return Cost(projects, jobs, cold_s, landed_s, median(proposed), frozen_s, graphs, memory_mb)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = work()
    return time.perf_counter() - start, found


def _tenant(count: int) -> Tenant:
    names = {"config-projects": ["org/config"], "untrusted-projects": [f"org/p{n}" for n in range(count - 1)]}
    text = yaml.safe_dump([{"tenant": {"name": "large", "source": {"hub": names}}}])
    return parse_tenants(text, "tenants.yaml", HUB)["large"]


def _texts(count: int) -> Texts:
    def dumped(stanzas: list[dict[str, Any]]) -> dict[str, str]:
        return {"zuul.yaml": yaml.dump(stanzas, Dumper=yaml.CSafeDumper, sort_keys=False)}

    found: Texts = {"hub.example/org/config": {"master": dumped(_central())}}
    for n in range(count - 1):
        files = dumped(_own(n))
        found[f"hub.example/org/p{n}"] = {"master": files, "stable": files}
    return found


def _parsed(tenant: Tenant, texts: Texts, cache: ParseCache) -> dict[str, dict[str, Any]]:
    return {
        p.project: {branch: cache.parse(p, branch, files) for branch, files in texts[p.project].items()}
        for p in tenant.projects
    }


def _freeze(layouts: TenantLayouts) -> int:
    landed, graphs = layouts.landed, 0
    for project in landed.branches:
        for pipeline in PIPELINES:
            assert not landed.freeze(pipeline, project, "master").errors
            graphs += 1
    return graphs
