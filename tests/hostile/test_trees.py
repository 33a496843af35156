"""Test the repositories and files of other builds in a build: each in its place, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headgate.testing.repositories import run_git
from tests.waiting import wait_for

from .arena import ATTACKER, TENANTS, Arena

NESTED = f"{ATTACKER}/part"
WITH_PART = f"""
- job: {{name: attack, run: jobs/attack, required-projects: [{NESTED}]}}
- project: {{check: {{jobs: [attack]}}}}
"""
LISTS = "#!/bin/sh\nls $ZUUL_SRC_ROOT/git.example/code/api/part\n"


@pytest.mark.long
def test_a_repository_is_not_checked_out_through_a_link_of_another_one(tmp_path: Path) -> None:
    """One project's name begins with another's, so its files belong below the other's, which has a link there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    arena = Arena(tmp_path)
    arena.repositories.create("part", {"authorized_keys": "of the attacker\n"})
    shutil.move(arena.repositories.hub / "part", arena.repositories.hub / NESTED)
    (tmp_path / "tenants.yaml").write_text(TENANTS.replace("[code/api,", f"[code/api, {NESTED},"))
    with arena:
        files = {"zuul.yaml": WITH_PART, "jobs/attack": LISTS}
        plain = arena.note_section(ATTACKER, arena.propose(ATTACKER, "plain", files), "check")
        assert "Build succeeded" in plain, plain
        assert "authorized_keys" in arena.job_log("example", "attack")
        link = arena.repositories.work(ATTACKER) / "part"
        for topic, target in (("link", outside), ("dangling", outside / "new")):
            link.symlink_to(target)
            note = arena.note_section(ATTACKER, arena.propose(ATTACKER, topic, files), "check")
            assert not list(outside.iterdir())
            assert "Build failed" in note and "part is a symbolic link" in note, note
            run_git("checkout", "-q", "--detach", "origin/master", at=link.parent)
        for topic, more in (("file", {"part": "x\n"}), ("full", {"part/README": "x\n"})):
            note = arena.note_section(ATTACKER, arena.propose(ATTACKER, topic, {**files, **more}), "check")
            assert "Build failed" in note and NESTED in note, note
        assert arena.neighbours_land() > 0
    assert not list(outside.iterdir())


GIVES = """#!/bin/sh
cat > data <<'E'
{"zuul": {"artifacts": [{"name": "own", "url": "job-output.txt"},
    {"name": "theirs", "url": "job-output.txt", "build": "FOREIGN", "tenant": "other"}]}}
E
headgate-return --json data
echo given by first
"""
TAKES = """#!/usr/bin/env python3
import json, os, urllib.error, urllib.request
artifacts = json.load(open(os.environ["HEADGATE_VARS"]))["zuul"]["artifacts"]
host = artifacts[0]["url"].split("/")[2]
for url in (*(one["url"] for one in artifacts), f"http://{host}/logs/FOREIGN/job-output.txt"):
    try:
        print("TAKEN", url, "given by first" in urllib.request.urlopen(url, timeout=10).read().decode())
    except urllib.error.URLError as refused:
        print("REFUSED", url, refused)
"""
CHAIN = """
- job: {name: first, run: jobs/first}
- job: {name: attack, run: jobs/attack, dependencies: [first]}
- project: {check: {jobs: [first, attack]}}
"""


@pytest.mark.long
def test_a_job_reads_files_of_the_builds_that_the_gate_names_whatever_another_job_returned(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        assert arena.neighbours_land() > 0
        place = "/api/tenant/other/builds?complete=true&limit=1"
        foreign = wait_for("one is history", lambda: arena.headgate.get(place))[0]["uuid"]
        files = {
            "zuul.yaml": CHAIN,
            "jobs/first": GIVES.replace("FOREIGN", foreign),
            "jobs/attack": TAKES.replace("FOREIGN", foreign),
        }
        note = arena.note_section(ATTACKER, arena.propose(ATTACKER, "take", files), "check")
        log = arena.job_log("example", "attack")
        assert "Build succeeded" in note and log.count("TAKEN") == 2 and log.count(" True\n") == 2, note + log
        (refused,) = [line for line in log.splitlines() if "REFUSED" in line]
        assert foreign in refused and "404" in refused, log
        assert arena.neighbours_land() > 0
