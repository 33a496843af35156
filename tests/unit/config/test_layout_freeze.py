"""Test the way from files to frozen jobs."""

from __future__ import annotations

from textwrap import dedent

from headgate.config.dynamic import TenantLayouts
from headgate.config.layout import Layout, branch_of, build_layout
from headgate.config.operator.model import Connection, Tenant
from headgate.config.parse import ParseCache
from headgate.testing.layouts import parse_tenants

TENANTS = """
- tenant:
    name: acme
    source:
      forge:
        config-projects: [ops]
        untrusted-projects: [app, lib]
"""
BASE = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {forge: [{event: change-approved}]}
    success: {forge: {land: true}}
- job: {name: base, parent: null, timeout: 600, run: base.yaml, pre-run: setup.yaml, vars: {a: 1, b: {c: 1}}}
"""
OPS, APP, LIB = "git.acme/ops", "git.acme/app", "git.acme/lib"


def tenant() -> Tenant:
    return parse_tenants(TENANTS, "tenants.yaml", {"forge": Connection("forge", "git.acme")})["acme"]


def parsed(cache: ParseCache, **texts: str) -> dict:
    where = {"ops": OPS, "app": APP, "lib": LIB}
    acme = tenant()
    result: dict = {}
    for name, text in texts.items():
        project = acme.find(where[name])
        assert project is not None
        result[project.project] = {"master": cache.parse(project, "master", {"zuul.yaml": dedent(text)})}
    return result


def layout(app: str, ops: str = BASE) -> Layout:
    return build_layout(tenant(), parsed(ParseCache(), ops=ops, app=app))


def test_a_child_inherits_from_its_parent_and_overrides_the_keys_that_it_sets() -> None:
    graph = layout("""
        - job: {name: unit, run: unit.yaml, pre-run: more.yaml, vars: {b: {d: 2}}}
        - project: {vars: {a: 9, z: 3}, gate: {jobs: [unit: {voting: false}]}}
    """).freeze("gate", APP, "master")
    assert graph.errors == ()
    (unit,) = graph.jobs
    assert (unit.timeout_s, unit.voting) == (600, False)
    assert [p.path for p in unit.run] == ["unit.yaml"]
    assert [p.path for p in unit.pre_run] == ["setup.yaml", "more.yaml"]
    assert unit.vars == {"a": 1, "b": {"c": 1, "d": 2}, "z": 3}
    assert unit.run[0].trusted is False and unit.pre_run[0].trusted is True


def test_file_matchers_leave_a_job_out_unless_another_needs_it() -> None:
    app = """
        - job: {name: build, run: b.yaml, files: ['^src/']}
        - job: {name: check, run: c.yaml, dependencies: build}
        - project: {gate: {jobs: [build, %s]}}
    """
    alone = layout(app % "noop").freeze("gate", APP, "master", files=("README",))
    assert [j.name for j in alone.jobs] == ["noop"]
    needed = layout(app % "check").freeze("gate", APP, "master", files=("README",))
    assert [j.name for j in needed.jobs] == ["build", "check"]


def test_a_circle_of_dependencies_blocks_the_item() -> None:
    graph = layout("""
        - job: {name: one, run: r.yaml, dependencies: two}
        - job: {name: two, run: r.yaml, dependencies: one}
        - project: {gate: {jobs: [one, two]}}
    """).freeze("gate", APP, "master")
    assert graph.jobs == ()
    assert "circle: one -> two -> one" in graph.errors[0].text


def test_a_final_job_has_no_children() -> None:
    graph = layout("""
        - job: {name: closed, run: r.yaml, final: true}
        - job: {name: child, parent: closed}
        - project: {gate: {jobs: [child]}}
    """).freeze("gate", APP, "master")
    assert "is final" in graph.errors[0].text


def test_an_unknown_key_is_reported_with_its_line_and_a_suggestion() -> None:
    (error,) = layout("- job:\n    name: x\n    tiemout: 3\n").errors
    assert (error.project, error.path, error.line) == (APP, "zuul.yaml", 3)
    assert "did you mean 'timeout'" in error.text
    assert "> 3 |     tiemout: 3" in error.snippet


def test_pipelines_stand_in_config_projects_only() -> None:
    (error,) = layout("- pipeline: {name: mine, manager: independent}").errors
    assert error.name == "Pipeline Forbidden"


def test_a_project_in_no_section_takes_no_part() -> None:
    made = layout("[]")
    assert made.freeze("gate", APP, "master").in_pipeline is False
    assert not made.takes_part("gate", APP, "master")
    assert made.pipelines["gate"].lands == ("forge",)
    assert made.queue_of(APP, "master", "gate") == APP


def test_a_per_branch_queue_names_its_branch() -> None:
    made = layout("""
        - queue: {name: q@home, type: per-branch}
        - queue: {name: whole}
        - project: {queue: q@home, gate: {jobs: [noop]}}
    """)
    for branch in ("master", "dev@2"):
        assert branch_of(made, made.queue_of(APP, branch, "gate")) == branch
    for other in ("whole", APP, "whole@master", "q", "q@home", ""):
        assert branch_of(made, other) is None, other


def test_a_proposal_is_used_from_untrusted_projects_and_only_checked_from_config_projects() -> None:
    cache = ParseCache()
    static = parsed(cache, ops=BASE, app="- project: {gate: {jobs: [noop]}}")
    proposed = {
        APP: {"master": {"zuul.yaml": "- project: {gate: {jobs: [base]}}"}},
        OPS: {"master": {"zuul.yaml": "- job: {name: base, parent: null, rnu: x}"}},
    }
    made, errors = TenantLayouts.of(tenant(), static, cache).proposed(proposed)
    assert [j.name for j in made.freeze("gate", APP, "master").jobs] == ["base"]
    assert [(e.project, e.line) for e in errors] == [(OPS, 1)]


def test_unchanged_content_is_parsed_once() -> None:
    cache = ParseCache()
    for _ in range(3):
        build_layout(tenant(), parsed(cache, ops=BASE, app="[]"))
    assert cache.parsed == 2
