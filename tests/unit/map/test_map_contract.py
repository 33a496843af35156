"""Test the paths that other programs use, one by one; a change here breaks a running installation."""

import pytest

from headgate.map.places import Map
from headgate.map.tree import render
from headgate.store.types import Append, At, Put
from headgate.testing.lawful import Laws, Unlawful

QUEUE = ["requests", "locks", "params", "result-data", "results", "waiters"]
PIPELINE = "zuul/tenant/<tenant>/pipeline/<pipeline>"
BUILDSET = f"{PIPELINE}/item/<item uuid>/buildset/<buildset uuid>"
EVENTS = "zuul/events/tenant/<tenant>"
CONTRACT = [
    "zuul/cache/connection/<connection>",
    "zuul/cache/connection/<connection>/branches",
    "zuul/cache/connection/<connection>/branches/data",
    "zuul/cache/connection/<connection>/branches/lock",
    "zuul/cache/connection/<connection>/cache",
    "zuul/cache/connection/<connection>/data",
    "zuul/cleanup",
    "zuul/cleanup/build_requests",
    "zuul/cleanup/connection",
    "zuul/cleanup/general",
    "zuul/cleanup/merge_requests",
    "zuul/cleanup/node_request",
    "zuul/cleanup/sempahores",
    "zuul/components",
    *(f"zuul/components/{kind}" for kind in ["executor", "fingergw", "merger", "scheduler", "web"]),
    "zuul/config/cache",
    "zuul/config/cache/<project>/<branch>/<file>",
    "zuul/config/lock",
    "zuul/config/lock/<project>",
    "zuul/events/connection/<connection>/events",
    "zuul/events/connection/<connection>/events/queue",
    "zuul/events/connection/<connection>/events/data",
    "zuul/events/connection/<connection>/events/election",
    EVENTS,
    f"{EVENTS}/management",
    f"{EVENTS}/trigger",
    f"{EVENTS}/pipelines",
    *(f"{EVENTS}/pipelines/<pipeline>/{queue}" for queue in ["management", "result", "trigger"]),
    "zuul/executor/unzoned",
    "zuul/executor/zones/<zone>",
    "zuul/merger",
    *(f"{EVENTS}/{queue}/{part}" for queue in ["management", "trigger"] for part in ["queue", "data"]),
    *(f"{EVENTS}/pipelines/<pipeline>/{queue}/{part}"
      for queue in ["management", "result", "trigger"] for part in ["queue", "data"]),
    *(f"{at}/{part}" for at in ["zuul/executor/unzoned", "zuul/executor/zones/<zone>", "zuul/merger"]
      for part in QUEUE),
    "zuul/layout/<tenant>",
    "zuul/locks",
    "zuul/locks/events",
    "zuul/locks/events/trigger/<tenant>",
    "zuul/locks/events/management/<tenant>",
    "zuul/locks/pipeline",
    "zuul/locks/pipeline/<tenant>/<pipeline>",
    "zuul/locks/tenant",
    "zuul/locks/tenant/<tenant>",
    "zuul/ltime",
    "zuul/nodepool",
    "zuul/results/management",
    "zuul/scheduler/timer-election",
    "zuul/scheduler/stats-election",
    "zuul/semaphores/<tenant>/<semaphore>",
    "zuul/system",
    "zuul/system/conf",
    "zuul/system/conf-lock",
    "zuul/tenant/<tenant>",
    PIPELINE,
    f"{PIPELINE}/queue",
    f"{PIPELINE}/queue/<queue uuid>",
    f"{PIPELINE}/item/<item uuid>",
    BUILDSET,
    f"{BUILDSET}/repo_state",
    f"{BUILDSET}/job/<job name>",
    f"{BUILDSET}/job/<job name>/build/<build uuid>",
    f"{BUILDSET}/job/<job name>/build/<build uuid>/parameters",
]  # fmt: skip
ROWS = {row.template: row for row in render(Map, Map().path)}


@pytest.mark.parametrize("template", CONTRACT)
def test_is_declared_as_part_of_the_contract(template):
    assert ROWS[f"/{template}"].seed


def test_every_place_is_documented():
    assert [row.template for row in ROWS.values() if not row.doc] == []


def test_paths_that_only_headgate_uses_are_not_in_the_contract():
    ours = {row.template for row in ROWS.values() if not row.seed}
    assert f"/{BUILDSET}/proposed" in ours and "/zuul/history/queue" in ours
    assert not {f"/{template}" for template in CONTRACT} & ours


def test_every_place_has_writers_and_nobody_else_writes_there() -> None:
    assert not [template for template, row in ROWS.items() if row.place is not None and not row.place.by]
    laws = Laws("/zuul")
    laws.check({"scheduler"}, [], [Append("/zuul/cleanup/connection", b"")])
    with pytest.raises(Unlawful, match="the map names scheduler"):
        laws.check({"executor", "fingergw", ""}, [], [Append("/zuul/cleanup/connection", b"")])


def test_the_branches_of_a_connection_are_written_under_their_own_lock() -> None:
    laws, branches = Laws("/zuul"), "/zuul/cache/connection/hub/branches"
    written = [Put(f"{branches}/data", b"")]
    laws.check({"scheduler"}, [At(f"{branches}/lock/0000000001", 1)], written)
    with pytest.raises(Unlawful, match="without a guard under"):
        laws.check({"scheduler"}, [At("/zuul/events/connection/hub/events/election/0000000001", 1)], written)
