"""Test commands of people to a running Headgate: their effects, and their messages if they cannot be performed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.clock import DEADLINE_S
from tests.waiting import wait_for

from .headgate import Headgate

HEADGATE = str(Path(sys.executable).with_name("headgate"))
GATE = ("--tenant", "example", "--pipeline", "gate")
CommandResult = tuple[int, str]


def say(headgate: Headgate, *words: str) -> CommandResult:
    """Return the exit status, and the output."""
    done = subprocess.run(
        [HEADGATE, *words], cwd=headgate.root, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def proposed(headgate: Headgate, topic: str, *files: str) -> str:
    """Propose a change; return its commit, after `check` has reported on it."""
    commit = headgate.repositories.propose("code/api", topic, dict.fromkeys(files, "x\n"))
    wait_for(f"{topic} is checked", lambda: headgate.repositories.note("code/api", commit))
    return commit


def landed(headgate: Headgate, commit: str) -> bool:
    return "Landed on master" in headgate.repositories.note("code/api", commit)


def topics(headgate: Headgate) -> list[str]:
    """List the topics in the gate, in order."""
    return [item["refs"][0]["id"].partition(",")[0] for item in headgate.items("gate")]


def test_an_approval_lands(headgate: Headgate) -> None:
    commit = proposed(headgate, "one", "a")
    words = ("approve", "--project", "code/api", "--url", headgate.url, "--reason", "read\x1b[31m twice")
    assert say(headgate, *words, "one") == (0, f"Approved one of code/api: {commit}\n")
    wait_for("it lands", lambda: landed(headgate, commit))
    text = "approve: master/one of code/api because read [31m twice  -> done\n"
    actions = ("actions", "--tenant", "example", "--url", headgate.url)
    wait_for("what was done is history", lambda: text in say(headgate, *actions)[1])
    proposed(headgate, "two", "b")
    status, output = say(headgate, "approve", "--project", "code/api", "--url", "http://127.0.0.1:9", "two")
    assert status == 0 and "Approved two of" in output and "Headgate did not record who approved: http://127." in output
    status, output = say(headgate, "approve", "--project", "code/nothing", "one")
    assert (status, output) == (1, "headgate: no tenant has the project 'code/nothing'\n")
    status, output = say(headgate, "approve", "--project", "code/api", "nothing")
    assert status == 1 and "there is no proposal nothing for master" in output


@pytest.mark.long
def test_changes_are_enqueued_promoted_and_dequeued_by_hand(headgate: Headgate) -> None:
    def gate(verb: str, topic: str, project: str = "code/api", *more: str) -> CommandResult:
        words = (*GATE, "--project", project, "--reason", f"for {topic}", *more)
        return say(headgate, verb, "--url", headgate.url, *words, topic)

    def promote(topic: str) -> CommandResult:
        return say(
            headgate, "promote", "--url", headgate.url, "--pipeline", "gate", f"git.example/code/api/master/{topic}"
        )

    _, second, third = (proposed(headgate, *words) for words in (("first", "HOLD"), ("second", "b"), ("third", "c")))
    for topic in ("first", "second", "third"):
        status, output = gate("enqueue", topic)
        assert status == 1 and f"{topic} is not approved, as pipeline gate requires" in output
        assert gate("enqueue", topic, "code/api", "--unapproved") == (0, f"{topic} of code/api is in gate.\n")
    status, output = say(headgate, "status", "--url", headgate.url, "--once")
    assert status == 0 and "gate  dependent, 3 items" in output
    assert output.index("first") < output.index("second") < output.index("third")
    assert say(headgate, "status", "--url", headgate.url)[0] == 0, "without a terminal it ends by itself"
    status, output = gate("enqueue", "first")
    assert status == 1 and "is already in the pipeline" in output
    assert promote("third") == (0, "Now at the head of gate: git.example/code/api/master/third.\n")
    wait_for("it lands before those it overtook", lambda: landed(headgate, third))
    wait_for("the others are left", lambda: topics(headgate) == ["first", "second"])
    assert not landed(headgate, second)
    assert gate("dequeue", "first") == (0, "first of code/api was removed from gate.\n")
    wait_for("nobody is ahead any more", lambda: landed(headgate, second))
    for status, output in (gate("dequeue", "first"), promote("first")):
        assert status == 1 and "git.example/code/api/master/first" in output and "not in the pipeline" in output
    for verb in ("enqueue", "dequeue"):
        status, output = gate(verb, "first", "code/nothing")
        assert status == 1 and output.endswith("tenant example has no project 'code/nothing'\n")
    status, output = say(headgate, "actions", "--url", headgate.url, "--limit", "100")
    assert status == 0
    for text in (
        "token from 127.0.0.1 enqueue-unapproved: third of code/api in gate because for third  -> done",
        "promote: git.example/code/api/master/third in gate  -> done",
        "enqueue: second of code/api in gate because for second  -> git.example/code/api/master/second is not approved",
    ):
        assert text in output


@pytest.mark.long
def test_a_closed_gate_stays_closed_whatever_dies(headgate: Headgate) -> None:
    def does(*words: str) -> CommandResult:
        return say(headgate, *words, "--url", headgate.url)

    status, output = does("close", "gate")
    assert status == 2 and "--reason" in output
    assert does("close", "--reason", "x")[0] == does("open", "gate", "--pipeline", "gate")[0] == 2, "named once"
    said_closed = "gate is closed: nothing lands until you run `headgate open gate`.\n"
    assert does("close", "gate", "--reason", "the release is cut") == (0, said_closed)
    head = headgate.repositories.head("code/api")
    commit = headgate.repositories.propose("code/api", "one", {"a": "x\n"})
    headgate.repositories.approve("code/api", "one")
    waits = "The change lands once the closing ends: the pipeline gate was closed by token: the release is cut."
    wait_for("it is told to wait", lambda: waits in headgate.repositories.note("code/api", commit))
    headgate.kill()
    headgate.start()
    wait_for("it is there still", lambda: topics(headgate) == ["one"])
    status, output = does("status", "--once")
    assert status == 0 and "nothing lands: the pipeline gate was closed by token: the release is cut" in output
    assert headgate.repositories.head("code/api") == head
    assert does("open", "--pipeline", "gate") == (0, "gate is open.\n")
    wait_for("it lands", lambda: landed(headgate, commit))
    assert does("open", "gate")[1].endswith("the pipeline gate is not closed\n")
    status, output = does("actions")
    assert "close: the pipeline gate because the release is cut  -> done" in output


@pytest.mark.long
def test_one_failed_build_is_run_once_more(headgate: Headgate) -> None:
    def builds(topic: str, **fields: str) -> list[dict[str, Any]]:
        found = headgate.get("/api/tenant/example/builds?pipeline=gate")
        return [one for one in found if one["ref"]["change"] == topic and fields.items() <= one.items()]

    for project, topic, file in (("code/api", "first", "HOLD"), ("code/lib", "second", "BROKEN")):
        headgate.repositories.propose(project, topic, {file: "x\n"})
        headgate.repositories.approve(project, topic)
        wait_for(f"{topic} is in the gate", lambda topic=topic: topic in topics(headgate))
    (failed,) = wait_for("the second fails", lambda: builds("second", result="FAILURE"))
    (runs,) = wait_for("the first runs", lambda: builds("first"))
    rerun = ("rerun", "--url", headgate.url, "--reason", "the network was away")
    status, output = say(headgate, *rerun, failed["uuid"])
    assert (status, output) == (0, f"The job of the build {failed['uuid']} runs again.\n")
    anew = wait_for("it is run anew", lambda: [b for b in builds("second") if b["attempt"] == 2])
    assert anew[0]["uuid"] != failed["uuid"] and topics(headgate) == ["first", "second"]
    status, output = say(headgate, *rerun, failed["uuid"])
    assert status == 1 and "no build" in output
    status, output = say(headgate, *rerun, runs["uuid"])
    assert status == 1 and "has ended" in output
    wait_for("it is in the history", lambda: [b for b in builds("second") if b["uuid"] == failed["uuid"]])
    entry = re.compile(f"rerun: build {failed['uuid']}: unit of second.* because the network was away  -> done")
    wait_for("what was done is history", lambda: entry.search(say(headgate, "actions", "--url", headgate.url)[1]))


@pytest.mark.long
def test_configuration_is_read_again(headgate: Headgate) -> None:
    def reconfigure(*projects: str) -> CommandResult:
        return say(headgate, "reconfigure", "--url", headgate.url, *projects)

    assert reconfigure("--tenant", "example") == (0, "Reloading: all projects of example.\n")
    assert reconfigure("code/api", "config") == (0, "Reloading: code/api, config.\n")
    status, output = reconfigure("code/nothing")
    assert status == 1 and output.endswith("tenant example has no project 'code/nothing'\n")
    hidden = headgate.repositories.hub / "code" / "hidden"
    (headgate.repositories.hub / "code" / "api").rename(hidden)
    status, output = reconfigure("code/api")
    assert status == 1 and "git.example/code/api cannot be read: " in output, output
    hidden.rename(headgate.repositories.hub / "code" / "api")
    assert reconfigure("code/api")[0] == 0


@pytest.mark.long
def test_the_tenant_file_is_read_again(headgate: Headgate) -> None:
    def reconfigure(*words: str) -> CommandResult:
        return say(headgate, "reconfigure", "--url", headgate.url, *words)

    def knows(project: str) -> bool:
        return any(one["name"] == project for one in headgate.get("/api/tenant/example/projects"))

    assert reconfigure() == (0, "Reloaded the tenant file: no tenant has changed.\n")
    file = headgate.root / "tenants.yaml"
    before = file.read_text()
    headgate.repositories.create("code/new", {"README": "new\n"})
    file.write_text(before.replace("- code/lib", "- code/lib\n          - code/new"))
    assert reconfigure("--full") == (0, "Reloaded the tenant file: changed: example.\n")
    commit = headgate.repositories.propose("code/new", "one", {"a": "x\n"})
    wait_for("it is checked", lambda: headgate.repositories.note("code/new", commit))
    file.write_text("- tenant: [")
    status, output = reconfigure()
    assert status == 1 and "the previous one stays in effect" in output and "tenants.yaml" in output
    (problem,) = headgate.get("/api/tenant/example/status")["problems"]
    assert problem["project"] == "the tenant file" and knows("code/new")
    file.write_text(before)
    assert headgate.process is not None
    headgate.process.send_signal(signal.SIGHUP)
    wait_for("the project is gone", lambda: not knows("code/new"))
    wait_for("all is well", lambda: headgate.get("/api/tenant/example/status")["problems"] == [])
    assert reconfigure("--full", "code/api")[0] == 1


@pytest.mark.long
def test_commands_report_a_server_that_does_not_answer(headgate: Headgate) -> None:
    assert headgate.stop() == 0
    change = ("--project", "code/api", "one")
    for words in (("enqueue", *GATE, *change), ("dequeue", *GATE, *change), ("promote", *GATE, "x"), ("status",)):
        status, output = say(headgate, *words, "--url", headgate.url)
        assert status == 75 and output.startswith(f"headgate: {headgate.url}/api/tenant"), output
        assert "Headgate does not answer" in output and "is `headgate run` running?" in output
