"""`headgate check` of a tenant file and a directory of repositories, without a server."""

from __future__ import annotations

from itertools import pairwise
from textwrap import dedent

from msgspec.structs import replace

from headgate.base.hints import with_hint
from headgate.cli.offline.report import as_text
from headgate.cli.terminal.say import unstyled
from headgate.config.model import ConfigError

from .conftest import APP, OPS, TENANTS

WRONG = """
- job:
    name: unit
    run: unit.yaml
    nodeset: smal
- project:
    gate:
      jobs: [unit]
"""
COUNTS = {"projects": 3, "jobs": 2, "templates": 0, "pipelines": 2, "nodesets": 1, "errors": 0}


def test_a_good_tenant_is_counted(offline):
    assert offline().json("check") == {"acme": {"errors": [], "counts": COUNTS}}
    assert offline().run("check").exit_code == 0


def test_an_error_has_its_place_and_a_suggestion(offline):
    broken = offline(app=WRONG)
    error = {
        "severity": "error",
        "name": "Nodeset Not Found",
        "project": "hub/app",
        "branch": "master",
        "path": "zuul.yaml",
        "line": 5,
        "column": 14,
        "end_line": 5,
        "end_column": 18,
        "message": "the nodeset 'smal' is not defined; did you mean 'small'?",
        "cause": None,
        "ends": [{"pipeline": "gate", "project": "hub/app", "branch": "master"}],
    }
    assert broken.json("check") == {"acme": {"errors": [error], "counts": {**COUNTS, "errors": 1}}}
    assert broken.run("check").exit_code == 1


def test_errors_are_printed_in_the_form_of_a_compiler(offline):
    assert offline(app=WRONG).run("check").stdout == dedent("""\
        error[Nodeset Not Found]: the nodeset 'smal' is not defined
         --> hub/app master zuul.yaml:5
        1 | 
        2 | - job:
        3 |     name: unit
        4 |     run: unit.yaml
        5 |     nodeset: smal
          |              ^^^^
        6 | - project:
        7 |     gate:
        8 |       jobs: [unit]
          = help: did you mean 'small'?
          = so: no jobs run in gate of hub/app@master

        tenant acme: 3 projects, 2 jobs, 0 templates, 2 pipelines, 1 nodeset: 1 error
        """)


def test_the_same_error_on_several_branches_is_shown_once():
    one = ConfigError("Template Not Found", "there is no project-template 'x'", "hub/app", "master", "zuul.yaml", 4)
    (block,) = as_text([one, replace(one, branch="stable"), replace(one, branch="old")])
    assert unstyled(block).endswith("hub/app master zuul.yaml:4\n  = the same on stable, old")


def test_only_the_hint_of_an_error_has_a_line_of_its_own():
    odd = "there is no job 'x; did you mean a crime?'"
    (plain,) = as_text([ConfigError("Unknown", odd, "hub/app", "master", "zuul.yaml", 4)])
    assert odd in unstyled(plain) and "help:" not in plain
    text = with_hint(odd, "did you mean 'a', 'b' or 'c'?")
    (block,) = as_text([ConfigError("Unknown", text, "hub/app", "master", hint="did you mean 'a', 'b' or 'c'?")])
    assert unstyled(block).startswith(f"error[Unknown]: {odd}\n")
    assert unstyled(block).endswith("= help: did you mean 'a', 'b' or 'c'?")


def test_a_missing_repository_is_an_error_of_its_project_and_the_others_are_read(offline):
    made = offline()
    (made.repos / "hub/lib/zuul.yaml").unlink()
    (made.repos / "hub/lib").rmdir()
    (error,) = made.json("check")["acme"]["errors"]
    assert (error["name"], error["project"], error["branch"]) == ("Repository Not Found", "hub/lib", "")
    assert made.json("check")["acme"]["counts"]["jobs"] == 2


def test_too_large_files_are_reported_as_by_the_gate(offline):
    made = offline()
    aliases = "".join(f"    {b}: &{b} [{', '.join([f'*{a}'] * 20)}]\n" for a, b in pairwise("abcdefg"))
    made.write("hub/lib", {"zuul.yaml": f"- job:\n    name: x\n    run: x\n    a: &a [1]\n{aliases}"})
    (error,) = (e for e in made.json("check")["acme"]["errors"] if e["project"] == "hub/lib")
    assert "more than 500000 values" in error["message"] and error["path"] == "zuul.yaml" and error["line"] > 0


def test_warnings_alone_are_no_failure(offline):
    made = offline()
    made.write("hub/app", {".zuul.yaml": APP_AGAIN})
    found = made.json("check")["acme"]
    assert [(e["severity"], e["name"]) for e in found["errors"]] == [("warning", "Multiple Project Configurations")]
    assert made.run("check").exit_code == 0


APP_AGAIN = "- job: {name: other, run: other.yaml}\n"


