"""Test that `headgate check` freezes everything: errors that only freezing shows, one mistake once, new errors of a
proposal, SARIF."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import jsonschema_rs
import pygit2
import pytest

from .conftest import APP, OPS, TENANTS

SARIF = jsonschema_rs.Draft4Validator(json.loads(Path(__file__).with_name("sarif-2.1.0.json").read_text()))


def causes(made, *words):
    """(name, first place, consequences) of every cause."""
    errors = made.json("check", *words)["acme"]["errors"]
    firsts = [n for n, e in enumerate(errors) if e["cause"] is None]
    return [
        (errors[n]["name"], f"{errors[n]['project']}:{errors[n]['line']}", sum(e["cause"] == n for e in errors))
        for n in firsts
    ]


def messages(made):
    return [error["message"] for error in made.json("check")["acme"]["errors"]]


ONLY_FROZEN = {
    "jobs depend on each other in a circle: a -> b -> a": """
        - job: {name: a, run: a.yaml, dependencies: b}
        - job: {name: b, run: b.yaml, dependencies: a}
        - project: {gate: {jobs: [a, b]}}
        """,
    "job a has nothing to run": """
        - job: {name: a}
        - project: {gate: {jobs: [a]}}
        """,
    "job base is abstract": "- project: {gate: {jobs: [base]}}",
    "may not change run": """
        - job: {name: a, run: a.yaml}
        - job: {name: a, final: true}
        - job: {name: a, run: b.yaml}
        - project: {gate: {jobs: [a]}}
        """,
    "there is no pipeline 'chek' in any tenant: these jobs never run; did you mean 'check'?": """
        - job: {name: a, run: a.yaml}
        - project: {chek: {jobs: [a]}}
        """,
    "jobs inherit in a circle: a -> b -> a": """
        - job: {name: a, parent: b, run: a.yaml}
        - job: {name: b, parent: a}
        """,
    "the queue 'integrated' is not declared: all branches share it": """
        - job: {name: a, run: a.yaml}
        - project: {queue: integrated, gate: {jobs: [a]}}
        """,
    "the semaphore 'one' is not declared: it admits one build at a time": """
        - job: {name: a, run: [{name: a.yaml, semaphores: one}]}
        - project: {gate: {jobs: [a]}}
        """,
}


@pytest.mark.parametrize("message", ONLY_FROZEN)
def test_errors_that_appear_only_when_jobs_are_frozen_are_found(offline, message):
    """Only that is different."""
    found = messages(offline(app=ONLY_FROZEN[message]))
    assert len(found) == 1 and message in found[0]


def test_a_job_that_nobody_attaches_is_put_together_too(offline):
    found = offline(app="- job: {name: a, run: a.yaml, final: true}\n- job: {name: a, run: b.yaml}\n")
    assert [text.partition(";")[0] for text in messages(found)] == ["job a is final (hub/app master zuul.yaml:1)"]


def test_every_branch_is_frozen(offline):
    made = offline(app="- job: {name: a, run: a.yaml}\n- project: {gate: {jobs: [a]}}\n")
    place = made.repos / "hub/app"
    repository = pygit2.init_repository(str(place), initial_head="master")
    commit(repository, "zuul.yaml", "- job: {name: c}\n- project: {gate: {jobs: [c]}}\n", "refs/heads/stable")
    (error,) = made.json("check")["acme"]["errors"]
    assert error["message"].startswith("job c has nothing to run")
    assert error["ends"] == [{"pipeline": "gate", "project": "hub/app", "branch": "stable"}]


def commit(repository, name, text, ref="HEAD"):
    me = pygit2.Signature("Ada", "ada@example.org", 1_700_000_000, 0)
    builder = repository.TreeBuilder()
    builder.insert(name, repository.create_blob(dedent(text).encode()), pygit2.enums.FileMode.BLOB)
    return repository.create_commit(ref, me, me, "One", builder.write(), [])


def test_a_pipeline_of_another_tenant_is_a_pipeline(offline):
    alone = TENANTS.replace("app, lib", "app")
    tenants = alone + alone.replace("acme", "other").replace("[ops]", "[lib]")
    made = offline(tenants=tenants, app=APP + "- project: {mine: {jobs: [unit]}}\n", lib=OPS.replace("check", "mine"))
    assert made.json("check")["acme"]["errors"] == []
    assert made.json("check", "--tenant", "acme")["acme"]["errors"] == [], "the others are not known"


MISSING = """
- job: {name: a, parent: shared, run: a.yaml}
- job: {name: b, parent: shared, run: b.yaml}
- project: {check: {jobs: [a, b, shared]}, gate: {jobs: [a, b]}}
"""


def test_the_same_thing_missing_in_many_places_is_one_cause(offline):
    made = offline(app=MISSING, lib="- project: {gate: {jobs: [shared]}}\n")
    assert causes(made) == [("Unknown Configuration Error", "hub/app:2", 3)]
    shown = made.run("check").stdout
    assert shown.count("error[") == 1
    assert "= also missing at hub/app master zuul.yaml:3, hub/app master zuul.yaml:4, " in shown
    assert "4 errors, of 1 cause" in shown


def test_a_chain_of_mistakes_has_its_first_as_cause(offline):
    """An unreachable project breaks a job, its children and everything that runs it."""
    app = "- job: {name: shared, run: s.yaml, required-projects: [away]}\n" + MISSING
    made = offline(app=app, lib="- project: {gate: {jobs: [shared]}}\n")
    assert causes(made) == [("Project Not Found", "hub/app:1", 4)]


def test_an_unreadable_file_is_the_cause_of_all_missing_definitions(offline):
    made = offline(app="- job: {name: shared, run: s.yaml}\n- job:\n   name: x\n  run: [\n", lib=MISSING)
    assert [(name, where) for name, where, _ in causes(made)] == [("Unknown", "hub/app:4")]


def test_two_mistakes_on_one_line_are_two(offline):
    made = offline(app="- project: {gate: {jobs: [one, two]}}\n")
    assert len(causes(made)) == 2


def test_an_error_in_a_template_of_many_projects_is_reported_once(offline):
    names = [f"p{n}" for n in range(12)]
    made = offline(
        tenants=TENANTS.replace("app, lib", ", ".join(["app", "lib", *names])),
        app="- job: {name: a, run: a.yaml, allowed-projects: [lib]}\n"
        "- project-template: {name: usual, gate: {jobs: [a]}}\n",
    )
    for name in names:
        made.write(f"hub/{name}", {"zuul.yaml": "- project: {templates: [usual]}\n"})
    errors = made.json("check")["acme"]["errors"]
    assert len([e for e in errors if e["cause"] is None]) == 1 and len(errors[0]["ends"]) == 12
    assert "and 9 more" in made.run("check").stdout


def test_the_kinds_of_findings_can_be_chosen(offline):
    made = offline(app=MISSING, lib="- project: {queue: q, gate: {jobs: [base]}}\n")
    assert [where for _, where, _ in causes(made)] == ["hub/app:2", "hub/lib:1", "hub/lib:1"]
    assert [where for _, where, _ in causes(made, "--project", "lib")] == ["hub/lib:1", "hub/lib:1"]
    assert [name for name, _, _ in causes(made, "--only", "warnings")] == ["Queue Not Found"]
    assert [name for name, _, _ in causes(made, "--only", "queue-not-found")] == ["Queue Not Found"]
    shown = made.run("check", "--limit", "1").stdout
    assert shown.count("error[") == 1 and "2 more causes are not shown" in shown
    assert made.run("check", "--project", "nobody").exit_code == 2


def test_the_exit_status_follows_the_severity_one_cares_for(offline):
    warned = offline(app="- project: {queue: q}\n")
    status = {word: warned.run("check", "--fail-on", word).exit_code for word in ("error", "warning", "never")}
    assert status == {"error": 0, "warning": 1, "never": 0}
    assert offline(app=MISSING).run("check", "--fail-on", "never").exit_code == 0


def test_only_findings_of_a_proposal_are_reported(offline):
    made = offline(app=MISSING)
    old = made.repos.parent / "old/hub/lib"
    old.mkdir(parents=True)
    (old / "zuul.yaml").write_text("")
    made.write("hub/lib", {"zuul.yaml": "- job: {name: new}\n- project: {gate: {jobs: [new]}}\n"})
    since = ("--new-since", str(old.parents[1]))
    assert [where for _, where, _ in causes(made, *since)] == ["hub/lib:2"]
    made.write("hub/lib", {"zuul.yaml": "- job: {name: new, run: x}\n- project: {gate: {jobs: [new]}}\n"})
    assert causes(made, *since) == [] and made.run("check", *since).exit_code == 0
    assert made.run("check").exit_code == 1


def test_errors_that_a_revision_already_had_are_not_new(offline):
    made = offline(app=MISSING)
    repository = pygit2.init_repository(str(made.repos / "hub/app"), initial_head="master")
    commit(repository, "zuul.yaml", MISSING)
    made.write("hub/app", {"zuul.yaml": "\n\n" + MISSING + "- project: {gate: {jobs: [base]}}\n"})
    (found,) = made.json("check", "--new-since", "HEAD")["acme"]["errors"]
    assert found["message"].startswith("job base is abstract")
    done = made.run("check", "--new-since", "nonsense")
    assert done.exit_code == 2 and "no repository has this revision" in done.stderr


def test_an_error_of_a_base_job_is_new_for_every_project_that_inherits_it(offline):
    """The projects themselves have not changed: they are frozen because they inherit."""
    made = offline(ops=OPS.replace("abstract: true", "abstract: true, final: true"))
    old = made.repos.parent / "old/hub/ops"
    old.mkdir(parents=True)
    (old / "zuul.yaml").write_text(dedent(OPS))
    errors = made.json("check", "--new-since", str(old.parents[1]))["acme"]["errors"]
    assert "unit" in errors[0]["message"] and errors[0]["ends"] != []


@pytest.mark.parametrize("app", ["", MISSING, "- project: {chek: {jobs: [a]}}", "- job: [", *ONLY_FROZEN.values()])
@pytest.mark.parametrize("words", [(), ("--limit", "1")])
def test_sarif_is_of_its_schema(offline, app, words):
    made = offline(app=app)
    log = json.loads(made.run("check", "--sarif", *words).stdout)
    assert not [f"{list(e.instance_path)}: {e.message}" for e in SARIF.iter_errors(log)]


def test_sarif_has_the_places_that_a_viewer_needs(offline):
    made = offline(app=MISSING)
    log = json.loads(made.run("check", "--sarif").stdout)
    (run,) = log["runs"]
    (result,) = run["results"]
    assert log["version"] == "2.1.0" and run["tool"]["driver"]["name"] == "headgate"
    assert result["ruleId"] in [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "zuul.yaml"}
    assert place["region"] == {"startLine": 2, "startColumn": 26, "endLine": 2, "endColumn": 32}
    assert len(result["relatedLocations"]) == 2 and result["level"] == "error"
    before = result["partialFingerprints"]
    made.write("hub/app", {"zuul.yaml": "# moved\n" + MISSING})
    again = json.loads(made.run("check", "--sarif").stdout)["runs"][0]["results"][0]
    assert again["partialFingerprints"] == before


def test_a_path_in_sarif_is_a_reference_of_a_uri(offline):
    made = offline(app="")
    made.write("hub/app", {"zuul.yaml": ""}).joinpath("zuul.yaml").unlink()
    made.write("hub/app", {"zuul.d/a b#1%.yaml": MISSING})
    (result,) = json.loads(made.run("check", "--sarif").stdout)["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "zuul.d/a%20b%231%25.yaml"}


def test_the_tenant_file_has_columns_too(offline):
    made = offline(tenants="- tenant:\n    name: acme\n    sauce: {}\n")
    (error,) = made.json("check")[""]["errors"]
    assert (error["line"], error["column"], error["end_line"], error["end_column"]) == (3, 5, 3, 10)
