"""Test differences of graphs, over all those of the cases: a graph does not differ from itself, and the reverse is
the opposite."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from headgate.config.explain import describe
from headgate.config.model import FrozenGraph

from .places import TENANTS, layout
from .test_cases import CASES


def graphs() -> list[FrozenGraph]:
    found: list[FrozenGraph] = []
    for case in CASES:
        values = case.values[0]
        made = layout(values["says"], values.get("tenants", TENANTS))
        for project, branches in made.branches.items():
            found += [made.freeze(p, project, branch) for p in made.pipelines for branch in branches]
    return [graph for graph in found if graph.jobs or graph.errors]


@pytest.mark.long
@pytest.mark.heavy
def test_differences_go_both_ways():
    every = graphs()
    assert len(every) > 100
    for old, new in pairwise(every):
        assert not describe.difference(old, old)
        there, back = describe.difference(old, new), describe.difference(new, old)
        assert bool(there) == bool(back)
        assert there.new == back.gone and there.gone == back.new
        assert there.errors_new == back.errors_gone and there.errors_gone == back.errors_new
        assert {
            name: {(d.path, json.dumps(d.old), json.dumps(d.new)) for d in found}
            for name, found in there.changed.items()
        } == {
            name: {(d.path, json.dumps(d.new), json.dumps(d.old)) for d in found}
            for name, found in back.changed.items()
        }


@pytest.mark.long
@pytest.mark.heavy
def test_the_output_is_json_with_the_same_keys_for_every_job():
    jobs = [job for graph in graphs() for job in describe.jobs(graph)]
    assert json.loads(json.dumps(jobs)) == jobs
    assert {tuple(job) for job in jobs if "error" not in job} == {
        tuple(next(job for job in jobs if "error" not in job))
    }
    assert {tuple(job["error"]) for job in jobs if "error" in job} == {("name", "message")}
