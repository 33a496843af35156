"""Test that text of a proposal and its jobs is shown as theirs, and cannot pass as Headgate's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.main import group
from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories, run_git
from tests.e2e.headgate import MAIN
from tests.waiting import wait_for

from .arena import ATTACKER, PIPELINES, TENANTS, UNIT, Arena

LIES = "Headgate (gate):\nBuild succeeded.\n\nLanded on master as "
ESCAPES = "\x1b]0;taken over\x07\x1b[2J\x1b[1;1H\u202e\u2028good"
WARNS = """#!/bin/sh
cat > data <<'E'
{"zuul": {"warnings": [LIES]}}
E
headgate-return --json data
"""
NEEDS = f"Use it\n\nDepends-On: {ATTACKER}/master/lies"


@pytest.mark.long
def test_a_job_cannot_imitate_headgates_own_lines_in_a_report(tmp_path: Path) -> None:
    """A false report of a landing concerns the dependency of a neighbour's approved change."""
    with Arena(tmp_path) as arena:
        lies = f"\n\n{LIES}{arena.repositories.head(ATTACKER)}\n"
        own = [
            {"job": {"name": "attack", "run": "jobs/attack", "success-message": f"fine{lies}"}},
            {"project": {"check": {"jobs": ["attack"]}}},
        ]
        files = {"zuul.yaml": json.dumps(own), "jobs/attack": WARNS.replace("LIES", json.dumps(f"careful{lies}"))}
        commit = arena.propose(ATTACKER, "lies", files)
        section = arena.note_section(ATTACKER, commit, "check")
        note = arena.repositories.note(ATTACKER, commit)
        assert "Build succeeded" in section and "careful" in section, note
        waiting = arena.propose("code/lib", "waiting", {"waiting": "x\n"}, NEEDS)
        arena.note_section("code/lib", waiting, "check")
        arena.repositories.abandon(ATTACKER, "lies")
        arena.approve("code/lib", "waiting")
        assert "not enqueued" in arena.note_section("code/lib", waiting, "gate"), note
        assert not arena.landed("code/lib", "waiting"), note
        assert not [line for line in note.splitlines() if line.startswith(("Headgate (gate)", "Landed on"))], note
        assert arena.neighbours_land() > 0


C1 = "\\x9b31m\\x85\\x7f\\u202e\\U000e0041"
"""Characters in YAML's notation that move a cursor, end a line, reverse text or are invisible."""
HIDDEN = "\x9b31m\x85\x7f\u202e\U000e0041"


@pytest.mark.long
def test_json_of_a_command_moves_no_cursor_and_is_unchanged(tmp_path: Path) -> None:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
    for project in ("code/lib", "other/app"):
        repositories.create(project, {"README": "read me\n"})
    job = f'{{name: odd, run: jobs/unit, description: "d{C1}", vars: {{k: "v{C1}"}}}}'
    repositories.create("code/api", {"zuul.yaml": f"- job: {job}\n- project: {{check: {{jobs: [odd]}}}}\n"})
    (tmp_path / "tenants.yaml").write_text(TENANTS)
    (tmp_path / "headgate.conf").write_text(
        "[scheduler]\ntenant_config = tenants.yaml\n[connection local]\nbaseurl = hub\n"
    )

    def says(*words: str) -> str:
        done = CliRunner().invoke(group, [*words, "--config", str(tmp_path / "headgate.conf")])
        assert not [c for c in done.output if not c.isprintable() and c != "\n"], (words, repr(done.output))
        return done.stdout

    place = ("--tenant", "example", "--project", "code/api", "--pipeline", "check")
    found = json.loads(says("freeze", *place, "--json"))
    assert f'"v{HIDDEN}"' in json.dumps(found, ensure_ascii=False)
    document = json.loads(says("explain", "job", "odd", *place, "--json"))
    assert f"v{HIDDEN}" in json.dumps(document, ensure_ascii=False)
    for name, escape in (("a\\0b", "a\\x00b"), ("a\\u009bb", "a\\x9bb"), ("a\\eb", "a\\x1bb")):
        text = f'- job: {{name: "{name}", run: jobs/unit}}\n- project: {{check: {{jobs: ["{name}"]}}}}\n'
        repositories.write("code/api", {"zuul.yaml": text})
        run_git("commit", "-q", "-m", "odd", at=repositories.work("code/api"))
        run_git("push", "-q", "origin", "HEAD:master", at=repositories.work("code/api"))
        text = says("check", "--tenant", "example")
        assert f"name of a job must be one line of printable text, not '{escape}'" in text, text
        assert "of 1 cause" in text and f'| - job: {{name: "{name}"' in text, "the rest follows from it"


def shown(arena: Arena) -> str:
    """The queues in the operator's terminal."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "status", "--once", "--tenant", "example", "--url", arena.headgate.url],
        cwd=arena.headgate.root,
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    return (done.stdout + done.stderr).decode()


@pytest.mark.long
def test_nothing_that_a_proposal_says_moves_a_cursor(tmp_path: Path) -> None:
    project = {"project": {"check": {"jobs": ["attack", "unit"]}}}
    named = {"job": {"name": f"attack{ESCAPES}", "run": "jobs/attack"}}
    job = {"job": {"name": "attack", "run": "jobs/attack", "failure-message": f"bad{ESCAPES}"}}
    proposals = {
        "name": {"zuul.yaml": json.dumps([named, project])},
        "section": {"zuul.yaml": json.dumps([{"project": {"check": {"jobs": [f"attack{ESCAPES}"]}}}])},
        "message": {"zuul.yaml": json.dumps([job, project]), "jobs/attack": "#!/bin/sh\nexit 1\n"},
        "raw": {"zuul.yaml": f"- job: {ESCAPES}\n"},
        "file": {f"zuul.d/{ESCAPES}.yaml": "- job: 1\n"},
        "semaphore": {"zuul.yaml": json.dumps([{"semaphore": {"name": ESCAPES, "max": "x"}}])},
    }
    with Arena(tmp_path) as arena:
        arena.attack("waits", "#!/bin/sh\nexec sleep 600\n")
        commits = {topic: arena.propose(ATTACKER, topic, files) for topic, files in proposals.items()}
        board = wait_for("the job is shown", lambda: found if "attack" in (found := shown(arena)) else "")
        notes = {topic: arena.note_section(ATTACKER, commit, "check") for topic, commit in commits.items()}
        assert "must be one line of printable text" in notes["name"], notes["name"]
        for text in (board, *notes.values()):
            assert "\n" in text and not [c for c in text if not c.isprintable() and c != "\n"], repr(text)
        assert arena.neighbours_land() > 0
