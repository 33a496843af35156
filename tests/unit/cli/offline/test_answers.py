"""Test messages about mistakes: suggestions, the place of the other definition, missing parts."""

from __future__ import annotations

import pytest

from headgate.base.hints import expected, nearest, similar, with_hint

from .conftest import APP, OPS, TENANTS


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("smal", ["small", "large"], "small"),
        ("chek", ["check", "gate"], "check"),
        ("gtae", ["check", "gate"], "gate"),
        ("nodset", ["nodeset", "node", "nodes"], "nodeset"),
        ("lint", ["unit", "list-all"] + [f"other{n}" for n in range(20)], ""),
        ("docs", ["jobs", "dogs-and-cats"] + [f"other{n}" for n in range(20)], ""),
        ("a", ["b"] + [f"other{n}" for n in range(20)], "b"),
        ("tempest-full", [f"x{n}" for n in range(400)] + ["tempest-ful"], "tempest-ful"),
    ],
)
def test_only_similar_words_are_suggested(word, known, meant):
    assert nearest(word, known) == (f"did you mean {meant!r}?" if meant else "")


def test_without_a_near_word_a_hint_lists_the_known_ones():
    assert nearest("lint", ["unit", "docs"]) == "expected one of docs, unit"
    assert nearest("lint", ["unit"]) == "expected unit" and nearest("x", []) == similar("x", []) == expected(()) == ""
    assert similar("x", ["b", "a"]) == "expected one of b, a", "in the order of the list"
    assert similar("lint", ["unit", "zebra"]) == "did you mean 'unit'?"
    assert with_hint("it is wrong", "expected unit") == "it is wrong; expected unit"
    assert with_hint("it is wrong", "") == "it is wrong"


def test_a_project_is_suggested_by_its_last_name(offline):
    tenants = TENANTS.replace("app, lib", "org/app, other/app, lib")
    done = offline(tenants=tenants).run("freeze", "--project", "app")
    assert done.exit_code == 2 and "did you mean 'org/app' or 'other/app'?" in done.stderr
    done = offline(tenants=tenants).run("freeze", "--project", "hub/lip")
    assert "did you mean 'hub/lib'?" in done.stderr
    assert "headgate: " in done.stderr and "Error: " not in done.stderr, "errors look as in all other commands"


def test_the_error_about_a_second_definition_names_the_place_of_the_first(offline):
    shown = offline(lib="\n\n- job: {name: unit, run: x}\n").run("check").stdout
    assert "the job unit is already defined in project hub/app" in shown
    assert "= note: the first definition is at hub/app master zuul.yaml:2" in shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("job:\n  name: a\n", 1),
        ("- job: {name: a, run: b}\njob:\n  name: c\n", 2),
        ("- job: {name: a, run: b}\n\nproject:\n  gate: {jobs: [a]}\n- job: {name: d}\n", 3),
    ],
)
def test_a_stanza_without_its_dash_is_pointed_at(offline, text, line):
    (error,) = (e for e in offline(app=text).json("check")["acme"]["errors"] if e["cause"] is None)
    assert error["line"] == line and "lacks its dash: write `- " in error["message"]


def test_other_invalid_yaml_is_reported_as_it_is(offline):
    (error,) = offline(app="- job:\n    name: a\n   run: b\n").json("check")["acme"]["errors"]
    assert "lacks its dash" not in error["message"] and error["line"] == 3


def test_the_unknown_node_of_a_group_is_underlined(offline):
    text = "- nodeset: {name: n, nodes: [{name: a, label: x}], groups: [{name: g, nodes: [a, b]}]}\n"
    (error,) = offline(app=text).json("check")["acme"]["errors"]
    assert text[error["column"] - 1 : error["end_column"] - 1] == "b"


def test_a_repository_that_cannot_be_read_is_a_failure_of_freeze(offline):
    made = offline()
    (made.repos / "hub/lib/zuul.yaml").unlink()
    (made.repos / "hub/lib").rmdir()
    done = made.run("freeze", "--all")
    assert done.exit_code == 1 and "no repository of lib below" in done.stderr and "gate of app" in done.stdout
    assert made.run("freeze", "--all", "--json").exit_code == 1


def test_branches_that_are_not_read_are_not_frozen(offline):
    tenants = TENANTS.replace("[app, lib]", "[{app: {exclude-branches: master}}, lib]")
    ops = "- project: {name: app, gate: {jobs: [noop]}}\n"
    made = offline(tenants=tenants)
    made.write("hub/ops", {"zuul.yaml": (made.repos / "hub/ops/zuul.yaml").read_text() + ops})
    assert made.json("freeze", "--all") == []
    done = made.run("freeze", "--project", "app", "--branch", "master")
    assert done.exit_code == 2 and "app has no branch 'master' with configuration" in done.stderr


def test_details_are_shown_on_request(offline):
    app = APP.replace("run: unit.yaml", "run: unit.yaml, vars: {a: {b: 1}}, roles: [{zuul: lib}], secrets: [key]")
    ops = OPS.replace("manager: dependent", "manager: dependent\n    post-review: true")
    made = offline(ops=ops, app="- secret: {name: key, data: {token: very-secret}}\n" + app)
    plain = made.run("freeze", "--project", "app", "--pipeline", "gate").stdout
    shown = made.run("freeze", "--project", "app", "--pipeline", "gate", "--details").stdout
    for words in ('a: {"b": 1}', "lib (hub/lib)", "secrets    unit.yaml: key"):
        assert words in shown and words not in plain
    assert "very-secret" not in shown


def test_texts_of_a_repository_cannot_control_the_terminal(offline):
    app = '- job: {name: "\\e[2Ja", run: x}\n- project: {gate: {jobs: ["\\e[2Ja", "\\e[2Jb", base]}}\n'
    for text in (app, "- job: {name: a, run: \x1b[2J}\n"):
        made = offline(app=text)
        shown = made.run("check").stdout
        assert "error[" in shown and "\x1b[2J" not in shown
