"""`headgate freeze`: graphs as JSON and as a tree, and what a proposed change would change of them."""

from __future__ import annotations

from textwrap import dedent

APP = """
- job:
    name: unit
    run: unit.yaml
    nodeset: small
    files: [^src/]
    vars: {mirror: {retries: 5}, tox: py311}
- job:
    name: deploy
    parent: unit
    timeout: 300
    dependencies: [unit, {name: docs, soft: true}]
    run: deploy.yaml
- job: {name: docs, run: docs.yaml, branches: stable}
- project:
    gate:
      fail-fast: true
      jobs: [unit, {deploy: {voting: false, semaphores: [production]}}, docs]
"""
KEYS = (
    "name parent_chain voting dependencies nodeset timeout pre_timeout post_timeout attempts semaphores "
    "required_projects variables extra_variables host_variables group_variables pre_run run post_run cleanup_run "
    "tags provides requires files_decision override_checkout ansible_version workspace_scheme"
)


def test_a_graph_as_json(offline):
    (graph,) = offline(app=APP).json("freeze", "--project", "app", "--pipeline", "gate")
    unit, deploy = graph.pop("jobs")
    assert graph == {
        "tenant": "acme", "pipeline": "gate", "project": "hub/app", "branch": "master", "fail_fast": True,
    }  # fmt: skip
    assert set(KEYS.split()) <= set(unit)
    assert (unit["name"], unit["parent_chain"], unit["voting"]) == ("unit", ["base"], True)
    assert unit["nodeset"] == {
        "name": "small",
        "nodes": [{"name": "controller", "label": "debian"}],
        "groups": [],
        "alternatives": [],
    }
    assert [(b["project"], b["path"], b["trusted"], b["nesting_level"]) for b in (*unit["pre_run"], *unit["run"])] == [
        ("hub/ops", "pre.yaml", True, 0),
        ("hub/app", "unit.yaml", False, 1),
    ]
    assert (deploy["parent_chain"], deploy["timeout"], deploy["voting"]) == (["unit", "base"], 300, False)
    assert deploy["dependencies"] == [{"name": "unit", "soft": False}, {"name": "docs", "soft": True}]
    assert deploy["semaphores"] == [{"name": "production", "resources_first": False}]
    assert deploy["variables"] == {"mirror": {"retries": 5}, "tox": "py311"}


def test_all_is_every_project_that_takes_part_in_a_pipeline(offline):
    found = offline(app=APP, lib="- project: {check: {jobs: [noop]}, gate: {jobs: [noop]}}\n").json("freeze", "--all")
    graphs = [(g["project"], g["pipeline"], [j["name"] for j in g["jobs"]]) for g in found]
    assert graphs == [
        ("hub/app", "gate", ["unit", "deploy"]),
        ("hub/lib", "check", ["noop"]),
        ("hub/lib", "gate", ["noop"]),
    ]


def test_a_graph_that_cannot_be_frozen_is_an_error_with_its_name(offline):
    made = offline(app=APP.replace("nodeset: small", "nodeset: smal"))
    (graph,) = made.json("freeze", "--all")
    message = "job unit: the nodeset 'smal' is not defined; did you mean 'small'?"
    assert graph["jobs"][0] == {"error": {"name": "Nodeset Not Found", "message": message}}
    assert made.run("freeze", "--all").exit_code == 1


def test_files_decide_and_the_reason_is_printed(offline):
    made = offline(app=APP.replace("dependencies", "files: [^deploy/]\n    dependencies"))
    ask = ("freeze", "--project", "app", "--pipeline", "gate", "--file", "deploy/prod.yaml")
    unit, deploy = made.json(*ask)[0]["jobs"]
    assert unit["files_decision"] == {
        "matches": False,
        "why": "no file matches ^src/",
        "files": ["^src/"],
        "irrelevant_files": [],
    }
    assert deploy["files_decision"]["why"] == "deploy/prod.yaml matches ^deploy/"
    shown = made.run(*ask).stdout
    assert "needed, although no file matches ^src/" in shown
    assert "none of its definitions is for branch master: hub/app master zuul.yaml:15" in shown


def test_a_proposal_is_compared_attribute_by_attribute(offline):
    made = offline(app=APP, lib="- project: {gate: {jobs: [unit]}}\n")
    proposed = APP.replace("py311", "py312").replace(", {name: docs, soft: true}", "").replace(", branches: stable", "")
    file = made.root / "overlay/hub/app/zuul.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(proposed)
    shown = made.run("freeze", "--diff", str(made.root / "overlay"))
    assert shown.exit_code == 0
    assert shown.stdout == dedent("""\
        + new job docs  in gate of app@master
            parents  base
            run      app/docs.yaml@master

        ~ unit  in gate of app@master, lib@master
            vars.tox  py311 → py312

        ~ deploy  in gate of app@master
            dependencies  - docs (soft)
            vars.tox      py311 → py312

        2 job graphs change: jobs 1 new, 3 changed
        """)


def test_an_error_in_a_proposal_is_reported_with_its_place(offline):
    made = offline(app=APP)
    file = made.root / "overlay/hub/app/zuul.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(APP.replace("parent: unit", "parent: unti"))
    shown = made.run("freeze", "--diff", str(made.root / "overlay"))
    assert shown.exit_code == 1
    assert "error[Unknown Configuration Error]: the parent job 'unti' is not defined" in shown.stdout
    assert "help: did you mean 'unit'?" in shown.stdout
    assert "- removed job deploy  in gate of app@master" in shown.stdout
    found = made.json("freeze", "--diff", str(made.root / "overlay"))["acme"]
    assert [e["line"] for e in found["errors"]["new"]] == [10]
    assert [(g["project"], g["gone"]) for g in found["graphs"]] == [("hub/app", ["deploy"])]


def test_texts_and_nodesets_are_printed_in_one_line(offline):
    made = offline(app=APP.replace("run: unit.yaml", "run: unit.yaml\n    description: |\n      old\n      words"))
    file = made.root / "overlay/app/zuul.yaml"
    file.parent.mkdir(parents=True)
    more = "description: new\n    nodeset: {alternatives: [small, {nodes: [{name: [a, b], label: large}]}]}"
    file.write_text(APP.replace("nodeset: small", more))
    shown = made.run("freeze", "--diff", str(made.root / "overlay")).stdout
    assert "description           old words → new\n    nodeset.alternatives  + a/b (large)\n" in shown
    (made.repos / "hub/app/zuul.yaml").write_text(file.read_text())
    assert "nodes      small: controller (debian) or a/b (large)" in made.run("freeze", "--all").stdout


def test_a_different_order_is_reported(offline):
    made = offline(app=APP)
    file = made.root / "overlay/app/zuul.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        APP.replace("[unit, {deploy:", "[{deploy:").replace("[production]}}, docs]", "[production]}}, unit, docs]")
    )
    shown = made.run("freeze", "--diff", str(made.root / "overlay")).stdout
    assert "~ the order of the jobs  in gate of app@master\n    now  deploy, unit\n" in shown


def test_nothing_that_changes_a_graph_is_no_change(offline):
    made = offline(app=APP)
    file = made.root / "overlay/app/zuul.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"# moved by a line\n{APP}")
    assert made.run("freeze", "--diff", str(made.root / "overlay")).stdout == "no job graph changes\n"


def test_unknown_pipelines_and_projects_make_freeze_exit_with_2(offline):
    made = offline()
    assert made.run("freeze").exit_code == 2
    assert "tenant acme has no pipeline 'gat'; did you mean 'gate'?" in made.run("freeze", "--pipeline", "gat").output
    assert made.run("freeze", "--project", "ap").exit_code == 2
