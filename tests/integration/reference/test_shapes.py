"""Test that every readable path has the shape that Zuul's clients expect, in a tenant with all kinds of objects."""

from __future__ import annotations

import pytest

from .conftest import World
from .notation import shape, unlike
from .shapes import NAMED, READS


@pytest.mark.long
async def test_every_answer_has_the_shape_that_clients_expect(world: World) -> None:
    landed = await world.landed("done")
    job = await world.under_way("busy")
    known = {"change": "busy", "build": landed["uuid"], "buildset": landed["buildset"]["uuid"]}
    wrong = []
    for path, notation in READS.items():
        answer = await world.client.get(path.format(**known).replace("T/", "/api/tenant/example/", 1))
        if answer.status_code != 200:
            wrong.append(f"{path}: {answer.status_code} {answer.text}")
            continue
        wrong += [f"{path}: {what}" for what in unlike(answer.json(), shape(notation), NAMED)]
    for path in (f"T/build/{job['uuid']}", f"T/buildset/{job['item']['zuul_ref'].removeprefix('Z')}"):
        kind = "TOPBUILD" if "/build/" in path else "BUILDSET"
        wrong += [f"{path}: {what}" for what in unlike(await world.get(path), shape(kind), NAMED)]
    assert not wrong, "\n".join(wrong)
    assert (job["report_url"], job["snapshotting"], job["remaining_time"]) == (f"build/{job['uuid']}", False, None)
    world.running.context.pages.url = "https://gate.example"
    status = world.site.status.of("example")
    jobs = [job for p in status.pipelines for q in p.change_queues for h in q.heads for item in h for job in item.jobs]
    assert {one.report_url for one in jobs} == {f"https://gate.example/t/example/build/{one.uuid}" for one in jobs}
    full = {path: await world.get(path) for path in ("T/builds", "T/buildsets", "T/jobs", "T/build-times", "T/labels")}
    assert all(full.values()), "a shape says nothing of an empty list"
    world.running.runner.hold.set() if world.running.runner.hold else None


@pytest.mark.parametrize(
    ("value", "notation", "wrong"),
    [
        ({"a": 1}, "{a i}", 0),
        ({"a": None}, "{a i}", 1),
        ({"a": None}, "{a i?}", 0),
        ({}, "{a i~}", 0),
        ({}, "{a i?}", 1),
        ({"a": True}, "{a i}", 1),
        ([{"b": ["x", 1]}], "[{b [s]}]", 1),
        ({"a": 1.5}, "{a n}", 0),
        ("x", "[s]", 1),
    ],
)
def test_the_notation_detects_wrong_shapes(value: object, notation: str, wrong: int) -> None:
    assert len(list(unlike(value, shape(notation), {}))) == wrong
