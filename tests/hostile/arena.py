"""Provide a gate with an attacker, and neighbours who only want to land their changes."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from headgate.testing.clock import DEADLINE_S
from headgate.testing.repositories import Repositories
from tests.e2e.headgate import SETTINGS, Headgate
from tests.waiting import wait_for

T = TypeVar("T")
PIPELINES = """
- pipeline:
    name: check
    manager: independent
    trigger: {local: [{event: change-proposed}]}
    success: {local: {}}
    failure: {local: {}}
    config-error: {local: {}}
- pipeline:
    name: gate
    manager: dependent
    trigger: {local: [{event: change-approved}]}
    require: {local: {approved: true}}
    success: {local: {land: true}}
    failure: {local: {}}
    config-error: {local: {}}
- job: {name: base, parent: null, abstract: true}
- job: {name: unit, run: jobs/unit}
- project:
    name: ^(code|other)/.*
    check: {jobs: [unit]}
    gate: {jobs: [unit]}
"""
TENANTS = """
- tenant:
    name: example
    source:
      local:
        config-projects: [config]
        untrusted-projects: [code/api, code/lib]
- tenant:
    name: other
    source:
      local:
        config-projects: [config]
        untrusted-projects: [other/app]
"""
ATTACKER = "code/api"
NEIGHBOURS = ("code/lib", "other/app")
UNIT = """#!/bin/sh
test ! -e BROKEN
"""
LAND_S = 300.0
"""Longest wait of a neighbour, on a busy machine."""


def _is_known(url: str, token: str) -> bool:
    """Return whether an invalid ref is reported as invalid."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, b'{"pipeline": "check", "change": "none"}', headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S):
            return True
    except urllib.error.HTTPError as error:
        return error.code != 503


class Arena:
    """Run `headgate run` on three projects: the attacker's, a neighbour's in the same tenant, and one in another
    tenant. Every project has its own queue and runs the job `unit` in the pipelines `check` and `gate`."""

    def __init__(
        self,
        root: Path,
        *,
        store: str = "",
        settings: str = "",
        scheduler: str = "",
        files: Mapping[str, str] | None = None,
        config: str = "",
        others: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`files` are the initial files of the attacker's project, and `others` those of the named projects;
        `settings`, options of its section `scheduler`, and `config` (YAML) are appended to the above."""
        self.repositories, others = Repositories(root), others or {}
        begins = {"zuul.yaml": PIPELINES + config, "jobs/unit": UNIT}
        self.repositories.create("config", {**begins, **others.get("config", {})})
        self.repositories.create(ATTACKER, {"README": "read me\n", **(files or {})})
        for name in NEIGHBOURS:
            self.repositories.create(name, {"README": "read me\n", **others.get(name, {})})
        begun = SETTINGS.replace("[scheduler]\n", f"[scheduler]\n{scheduler}")
        self.headgate = Headgate(self.repositories, TENANTS, store, begun + settings)
        self._count = 0

    def __enter__(self) -> Arena:
        try:
            self.headgate.start()
        except BaseException:
            self.headgate.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.headgate.stop()

    def looked_at(self) -> Arena:
        """Wait until each project was polled: requests before that answer with a retry."""
        token = (self.headgate.root / "state" / "token").read_text().strip()
        for tenant, project in (("example", ATTACKER), *zip(("example", "other"), NEIGHBOURS, strict=True)):
            url = f"{self.headgate.url}/api/tenant/{tenant}/project/{project}/enqueue"
            wait_for(f"{project} was looked at", partial(_is_known, url, token))
        return self

    @property
    def log(self) -> str:
        """Return the gate's output so far."""
        return self.headgate.log.read_text(errors="replace")

    def propose(self, project: str, topic: str, files: Mapping[str, str], message: str = "") -> str:
        """Propose a change and return the commit."""
        return self.repositories.propose(project, topic, files, message)

    def attack(
        self, topic: str, script: str, files: Mapping[str, str] | None = None, *, pipeline: str = "check"
    ) -> str:
        """Propose a change of the attacker whose own job `attack` runs `script`; return the commit. The job is in the
        change itself: nobody has approved anything."""
        own = f"- job: {{name: attack, run: jobs/attack}}\n- project: {{{pipeline}: {{jobs: [attack]}}}}\n"
        return self.propose(ATTACKER, topic, {"zuul.yaml": own, "jobs/attack": script, **(files or {})})

    def approve(self, project: str, topic: str) -> None:
        self.repositories.approve(project, topic)

    def note_section(self, project: str, commit: str, pipeline: str, deadline_s: float = LAND_S) -> str:
        """Return the pipeline's section of the note, once it exists."""

        def section() -> str:
            note = self.repositories.note(project, commit)
            found = re.search(rf"^Headgate \({pipeline}\):\n(.*?)(?=^Headgate \(|\Z)", note, re.DOTALL | re.MULTILINE)
            return found[1] if found else ""

        looks = self._once_moved(project, "refs/notes/headgate", section)
        return str(wait_for(f"{pipeline} has told of {commit} of {project}", looks, deadline_s))

    def _once_moved(self, project: str, ref: str, look: Callable[[], T]) -> Callable[[], T | None]:
        """Call `look` only if the ref may have moved since the last call: otherwise git processes would repeat the
        same result and take the processors from the gate under test."""
        files, before = [self.repositories.hub / project / name for name in (ref, "packed-refs")], None

        def looked() -> T | None:
            nonlocal before
            now = [file.read_bytes() if file.exists() else b"" for file in files]
            if now == before:
                return None
            before = now
            return look()

        return looked

    def landed(self, project: str, path: str) -> bool:
        """Return whether a file is on the branch."""
        try:
            self.repositories.show(project, path)
        except KeyError:
            return False
        return True

    def job_log(self, tenant: str, job: str, deadline_s: float = LAND_S) -> str:
        """Return the log of the newest ended build of a job."""
        place = f"/api/tenant/{tenant}/builds?complete=true&job_name={job}&limit=1"
        (build,) = wait_for(f"a build of {job} has ended", lambda: self.headgate.get(place), deadline_s)
        return (self.headgate.root / "state/logs" / build["uuid"] / "job-output.txt").read_text(errors="replace")

    def neighbours_land(self, deadline_s: float = LAND_S) -> float:
        """Assert that a change of each neighbour is checked, approved and lands; return the seconds it took."""
        self._count += 1
        topic, began = f"neighbour{self._count}", time.monotonic()
        for project in NEIGHBOURS:
            self.propose(project, topic, {topic: "x\n"})
            self.approve(project, topic)
        for project in NEIGHBOURS:
            looks = self._once_moved(project, "refs/heads/master", partial(self.landed, project, topic))
            wait_for(f"{topic} of {project} lands", looks, deadline_s)
        return time.monotonic() - began