def test_a_broken_tenant_file_is_reported_with_its_line(offline):
    made = offline(tenants="- tenant:\n    name: acme\n    sauce: {}\n")
    (error,) = made.json("check")[""]["errors"]
    assert (error["line"], error["message"]) == (3, "a tenant has no key 'sauce'; did you mean 'source'?")
    assert made.run("check").exit_code == 1


def test_unknown_tenants_and_missing_files_make_check_exit_with_2(offline):
    made = offline()
    assert made.run("check", "--tenant", "other").exit_code == 2
    assert made.run("check", "--with", "nothing").exit_code == 2
    (made.root / "tenants.yaml").unlink()
    assert made.run("check").exit_code == 2


def test_a_pipeline_that_only_the_work_tree_has_is_known(offline):
    made = offline()
    tree = made.write(
        "../tree", {"zuul.yaml": f"{OPS}- pipeline: {{name: late, manager: independent, trigger: {{}}}}\n"}
    )
    made.write("../app", {"zuul.yaml": APP.replace("gate:", "late:")})
    trees = ("--with", f"ops={tree}", "--with", f"app={made.root / 'app'}")
    assert made.json("check", *trees)["acme"]["errors"] == []
    (error,) = made.json("check", *trees[2:])["acme"]["errors"]
    assert error["name"] == "Pipeline Not Found"


def test_connections_of_any_ini_file_give_the_host_names(offline):
    made = offline()
    config = made.root / "zuul.conf"
    config.write_text("[statsd]\nserver=x\n[connection hub]\nserver=review.example.org\n")
    (made.repos / "hub").rename(made.repos / "review.example.org")
    found = made.json("check", "--config", str(config))["acme"]
    assert found["counts"] == COUNTS


def test_the_driver_of_a_connection_decides_which_keys_a_pipeline_may_use(offline):
    made = offline()
    config = made.root / "zuul.conf"
    config.write_text("[connection hub]\ndriver=gerrit\nserver=review.example.org\n")
    (made.repos / "hub").rename(made.repos / "review.example.org")
    errors = made.json("check", "--config", str(config))["acme"]["errors"]
    causes = [e for e in errors if e["cause"] is None]
    words = [e for e in causes if e["name"] == "Unknown Word"]
    assert sorted((e["path"], e["line"]) for e in words) == [("zuul.yaml", 5), ("zuul.yaml", 10)]
    assert causes == words, "and that is all there is to say"
    assert "event of a trigger of hub: 'change-proposed' is not known" in words[0]["message"]
    assert {e["severity"] for e in causes} == {"warning"}


GERRIT = """
- pipeline:
    name: check
    manager: independent
    trigger: {hub: [{event: patchset-created}, {event: pull_request, action: opened}]}
    success: {hub: {Verified: 1}, sql: {}}
    failure: {hub: {Verified: -1}}
- job: {name: base, parent: null, abstract: true}
"""


def test_a_connection_of_which_only_the_name_is_known_may_be_of_any_kind(offline):
    (idle,) = offline(ops=GERRIT, app="").json("check")["acme"]["errors"]
    assert "the use of the connection 'sql' in the pipeline check has no effect" in idle["message"]
    error, _ = offline(ops=GERRIT.replace("patchset-created", "patchset"), app="").json("check")["acme"]["errors"]
    assert error["severity"] == "warning"
    assert error["message"] == "event of a trigger of hub has a value that no driver accepts: 'patchset'"


def test_one_tenant_that_cannot_be_loaded_leaves_the_others(offline):
    made = offline(tenants=TENANTS + "- tenant: {name: other, admin-rules: [nobody]}\n")
    found = made.json("check")
    assert found["acme"] == {"errors": [], "counts": COUNTS}
    assert [(e["name"], e["line"]) for e in found["other"]["errors"]] == [("AuthZ Rule Not Found", 8)]
    assert "tenant other: cannot be loaded" in made.run("check").stdout
    assert made.run("check").exit_code == 1


def test_a_name_missing_because_of_its_own_error_is_reported_beneath_it(offline):
    broken = offline(app=WRONG.replace("run: unit.yaml", "runs: unit.yaml"))
    shown = broken.run("check").stdout
    assert "error[Unknown]: a job has no key 'runs'\n --> hub/app master zuul.yaml:4\n" in shown
    assert "= so: hub/app master zuul.yaml:8: the job 'unit' is not defined\n" in shown
    assert shown.count("error[") == 1 and shown.endswith("2 errors, of 1 cause\n")
    assert [e["cause"] for e in broken.json("check")["acme"]["errors"]] == [None, 0]
    missing = broken.run("explain", "job", "unit")
    assert (
        "no job 'unit'; its definition is ignored because of the error at hub/app master zuul.yaml:4" in missing.output
    )


def test_other_commands_say_that_there_are_errors(offline):
    done = offline(app=WRONG).run("freeze", "--all")
    assert "note: the configuration of tenant acme has 1 error: see `headgate check`" in done.stderr
