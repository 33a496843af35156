"""A gate on a real Gerrit, as `headgate run`: proposed, checked, voted on, gated with others, landed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.repositories import Repositories
from headgate.testing.servers.gerrit import Gerrit
from headgate.testing.servers.reviewing import PASSWORD, Clone, People, Proposed

from ....e2e.headgate import Headgate, wait_for

PIPELINES = """
- pipeline:
    name: check
    manager: independent
    trigger:
      review:
        - event: patchset-created
        - event: comment-added
          comment: (?i)^\\s*recheck\\s*$
    success:
      review: {Verified: 1}
    failure:
      review: {Verified: -1}

- pipeline:
    name: gate
    manager: dependent
    trigger:
      review:
        - event: comment-added
          approval:
            - Code-Review: 2
        - event: comment-added
          username: headgate
          approval:
            - Verified: 1
    require:
      review:
        open: true
        current-patchset: true
        approval:
          - Code-Review: 2
          - Verified: [1, 2]
            username: headgate
    start:
      review: {Verified: 0}
    success:
      review: {Verified: 2, submit: true}
    failure:
      review: {Verified: -2}

- job: {name: base, parent: null, abstract: true}
- job: {name: unit, run: jobs/unit}
- queue:
    name: integrated
    allow-circular-dependencies: true
    dependencies-by-topic: true
- project:
    name: ^127.0.0.1/code/.*
    queue: integrated
    check:
      jobs: [unit]
    gate:
      jobs: [unit]
"""
UNIT = """#!/bin/sh
while test -e HOLD && test "$ZUUL_PIPELINE" = gate; do sleep 0.1; done
if test -e BROKEN_WITH_OTHER && test -e OTHER; then exit 1; fi
test ! -e BROKEN
"""


class Site:
    """Projects of one gate, and the gate."""

    def __init__(self, running: Gerrit, root: Path) -> None:
        self.gerrit, self.people = running, People(running.url)
        self.suffix = f"{os.getpid()}-{running.port}"
        self.config, self.api, self.lib = (f"{name}-{self.suffix}" for name in ("config", "code/api", "code/lib"))
        self.clones: dict[str, Clone] = {}
        for name in (self.config, self.api, self.lib):
            self.people.project(name)
            person = self.people.admin if name == self.config else self.people.alice
            self.clones[name] = Clone(person, name, root / "work" / name)
        self.clones[self.config].pushes({"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
        known = root / "known_hosts"
        known.write_text("".join(f"{line}\n" for line in running.host_keys))
        settings = f"""
[scheduler]
tenant_config = tenants.yaml
state_dir = state
[connection review]
driver = gerrit
server = 127.0.0.1
baseurl = {running.url}
user = headgate
password = {PASSWORD}
port = {running.ssh_port}
sshkey = {running.key}
known_hosts = {known}
poll_delay = 2
[web]
port = 0
[executor]
builds = 8
"""
        tenants = f"""
- tenant:
    name: example
    source:
      review:
        config-projects: [{self.config}]
        untrusted-projects: [{self.api}, {self.lib}]
