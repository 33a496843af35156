"""Test what a proposed change does to the configuration that it is tested with, and which errors its report has."""

from __future__ import annotations

from headgate.config.dynamic import TenantLayouts

from .places import TENANTS, layouts, texts

APP = "git.acme/app"


def proposed(made: TenantLayouts, files: dict, own: str = "app", ahead: dict | None = None):
    name, _, branch = own.partition("@")
    project = made.tenant.find(name)
    assert project is not None
    before = texts(made.tenant, ahead) if ahead else None
    return made.proposed(texts(made.tenant, {**(ahead or {}), **files}), (project.project, branch or "master"), before)


def rows(errors) -> list[str]:
    return [f"{e.severity} {e.project.rpartition('/')[2]}@{e.branch}:{e.line} {e.text}" for e in errors]


def names(layout, project: str = "app", pipeline: str = "gate") -> list[str]:
    return [job.name for job in layout.freeze(pipeline, f"git.acme/{project}", "master").jobs]


def test_a_change_of_an_untrusted_project_is_tested_with_the_configuration_that_it_proposes() -> None:
    made = layouts({"app": "- project: {gate: {jobs: [noop]}}"})
    layout, errors = proposed(made, {"app": "- job: {name: new, run: r.yaml}\n- project: {gate: {jobs: [new]}}"})
    assert (names(layout), errors) == (["new"], ())
    assert names(made.landed) == ["noop"]


def test_a_change_of_a_config_project_is_checked_and_not_used() -> None:
    made = layouts({"app": "- project: {gate: {jobs: [noop]}}"})
    layout, errors = proposed(made, {"ops": "- job: {name: base, parent: null, rnu: x}"}, "ops")
    assert layout is made.landed
    assert rows(errors)[0] == "error ops@master:1 a job has no key 'rnu'; did you mean 'run'?"


def test_files_that_a_change_deletes_no_longer_count() -> None:
    made = layouts({"app": {"zuul.d/a.yaml": "- job: {name: a}", "zuul.d/b.yaml": "- job: {name: b}"}})
    layout, _ = proposed(made, {"app": {"zuul.d/a.yaml": "- job: {name: a}"}})
    assert "b" not in layout.jobs and "a" in layout.jobs


def test_errors_that_the_tenant_already_has_are_not_blamed_on_a_proposal() -> None:
    made = layouts({"lib": "- job: {name: old, rnu: x}", "app": "[]"})
    _, errors = proposed(made, {"app": "- job: {name: fine, run: r.yaml}"})
    assert errors == ()


def test_but_all_errors_of_the_change_s_own_project_and_branch_are_reported() -> None:
    wrong = "- job: {name: old, rnu: x}\n"
    made = layouts({"app": wrong, "app@stable": wrong})
    _, errors = proposed(made, {"app": wrong + "- job: {name: fine, run: r.yaml}"})
    assert rows(errors) == ["error app@master:1 a job has no key 'rnu'; did you mean 'run'?"]


def test_errors_that_a_change_causes_elsewhere_are_reported() -> None:
    made = layouts({"lib": "- job: {name: shared, run: r.yaml}", "app": "- project: {gate: {jobs: [shared]}}"})
    _, errors = proposed(made, {"lib": "[]"}, "lib")
    assert rows(errors) == ["error app@master:1 the job 'shared' is not defined; expected base"]


def test_errors_of_the_chain_ahead_are_reported_there() -> None:
    made = layouts({"lib": "- job: {name: shared, run: r.yaml}", "app": "- project: {gate: {jobs: [shared]}}"})
    _, errors = proposed(made, {"ops": "[]"}, "ops", ahead={"lib": "[]"})
    assert not any("'shared'" in line for line in rows(errors))
    _, again = proposed(made, {"app": "- project: {gate: {jobs: [shared, noop]}}"}, "app", ahead={"lib": "[]"})
    assert [line for line in rows(again) if "'shared'" in line]


def test_a_warning_stops_nothing() -> None:
    made = layouts({"app": "[]"})
    files = {".zuul.yaml": "[]", "zuul.yaml": "- job: {name: a, run: r.yaml, files: ['^(?!x)']}"}
    _, errors = proposed(made, {"app": files})
    assert {(e.severity, e.name) for e in errors} == {
        ("warning", "Multiple Project Configurations"),
        ("warning", "Regex Deprecation"),
    }


