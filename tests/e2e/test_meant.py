"""Test that configuration has an effect, or a warning that it has none: real pushes to a running Headgate."""

from __future__ import annotations

import pytest

from tests.waiting import wait_for

from .headgate import Headgate

LOUD = """#!/bin/sh
headgate-return 'zuul.file_comments={"hello": [{"line": 1, "message": "odd", "level": "warning"}], "other": []}'
test -e "$ZUUL_SRC_ROOT/git.example/code/lib" && exit 9
test "$(ls -A "$ZUUL_SRC_ROOT/git.example/code/api")" = .git || exit 8
echo "tests: 1 FAILED"
"""
ZUUL = """
- job:
    name: loud
    run: loud
    failure-output: [1 FAILED]
    exclude-projects: [code/lib]
    workspace-checkout: false
    success-url: http://nowhere/
- project:
    gate:
      jobs: [loud]
"""


@pytest.mark.long
def test_settings_of_a_job_for_its_output_and_projects_take_effect(headgate: Headgate) -> None:
    """It exits with success, but its output contradicts that, and the output counts."""
    repositories = headgate.repositories
    repositories.propose("code/lib", "base", {"base": "x\n"})
    before = repositories.head("code/api")
    files = {"hello": "hi\n", "zuul.yaml": ZUUL, "loud": LOUD}
    commit = repositories.propose("code/api", "topic", files, "Topic\n\nDepends-On: code/lib/master/base")
    repositories.approve("code/lib", "base")
    repositories.approve("code/api", "topic")

    def loud_note() -> str:
        note = repositories.note("code/api", commit)
        return note if "- loud" in note else ""

    note = wait_for("the gate tells of it", loud_note)
    assert 'FAILURE its output matches failure-output: "tests: 1 FAILED"' in note
    assert "hello:1: warning: odd [loud]" in note and "- unit" in note
    assert "no effect" not in note, "which is nothing that a report tells"
    assert repositories.head("code/api") == before
    place = "/api/tenant/example/builds?complete=true&job_name=loud&change=topic"
    (build,) = wait_for("it is history", lambda: headgate.get(place))
    assert build["result"] == "FAILURE"
