"""Test that random tenants are checked, compared and traced to causes without an exception, and that the reports are
true."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.check.findings import GraphFinding, causes, frozen, graphs, layout_findings, left_out, stanzas_in
from headgate.config.check.uses import uses
from headgate.config.dynamic import TenantLayouts
from headgate.config.parse import ParseCache
from tests.tiers import share

from .places import BASE, branches, tenant, texts
from .test_incremental import STANZAS, TENANTS, essence

MORE = (
    *STANZAS,
    "- job: {name: unit, include-vars: [{name: v.yaml, project: lib}], run: u.yaml}",
    "- job: {name: lint, parent: docs, include-vars: v.yaml}",
    "- secret: {name: key, data: {token: !encrypted/pkcs1-oaep [YWJj, ZGVm]}}",
    "- job: {name: deploy, run: d.yaml, secrets: [{name: token, secret: key, pass-to-parent: true}]}",
    "- job: {name: deploy, parent: unit, required-projects: [lib, away], override-checkout: stable}",
    "- project: {check: {jobs: [deploy, unit: {dependencies: deploy}]}, chek: {jobs: [unit]}}",
    "- project: {name: ^.*, vars: {a: {b: 1}}, gate: {jobs: [deploy]}}",
    "job: {name: undashed}",
    "- job: {name: circle, parent: docs}\n- job: {name: docs, parent: circle}",
)
PLACES = ("ops", "app", "app@stable", "lib", "lib@stable")
a_file = st.lists(st.sampled_from(MORE), max_size=6).map("\n".join)
a_state = st.fixed_dictionaries({}, optional={place: a_file for place in PLACES})


def found_in(layout):
    places = list(graphs(layout))
    return [
        *map(GraphFinding, layout.errors),
        *layout_findings(layout, frozenset(layout.pipelines)),
        *(finding for place in places for finding in frozen(layout, place)),
    ]


@settings(max_examples=share(60))
@given(a_state, a_state, a_state)
def test_any_tenant_with_a_chain_of_proposals(landed, first, second):
    acme, cache = tenant(TENANTS), ParseCache()
    now = branches(acme, {"ops": BASE, **landed}, cache)
    made = TenantLayouts.of(acme, now, cache)
    ahead = texts(acme, first)
    chain = texts(acme, {**first, **second})
    layout, errors = made.proposed(chain, ahead=ahead)
    assert isinstance(errors, tuple)
    for graph in graphs(layout):
        layout.freeze(graph.pipeline, graph.project, graph.branch, files=("zuul.yaml",), ahead=made.landed)
    files = {"ops": BASE, **landed, **{p: t for p, t in {**first, **second}.items() if p != "ops"}}
    anew = TenantLayouts.of(acme, branches(acme, files, cache), cache).landed
    essences = essence(layout), essence(anew)
    for one in essences:
        one["singles"] = {}
    assert essences[0] == essences[1]


@settings(max_examples=share(60))
@given(a_state)
def test_every_error_has_one_cause_and_none_is_lost(state):
    acme, cache = tenant(TENANTS), ParseCache()
    layout = TenantLayouts.of(acme, branches(acme, {"ops": BASE, **state}, cache), cache).landed
    found = found_in(layout)
    groups = causes(found, left_out(layout))
    places = {(f.error.project, f.error.branch, f.error.path, f.error.line) for f in found}
    assert {(e.project, e.branch, e.path, e.line) for c in groups for e in c.errors} == places
    assert {g for c in groups for g in c.graphs} == {g for f in found if f.error.severity == "error" for g in f.graphs}
    for job in layout.jobs:
        uses(layout, job)


@given(st.text(alphabet="- jobnames:{},[]\n'\"", max_size=120))
def test_any_text_is_looked_through(text):
    for _, name, first, last in stanzas_in(text):
        assert name and 0 < first <= last
