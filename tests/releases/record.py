"""Record the state that a release leaves behind, for the test that the next one continues from it.

`python -m tests.releases.record HEADGATE FILE.tar.xz` runs that `headgate`: one change lands, another one is approved,
and in the middle of its build the process is killed. FILE has settings, store, history, logs and git repositories.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from headgate.testing.repositories import Repositories, run_git
from tests.waiting import wait_for

LANDED, WAITING = "greet", "wait"
PROJECT = "app"
DEADLINE_S = 60.0
REDONE = ("git", "builds", "images")
"""Parts of the state that a process creates again."""
SETTINGS = """\
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[executor]
sandbox = none
[keystore]
password = of-a-fixture
[connection local]
baseurl = hub
canonical_hostname = git.example
[web]
port = 0
"""
TENANTS = """\
- tenant:
    name: example
    source: {local: {config-projects: [config], untrusted-projects: [app]}}
"""
CONFIG = """\
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
- job: {name: unit, parent: null, run: jobs/unit}
- project: {name: app, gate: {jobs: [unit]}}
"""
RECORDING = "recording"
"""A file above the work directory while a state is recorded: then the waiting change waits until it is killed."""
UNIT = f"""\
#!/bin/sh
echo "tested by the unit job"
cd "$ZUUL_SRC_ROOT"/git.example/app || exit 1
[ -e wait ] || exit 0
above=$PWD
while [ "$above" != / ]; do
    [ -e "$above/{RECORDING}" ] && exec sleep 600
    above=$(dirname "$above")
done
"""


def lay_out(root: Path) -> Repositories:
    (root / "headgate.conf").write_text(SETTINGS)
    (root / "tenants.yaml").write_text(TENANTS)
    (root / RECORDING).touch()
    repositories = Repositories(root)
    repositories.create("config", {"zuul.yaml": CONFIG, "jobs/unit": UNIT})
    repositories.create(PROJECT, {"README": "An application.\n"})
    return repositories


def record(headgate: str, file: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        repositories = lay_out(root)
        running = subprocess.Popen(
            [headgate, "run"], cwd=root, start_new_session=True, stderr=(root / "said").open("w")
        )
        try:
            before = repositories.head(PROJECT)
            repositories.propose(PROJECT, LANDED, {"hello": "hello\n"}, "Greet people")
            repositories.approve(PROJECT, LANDED)
            wait_for("the first change lands", lambda: repositories.head(PROJECT) != before, DEADLINE_S)
            repositories.propose(PROJECT, WAITING, {"wait": ""}, "Wait for the next release")
            repositories.approve(PROJECT, WAITING)
            wait_for("its build runs", lambda: sleeping(root), DEADLINE_S)
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
        for bare in repositories.hub.iterdir():
            run_git("gc", "-q", "--prune=now", at=bare)
            for hook in (bare / "hooks").glob("*.sample"):
                hook.unlink()
        with tarfile.open(file, "w:xz") as packed:
            for part in ("headgate.conf", "tenants.yaml", "hub", "state"):
                packed.add(root / part, part, filter=lambda one: None if redone(one.name) else one)


def sleeping(root: Path) -> bool:
    """Return whether the job of the waiting change has reached its sleep."""
    return any("tested by the unit job" in log.read_text(errors="replace") for log in logs(root)[1:])


def logs(root: Path) -> list[Path]:
    return sorted((root / "state").rglob("job-output.txt"), key=lambda log: log.stat().st_mtime)


def redone(name: str) -> bool:
    return name.startswith("state/") and name.split("/")[1] in REDONE


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]))