"""
        self.headgate = Headgate(Repositories(root), tenants, settings=settings)

    def proposes(self, project: str, files: dict[str, str], message: str = "", **how: Any) -> Proposed:
        return self.clones[project].proposes(files, message, **how)

    def status(self, change: Proposed) -> str:
        return str(self.people.alice.looks(change.number)["status"])

    def verified(self, change: Proposed) -> int:
        """Return what Headgate votes."""
        label = self.people.alice.looks(change.number, "DETAILED_LABELS", "DETAILED_ACCOUNTS")["labels"]["Verified"]
        return sum(one.get("value", 0) for one in label.get("all", []) if one.get("username") == "headgate")

    def messages(self, change: Proposed) -> list[str]:
        found = self.people.alice.looks(change.number, "MESSAGES", "DETAILED_ACCOUNTS")["messages"]
        return [one["message"] for one in found if one["author"].get("username") == "headgate"]

    def tags(self, change: Proposed) -> set[str]:
        return {one.get("tag", "") for one in self.people.alice.looks(change.number, "MESSAGES")["messages"]}

    def checked(self, *changes: Proposed, value: int = 1) -> None:
        for change in changes:
            wait_for(f"change {change.number} is checked", lambda change=change: self.verified(change) == value)

    def approves(self, *changes: Proposed) -> None:
        for change in changes:
            self.people.bob.votes(change.number, Code_Review=2)

    def lands(self, *changes: Proposed) -> None:
        for change in changes:
            try:
                wait_for(f"change {change.number} lands", lambda change=change: self.status(change) == "MERGED")
            except AssertionError as error:
                raise AssertionError(f"{error}: {self.messages(change)}") from error


@pytest.fixture(scope="module")
def site(running: Gerrit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(running, tmp_path_factory.mktemp("gate"))
    found.headgate.start()
    wait_for("the configuration is read", lambda: found.headgate.get("/api/tenant/example/status")["pipelines"])
    yield found
    found.headgate.stop()


def test_a_change_is_checked_and_lands_after_the_vote(site: Site) -> None:
    change = site.proposes(site.api, {"a": "1\n"})
    site.checked(change)
    assert site.status(change) == "NEW"
    site.approves(change)
    site.lands(change)
    assert site.clones[site.api].shows("a") == "1"
    assert site.tags(change) >= {"autogenerated:headgate:check", "autogenerated:headgate:gate"}


def test_of_three_that_are_gated_together_the_one_that_fails_does_not_land(site: Site) -> None:
    good, bad, last = (
        site.proposes(site.api, {"good": "1\n"}),
        site.proposes(site.lib, {"BROKEN": "1\n"}),
        site.proposes(site.lib, {"last": "1\n"}),
    )
    site.checked(good, last)
    site.checked(bad, value=-1)
    site.people.headgate.votes(bad.number, Verified=1)  # somebody is sure that it was not its fault
    site.approves(good, bad, last)
    site.lands(good, last)
    wait_for("the one that fails is told so", lambda: site.verified(bad) == -2)
    assert site.status(bad) == "NEW" and site.clones[site.lib].shows("BROKEN") == ""
    assert site.clones[site.lib].shows("last") == "1"


def test_a_stack_lands_from_below(site: Site) -> None:
    below = site.proposes(site.api, {"low": "1\n"})
    above = site.proposes(site.api, {"high": "1\n"}, on=below.commit)
    site.checked(below, above)
    site.approves(above)
    wait_for("it says what it waits for", lambda: site.verified(above) == 1)
    assert site.status(above) == "NEW"
    site.approves(below)
    site.people.bob.votes(above.number, "now", Code_Review=2)
    site.lands(below, above)
    assert site.clones[site.api].shows("high") == "1"


def test_a_negative_vote_in_the_queue_takes_it_out(site: Site) -> None:
    held = site.proposes(site.api, {"HOLD": "1\n"})
    site.checked(held)
    site.approves(held)
    wait_for("it is in the gate", lambda: site.headgate.items("gate"))
    site.people.bob.votes(held.number, "no, wait", Code_Review=-2)
    wait_for("it has left", lambda: not site.headgate.items("gate"))
    assert site.status(held) == "NEW"
    site.people.alice.abandons(held.number)


def test_a_gerrit_that_restarts_in_mid_gate_is_waited_for(site: Site) -> None:
    held = site.proposes(site.lib, {"HOLD": "1\n"})
    site.checked(held)
    site.approves(held)
    wait_for("it is in the gate", lambda: site.headgate.items("gate"))
    site.gerrit.stop()
    site.gerrit.start()
    newer = site.proposes(site.lib, {"free": "1\n"}, change_id=held.change_id)
    site.checked(newer)
    site.approves(newer)
    site.lands(newer)
    assert site.clones[site.lib].shows("free") == "1"
