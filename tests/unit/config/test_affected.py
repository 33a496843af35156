"""Test that graphs outside the reach of a change stay the same."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from headgate.config.check.uses import reached
from headgate.config.dynamic import TenantLayouts
from headgate.config.explain import describe
from headgate.config.parse import ParseCache
from tests.tiers import share

from .places import BASE, branches, layouts, tenant, texts
from .test_incremental import TENANTS, a_state

PROJECTS = ("git.acme/ops", "git.acme/app", "git.acme/lib")


@pytest.mark.heavy
@settings(max_examples=share(150))
@given(a_state, a_state)
def test_graphs_of_projects_that_are_not_reached_are_the_same(before, after):
    acme, cache = tenant(TENANTS), ParseCache()
    now = branches(acme, {"ops": BASE, **before}, cache)
    old = TenantLayouts.of(acme, now, cache)
    new = TenantLayouts.of(acme, {**now, **branches(acme, {"ops": BASE, **after}, cache)}, cache, before=old)
    there = reached(old.landed, new.landed)
    for project in PROJECTS:
        for branch in ("master", "stable"):
            for pipeline in {*old.landed.pipelines, *new.landed.pipelines}:
                graphs = [layout.freeze(pipeline, project, branch) for layout in (old.landed, new.landed)]
                assert project in there or not describe.difference(*graphs), (pipeline, project, branch)


APP = "- job: {name: unit, run: u.yaml, vars: {a: 1}}\n- project: {gate: {jobs: [unit]}}\n"


@pytest.mark.parametrize(
    ("project", "text", "there"),
    [
        ("app", "# moved\n" + APP, set()),
        ("app", APP.replace("a: 1", "a: 2"), {"git.acme/app"}),
        ("app", APP.replace("gate", "check"), {"git.acme/app"}),
        ("ops", BASE.replace("run: base.yaml", "run: other.yaml"), {"git.acme/app", "git.acme/lib"}),
        ("ops", BASE + "- job: {name: more, run: x}\n", set()),
    ],
)
def test_a_change_reaches_only_the_places_that_refer_to_it(project, text, there):
    made = layouts({"app": APP, "lib": "- job: {name: l, run: l}\n- project: {check: {jobs: [l]}}\n"})
    parsed = branches(made.tenant, {project: text}, made.cache)
    every = {**made.branches, **parsed}
    new = TenantLayouts.of(made.tenant, every, made.cache, before=made)
    assert reached(made.landed, new.landed) == there
    assert texts(made.tenant, {project: text})
