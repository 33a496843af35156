"""Test files that jobs leave in the work directory, and data that they return: none of it is trusted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .arena import ATTACKER, Arena

TREASURE = "treasure-of-this-installation"

ALTERNATES = """#!/bin/sh
case $ZUUL_EXECUTION_PHASE in
pre*)
    for file in $(find $ZUUL_SRC_ROOT -path '*objects/info/alternates'); do
        echo {hidden} >>$file && echo PLANTED
    done;;
*)
    cat {hidden}/* /proc/self/mountinfo | grep -e {treasure} -e {hidden} && echo REACHED
    exit 0;;
esac
"""
LINKS = """#!/bin/sh
rm -rf $ZUUL_LOG_DIR && ln -s {hidden} $ZUUL_LOG_DIR && echo PLANTED
"""
INSIDE = """#!/bin/sh
cd $ZUUL_LOG_DIR
ln -s {hidden} directory; ln -s {hidden}/key file; mkfifo pipe; mkdir -p many
python3 - <<END
import os, socket
for n in range(30000):
    open(f"many/{{n}}", "w").close()
for n in range(800):
    os.mkdir("deep"); os.chdir("deep")
END
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
printf 'x' >"$(printf 'name\\033[2J\\nof\\377lines')"
truncate -s 100T huge
echo PLANTED
"""
PIPES = """#!/bin/sh
find $(dirname $ZUUL_LOG_DIR) -maxdepth 3 -type f -writable ! -path '*/src/*' | while read file; do
    rm -f $file && mkfifo $file && echo PLANTED
done
for name in results.json zuul_return.json returned.json job-output.txt job-output.json zuul-manifest.json; do
    mkfifo $(dirname $ZUUL_LOG_DIR)/$name $ZUUL_LOG_DIR/$name
done
echo PLANTED
"""
LEFT = {"alternates": ALTERNATES, "links": LINKS, "inside": INSIDE, "pipes": PIPES}


def test_files_that_a_job_leaves_reach_nothing_and_stop_nobody(tmp_path: Path) -> None:
    """Make links to files of the machine in git's own files and in place of the logs, and pipes that nobody writes
    to."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "key").write_text(f"{TREASURE}\n")
    jobs = "".join(
        f"- job: {{name: {name}, pre-run: jobs/{name}, run: jobs/{name}, post-run: jobs/{name}}}\n" for name in LEFT
    )
    config = jobs + f"- project: {{check: {{jobs: [{', '.join(LEFT)}]}}}}\n"
    scripts = {f"jobs/{name}": text.format(hidden=hidden, treasure=TREASURE) for name, text in LEFT.items()}
    with Arena(tmp_path / "arena") as arena:
        commit = arena.propose(ATTACKER, "leaves", {"zuul.yaml": config, **scripts})
        arena.neighbours_land()
        arena.note_section(ATTACKER, commit, "check")
        state = arena.headgate.root / "state"
        for name in LEFT:
            log = arena.job_log("example", name)
            assert "PLANTED" in log, log
            assert "REACHED" not in log, log
        stored = [path for path in (state / "logs").rglob("*") if not path.is_dir()]
        assert all(path.is_file() and not path.is_symlink() for path in stored)
        assert not [path for path in stored if TREASURE.encode() in path.read_bytes()]
        assert (hidden / "key").read_text() == f"{TREASURE}\n" and len(list(hidden.iterdir())) == 1
        assert "Traceback" not in arena.log
        arena.neighbours_land()


RETURNED: dict[str, str] = {
    "children": '{"zuul": {"child_jobs": [{}]}}',
    "child": '{"zuul": {"child_jobs": 7}}',
    "address": '{"zuul": {"log_url": "http://["}}',
    "script": '{"zuul": {"log_url": "javascript:alert(1)"}}',
    "half": r'{"zuul": {"warnings": ["\ud800"]}, "x": "\udfff"}',
    "artifact": '{"zuul": {"artifacts": [{"name": {}, "url": []}]}}',
    "comments": '{"zuul": {"file_comments": {"f": [{"line": -1, "message": {}}]}}}',
    "deep": '{"x": ' + "[" * 50_000 + "]" * 50_000 + "}",
    "large": json.dumps({"x": "y" * 9_000_000}),
    "list": "[1, 2]",
    "nothing": "",
    "infinite": '{"x": NaN, "y": 1e999}',
    "long": '{"x": ' + "9" * 5_000 + "}",
}
"""Name of a job -> the data that it returns."""
RAW = "-raw"
"""Suffix of jobs that write past the command."""
GIVE = """#!/usr/bin/env python3
import os, pathlib, subprocess
name = os.environ["ZUUL_JOB"]
place = "*/code/api/returned/" + name.removesuffix("-raw")
text = next(pathlib.Path(os.environ["ZUUL_SRC_ROOT"]).glob(place)).read_text()
if name.endswith("-raw"):
    (pathlib.Path(os.environ["ZUUL_LOG_DIR"]).parent / "results.json").write_text('{"data": %s}' % text)
elif subprocess.run(["headgate-return", "--json", "/dev/stdin"], input=text, text=True).returncode:
    print("REFUSED")
"""


@pytest.mark.long
def test_data_that_a_job_returns_affects_only_its_build(tmp_path: Path) -> None:
    """The command refuses it with a reason; written past the command it is that build's failure, without another
    attempt; the gate continues after a restart."""
    names = [f"{name}{way}" for name in RETURNED for way in ("", RAW)]
    jobs = "".join(f"- job: {{name: {name}, run: jobs/give, attempts: 3}}\n" for name in names)
    config = jobs + f"- project: {{check: {{jobs: [{', '.join(names)}]}}}}\n"
    files = {f"returned/{name}": text for name, text in RETURNED.items()}
    with Arena(tmp_path) as arena:
        commit = arena.propose(ATTACKER, "gives", {"zuul.yaml": config, "jobs/give": GIVE, **files})
        arena.neighbours_land()
        note = arena.note_section(ATTACKER, commit, "check")
        assert not [c for c in note if not c.isprintable() and c != "\n"], note
        results = dict(re.findall(r"^- (\S+) \S+ : (.*)$", note, re.MULTILINE))
        for name in RETURNED:
            log = arena.job_log("example", name)
            assert "REFUSED" in log, log
            assert results[name].startswith("SUCCESS"), note
            assert results[name + RAW].startswith("FAILURE results.json: "), note
            assert "attempt 1" in arena.job_log("example", name + RAW), "it would come to the same again"
        arena.headgate.stop()
        arena.headgate.start()
        arena.neighbours_land()
        assert "Traceback" not in arena.log