def test_errors_say_that_a_job_of_a_change_ahead_has_not_landed_yet() -> None:
    made = layouts({"app": "[]"})
    ahead = {"ops": "- pipeline: {name: gate, manager: dependent}\n- job: {name: fresh, parent: null, run: r.yaml}"}
    _, errors = proposed(made, {"app": "- project: {gate: {jobs: [fresh]}}"}, "app", ahead)
    (error,) = errors
    assert "the job 'fresh' is not defined" in error.text and "has not landed yet" in error.text


def test_two_proposals_that_are_valid_together_are_accepted() -> None:
    made = layouts({"app": "[]"})
    base = "- pipeline: {name: gate, manager: dependent}\n- job: {name: base, parent: null, run: r.yaml}\n"
    _, errors = proposed(made, {"app": "- project: {gate: {jobs: [base]}}"}, "app", {"ops": base})
    assert errors == ()


def test_semaphores_of_a_proposal_wait_until_it_lands() -> None:
    made = layouts({"app": "- semaphore: {name: s, max: 2}"})
    layout, errors = proposed(made, {"app": "- semaphore: {name: s, max: 9}\n- semaphore: {name: t, max: 3}"})
    assert (dict(layout.semaphores), errors) == ({"s": 2}, ())
    _, errors = proposed(made, {"app": "- semaphore: {name: s, max: many}"})
    assert rows(errors) == ["error app@master:1 max of a semaphore must be a whole number of at least 0, not 'many'"]


def test_pipelines_do_not_change_before_they_land() -> None:
    made = layouts({"app": "[]"})
    ahead = {"ops": "- pipeline: {name: fresh, manager: serial}"}
    layout, _ = proposed(made, {"app": "- project: {gate: {jobs: [noop]}}"}, "app", ahead)
    assert list(layout.pipelines) == ["gate", "check"]


def test_a_branch_whose_configuration_is_not_read_proposes_none() -> None:
    made = layouts(
        {"app": "- project: {gate: {jobs: [noop]}}"},
        TENANTS.replace("[app, lib]", "[app: {exclude-branches: wip, always-dynamic-branches: try/.*}, lib]"),
    )
    assert made.proposed(texts(made.tenant, {"app@wip": "nonsense"}))[1] == ()
    _, errors = proposed(made, {"app@try/1": "- job: {name: a, rnu: x}"}, "app@try/1")
    assert len(errors) == 1


def test_an_always_dynamic_branch_has_jobs_of_its_own() -> None:
    made = layouts(
        {"app": "- job: {name: unit, run: r.yaml, vars: {at: master}}\n- project: {gate: {jobs: [unit]}}"},
        TENANTS.replace("[app, lib]", "[app: {always-dynamic-branches: try/.*}, lib]"),
    )
    text = "- job: {name: unit, run: r.yaml, vars: {at: try}}\n- project: {gate: {jobs: [unit]}}"
    layout, errors = proposed(made, {"app@try/1": text}, "app@try/1")
    (unit,) = layout.freeze("gate", APP, "try/1").jobs
    assert (unit.vars, errors) == ({"at": "try"}, ())


def test_a_job_that_a_change_alters_runs_whatever_files_it_is_for() -> None:
    text = "- job: {name: unit, run: r.yaml, files: ^src/, timeout: %s}\n- project: {gate: {jobs: [unit]}}"
    made = layouts({"app": text % 1})
    same, _ = proposed(made, {"app": text % 1 + "\n# more"})
    other, _ = proposed(made, {"app": text % 2})
    touched = ("zuul.yaml",)
    assert [j.name for j in same.freeze("gate", APP, "master", "", touched, made.landed).jobs] == []
    assert [j.name for j in other.freeze("gate", APP, "master", "", touched, made.landed).jobs] == ["unit"]
    quiet, _ = proposed(made, {"app": (text % 2).replace("timeout", "match-on-config-updates: false, timeout")})
    assert [j.name for j in quiet.freeze("gate", APP, "master", "", touched, made.landed).jobs] == []


def test_the_same_proposal_is_linked_once() -> None:
    made = layouts({"app": "[]"})
    one, two = (proposed(made, {"app": "- job: {name: a}"})[0] for _ in range(2))
    assert one is two
