"""Test `headgate explain uses`: what inherits from a job, runs it or needs it, and what would break without it."""

from __future__ import annotations

from click import unstyle

APP = """
- job: {name: unit, run: unit.yaml}
- job: {name: deep, parent: unit, run: d.yaml}
- job: {name: deeper, parent: deep}
- job: {name: after, run: a.yaml, dependencies: [unit]}
- job: {name: alone, run: x.yaml}
- project-template: {name: usual, check: {jobs: [unit]}}
- project: {templates: [usual], gate: {jobs: [deeper, unit: {voting: false}, after]}}
"""


def test_all_users_of_a_job_are_listed(offline):
    found = offline(app=APP).json("explain", "uses", "unit")["acme"]
    assert [(c["job"], c["generation"], c["line"]) for c in found["children"]] == [("deep", 1, 3), ("deeper", 2, 4)]
    assert [(a["pipeline"], a["kind"], a["line"]) for a in found["attached"]] == [
        ("gate", "project", 8),
        ("check", "project-template", 7),
    ]
    assert [n["job"] for n in found["needed_by"]] == ["after"] and found["projects"] == ["hub/app"]


def test_the_predicted_errors_are_those_that_the_removal_causes(offline):
    """Return what `check` reports after the job is really removed."""
    before = offline(app=APP).json("explain", "uses", "unit")["acme"]["without"]
    gone = offline(app=APP.replace("- job: {name: unit, run: unit.yaml}", "")).json("check")["acme"]["errors"]
    expected = {(e["message"].partition(";")[0], e["line"]) for e in before if "not run" not in e["message"]}
    assert expected == {(e["message"].partition(";")[0], e["line"]) for e in gone}
    assert {graph["pipeline"] for e in before for graph in e["ends"]} == {"gate"}


def test_a_job_that_nobody_uses_breaks_nothing(offline):
    made = offline(app=APP)
    assert "without this job, there would be no errors" in made.run("explain", "uses", "alone").stdout
    shown = unstyle(made.run("explain", "uses", "unit").stdout)
    assert "inherited by:\n  deep      hub/app master zuul.yaml:3\n    deeper  hub/app master zuul.yaml:4\n" in shown
    assert "check of template usual" in shown and "job graphs would not run" in shown


def test_the_base_of_all_is_used_by_all(offline):
    found = offline(app=APP).json("explain", "uses", "base")["acme"]
    assert {c["job"] for c in found["children"]} == {"unit", "deep", "deeper", "after", "alone"}


def test_circular_parents_do_not_cause_an_endless_loop(offline):
    app = "- job: {name: a, parent: b, run: a}\n- job: {name: b, parent: a}\n- project: {gate: {jobs: [a]}}\n"
    found = offline(app=app).json("explain", "uses", "a")["acme"]
    assert [c["job"] for c in found["children"]] == ["b"]


def test_an_undefined_job_is_a_usage_error(offline):
    done = offline(app=APP).run("explain", "uses", "untt")
    assert done.exit_code == 2 and "did you mean 'unit'?" in done.stderr


def test_one_attribute_can_be_selected(offline):
    app = APP.replace("run: unit.yaml", "run: unit.yaml, vars: {a: 1, b: {c: 2}}, timeout: 60")
    made = offline(app=app)
    assert list(made.json("explain", "job", "unit", "--attribute", "timeout")["attributes"]) == ["timeout"]
    shown = made.json("explain", "job", "unit", "--attribute", "vars")["attributes"]
    assert list(shown) == ["variables.a", "variables.b.c"]
    assert list(made.json("explain", "job", "unit", "--attribute", "vars.b")["attributes"]) == ["variables.b.c"]
    done = made.run("explain", "job", "unit", "--attribute", "timeot")
    assert done.exit_code == 2 and "did you mean 'timeout'?" in done.stderr


def test_other_places_of_a_job_are_listed_when_it_does_not_run_here(offline):
    done = offline(app=APP).run("explain", "job", "unit", "--project", "lib")
    assert (
        done.exit_code == 2 and "lib does not run the job 'unit'; it runs in check of app, gate of app" in done.stderr
    )
