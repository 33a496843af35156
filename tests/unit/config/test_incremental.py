"""Test that a layout derived from another by exchanging files equals one that is built from scratch."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.dynamic import TenantLayouts
from headgate.config.layout import Layout, build_layout
from headgate.config.parse import ParseCache
from tests.tiers import share

from .places import BASE, branches, tenant, texts

TENANTS = """
- tenant:
    name: acme
    use-nodepool: false
    source:
      forge:
        config-projects: [ops]
        untrusted-projects:
          - app: {shadow: lib, configure-projects: lib, include-provider-config: true}
          - lib
"""
STANZAS = (
    "- job: {name: unit, run: unit.yaml}",
    "- job: {name: unit, voting: false}",
    "- job: {name: unit, run: unit.yaml, final: true}",
    "- job: {name: lint, parent: unit, run: lint.yaml, nodeset: small}",
    "- job: {name: lint, dependencies: unit, secrets: key}",
    "- job: {name: lint, nodeset: {nodes: [{name: one, label: big}]}}",
    "- job: {name: docs, parent: lint, protected: true, abstract: true}",
    "- job: {name: base, parent: null}",
    "- job: {name: broken, rnu: x}",
    "- nodeset: {name: small, nodes: []}",
    "- nodeset: {name: small, alternatives: [large]}",
    "- nodeset: {name: large, nodes: [{name: a, label: big}]}",
    "- label: {name: big, image: debian, flavor: huge}",
    "- image: {name: debian, type: cloud}",
    "- secret: {name: key, data: {a: b}}",
    "- queue: {name: common, type: per-branch}",
    "- semaphore: {name: one, max: 2}",
    "- project-template: {name: usual, check: {jobs: [unit, lint]}}",
    "- project: {templates: [usual], gate: {jobs: [lint]}}",
    "- project: {queue: common, check: {jobs: [unit: {voting: true}, docs]}}",
    "- project: {name: lib, gate: {jobs: [unit]}}",
    "- pipeline: {name: mine, manager: serial, supercedes: gate}",
    "- pragma: {implied-branch-matchers: false}",
    "nonsense",
)
PLACES = ("ops", "app", "app@stable", "lib", "lib@stable")
a_file = st.lists(st.sampled_from(STANZAS), max_size=5).map("\n".join)
a_state = st.fixed_dictionaries({}, optional={place: a_file for place in PLACES})


def essence(layout: Layout) -> dict[str, Any]:
    """Return the comparable content of a layout, without hints, which name unrelated objects."""
    graphs = {
        (pipeline, project, branch): layout.freeze(pipeline, project, branch)
        for pipeline in layout.pipelines
        for project in layout.branches
        for branch in layout.branches[project]
    }
    singles = {kind: {n: (s.place, s.name) for n, s in found.items()} for kind, found in layout.singles.items()}
    return {
        "errors": [(e.name, e.project, e.branch, e.line, e.problem) for e in layout.errors],
        "jobs": {name: [s.place for s in found] for name, found in layout.jobs.items()},
        "projects": {name: [s.place for s in found] for name, found in layout.projects.items()},
        "templates": {name: [s.place for s in found] for name, found in layout.templates.items()},
        "pipelines": list(layout.pipelines.items()),
        "branches": {project: found for project, found in layout.branches.items() if found},
        "singles": singles,
        "graphs": {key: (g.jobs, [e.line for e in g.errors]) for key, g in graphs.items()},
    }


@settings(max_examples=share(30))
@given(st.lists(a_state, min_size=2, max_size=4))
def test_a_layout_that_follows_landings_equals_a_new_one(states: list[dict[str, str]]) -> None:
    acme, cache = tenant(TENANTS), ParseCache()
    followed: TenantLayouts | None = None
    for state in states:
        now = branches(acme, {"ops": BASE, **state}, cache)
        followed = TenantLayouts.of(acme, now, cache, before=followed)
        assert essence(followed.landed) == essence(build_layout(acme, now))


@settings(max_examples=share(30))
@given(a_state, a_state)
def test_a_proposed_layout_equals_a_new_one(landed: dict[str, str], proposed: dict[str, str]) -> None:
    acme, cache = tenant(TENANTS), ParseCache()
    untrusted = {place: text for place, text in proposed.items() if place != "ops"}
    found = TenantLayouts.of(acme, branches(acme, {"ops": BASE, **landed}, cache), cache).layout(texts(acme, untrusted))
    anew = build_layout(acme, branches(acme, {"ops": BASE, **landed, **untrusted}, cache))
    mine, other = essence(found), essence(anew)
    for one in (mine, other):
        one["singles"] = {k: v for k, v in one["singles"].items() if k not in ("semaphore", "section", "provider")}
    assert mine == other
