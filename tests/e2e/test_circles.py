"""Test changes of two repositories that need each other: real pushes, a server that refuses, a gate that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.testing.repositories import run_git
from tests.integration.conftest import PIPELINES
from tests.waiting import wait_for

from .headgate import Headgate
from .test_by_hand import GATE, say
from .test_readiness import API, note

LIB = "code/lib"
QUEUE = "- queue: {name: integrated, allow-circular-dependencies: true}\n"
SEES_BOTH = """#!/bin/sh
test -e "$ZUUL_SRC_ROOT/git.example/code/api/api" && test -e "$ZUUL_SRC_ROOT/git.example/code/lib/lib"
"""


def allowed(headgate: Headgate) -> None:
    """Every job needs both changes."""
    repositories = headgate.repositories
    repositories.write("config", {"zuul.yaml": PIPELINES + QUEUE, "jobs/unit": SEES_BOTH})
    run_git("commit", "-q", "-m", "Allow circles", at=repositories.work("config"))
    run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=repositories.work("config"))


def refusing_the_second(headgate: Headgate) -> Path:
    """While the file exists, neither branch moves after the other has moved."""
    hub, block = headgate.repositories.hub, headgate.root / "block"
    block.touch()
    for name, other in ((API, LIB), (LIB, API)):
        head, hook = headgate.repositories.head(other), hub / name / "hooks" / "update"
        hook.write_text(
            f'#!/bin/sh\ntest "$1" != refs/heads/master -o ! -e {block} && exit 0\n'
            f'test "$(cat {hub / other}/refs/heads/master)" = {head} || {{ echo "not today" >&2; exit 1; }}\n'
        )
        hook.chmod(0o755)
    return block


@pytest.mark.long
def test_changes_that_need_each_other_land_although_a_server_refuses_and_the_gate_is_killed(headgate: Headgate) -> None:
    repositories = headgate.repositories
    allowed(headgate)
    api = repositories.propose(API, "one", {"api": "x\n"}, message="one\n\nDepends-On: code/lib/master/two")
    lib = repositories.propose(LIB, "two", {"lib": "x\n"}, message="two\n\nDepends-On: code/api/master/one")
    notes = {API: lambda: repositories.note(API, api), LIB: lambda: repositories.note(LIB, lib)}
    wait_for("they are tested together", lambda: all("SUCCESS" in note() for note in notes.values()))
    block = refusing_the_second(headgate)
    repositories.approve(API, "one")
    note(headgate, api, "git.example/code/lib/master/two is not approved; this change will be enqueued once it is")
    repositories.approve(LIB, "two")
    wait_for("one has landed", lambda: any("Landed on master" in note() for note in notes.values()))
    wait_for("the other is refused", lambda: "not today" in headgate.log.read_text())
    first, second = (API, LIB) if "Landed on master" in notes[API]() else (LIB, API)
    assert "which lands after it." in notes[first]() and "Landed on master" not in notes[second]()
    (item,) = headgate.items("gate")
    assert {ref["project_canonical"] for ref in item["refs"]} == {"git.example/code/api", "git.example/code/lib"}
    headgate.kill()
    block.unlink()
    headgate.start()
    wait_for("the other lands", lambda: "Landed on master" in notes[second]())
    assert f"git.example/{first}/master" in notes[second]() and "which has landed as" in notes[second]()
    wait_for("the first is told", lambda: "which has landed as" in notes[first]())
    assert "Landed on master" in notes[first]() and "ALARM" not in notes[first]()
    assert repositories.show(API, "api") == repositories.show(LIB, "lib") == "x"
    wait_for("nothing is left", lambda: headgate.items("gate") == [])


@pytest.mark.long
def test_a_partial_landing_is_an_alarm_until_somebody_confirms_that_it_is_solved(headgate: Headgate) -> None:
    """On the status page's feed, in the API and in a terminal, even if processes are killed meanwhile."""
    repositories = headgate.repositories
    allowed(headgate)
    refusing_the_second(headgate)
    before = repositories.head(API)
    repositories.propose(API, "one", {"api": "x\n"}, message="one\n\nDepends-On: code/lib/master/two")
    repositories.propose(LIB, "two", {"lib": "x\n"}, message="two\n\nDepends-On: code/api/master/one")
    for name, topic in ((API, "one"), (LIB, "two")):
        repositories.approve(name, topic)
    wait_for("the other is refused", lambda: "not today" in headgate.log.read_text())
    left, topic = (LIB, "two") if repositories.head(API) != before else (API, "one")
    withdrawn = (f":refs/approved/master/{topic}", f":refs/for/master/{topic}")
    run_git("push", "-q", "origin", *withdrawn, at=repositories.work(left))

    def alarms() -> list[str]:
        problems = headgate.get("/api/tenant/example/status")["problems"]
        return [one["text"] for one in problems if f"git.example/{left}/master/{topic}" in one["project"]]

    (text,) = wait_for("the alarm", alarms)
    assert text.startswith("ALARM: changes that depend on each other have landed only in part: git.example/code/")
    assert f"git.example/{left}/master/{topic} has not" in text
    headgate.kill()
    headgate.start()
    assert wait_for("the alarm stands", alarms) == [text]
    assert (
        "ALARM: changes that depend on each other have landed only in part"
        in say(headgate, "status", "--once", "--url", headgate.url)[1]
    )
    words = ("dequeue", "--url", headgate.url, *GATE, "--project", left, topic)
    assert say(headgate, *words) == (0, f"{topic} of {left} was removed from gate.\n")
    wait_for("it ends", lambda: not alarms())
