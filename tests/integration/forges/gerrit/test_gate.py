"""Test a gate on a real Gerrit with `headgate run`: proposed, checked, voted on, gated with others, landed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.repositories import Repositories
from headgate.testing.servers.gerrit import LocalGerrit
from headgate.testing.servers.gerritpeople import PASSWORD, Clone, ReviewingChange, ReviewingPeople
from tests.waiting import wait_for

from ....e2e.headgate import Headgate

PAGE = Path(__file__).parents[4] / "docs/how-to/use-gerrit.md"
PIPELINES = next(block for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S) if "- pipeline:" in block)
"""Use the settings of the page."""
JOBS = """
- job: {name: base, parent: null, abstract: true}
- job: {name: unit, run: jobs/unit}
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
test ! -e BROKEN
"""


class Site:
    """Provide projects of one gate, and the gate."""

    def __init__(self, running: LocalGerrit, root: Path) -> None:
        self.gerrit, self.people = running, ReviewingPeople(running.url)
        self.suffix = f"{os.getpid()}-{running.port}"
        self.config, self.api, self.lib = (f"{name}-{self.suffix}" for name in ("config", "code/api", "code/lib"))
        self.clones: dict[str, Clone] = {}
        for name in (self.config, self.api, self.lib):
            self.people.project(name)
            person = self.people.admin if name == self.config else self.people.alice
            self.clones[name] = Clone(person, name, root / "work" / name)
        self.clones[self.config].pushes({"zuul.yaml": PIPELINES + JOBS, "jobs/unit": UNIT})
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

    def proposes(self, project: str, files: dict[str, str], message: str = "", **how: Any) -> ReviewingChange:
        return self.clones[project].proposes(files, message, **how)

    def status(self, change: ReviewingChange) -> str:
        return str(self.people.alice.looks(change.number)["status"])

    def verified(self, change: ReviewingChange) -> int:
        """Return Headgate's votes."""
        label = self.people.alice.looks(change.number, "DETAILED_LABELS", "DETAILED_ACCOUNTS")["labels"]["Verified"]
        return sum(one.get("value", 0) for one in label.get("all", []) if one.get("username") == "headgate")

    def messages(self, change: ReviewingChange) -> list[str]:
        found = self.people.alice.looks(change.number, "MESSAGES", "DETAILED_ACCOUNTS")["messages"]
        return [one["message"] for one in found if one["author"].get("username") == "headgate"]

    def tags(self, change: ReviewingChange) -> set[str]:
        return {one.get("tag", "") for one in self.people.alice.looks(change.number, "MESSAGES")["messages"]}

    def checked(self, *changes: ReviewingChange, value: int = 1) -> None:
        for change in changes:
            wait_for(f"change {change.number} is checked", lambda change=change: self.verified(change) == value)

    def approves(self, *changes: ReviewingChange) -> None:
        for change in changes:
            self.people.bob.votes(change.number, Code_Review=2)

    def lands(self, *changes: ReviewingChange) -> None:
        for change in changes:
            try:
                wait_for(f"change {change.number} lands", lambda change=change: self.status(change) == "MERGED")
            except AssertionError as error:
                raise AssertionError(f"{error}: {self.messages(change)}") from error


@pytest.fixture(scope="module")
def site(running: LocalGerrit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
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


@pytest.mark.long
def test_a_recheck_comment_causes_a_new_test_and_other_comments_do_not(site: Site) -> None:
    change = site.proposes(site.api, {"again": "1\n"})
    site.checked(change)
    site.people.bob.votes(change.number, "why not recheck it some day")
    site.people.bob.votes(change.number, "recheck")
    wait_for("it is tested again", lambda: len(site.messages(change)) == 2)
    assert site.status(change) == "NEW"


@pytest.mark.long
def test_a_vote_that_is_too_early_is_answered_once_with_the_missing_requirements(site: Site) -> None:
    """Gerrit cannot edit messages, so Headgate comments again only when another requirement is missing, and not when
    it enters."""
    change = site.proposes(site.lib, {"BROKEN": "2\n"})
    site.checked(change, value=-1)
    site.approves(change)

    def refusals() -> list[str]:
        return [text for text in site.messages(change) if "was not enqueued in gate" in text]

    wait_for("it is said why it does not come in", refusals)
    site.people.bob.votes(change.number, "please", Code_Review=2)
    site.people.bob.votes(change.number, "recheck")
    wait_for("it is tested again", lambda: sum("unit" in text for text in site.messages(change)) == 2)
    (refusal,) = refusals()
    assert "Verified" in refusal and "Code-Review" not in refusal
    assert "autogenerated:headgate:gate" in site.tags(change) and site.status(change) == "NEW"


@pytest.mark.long
def test_of_three_that_are_gated_together_the_one_that_fails_does_not_land(site: Site) -> None:
    good, bad, last = (
        site.proposes(site.api, {"good": "1\n"}),
        site.proposes(site.lib, {"BROKEN": "1\n"}),
        site.proposes(site.lib, {"last": "1\n"}),
    )
    site.checked(good, last)
    site.checked(bad, value=-1)
    site.people.headgate.votes(bad.number, Verified=1)  # somebody is sure that the change is not at fault
    site.approves(good, bad, last)
    site.lands(good, last)
    wait_for("the one that fails is told so", lambda: site.verified(bad) == -2)
    assert site.status(bad) == "NEW" and site.clones[site.lib].shows("BROKEN") == ""
    assert site.clones[site.lib].shows("last") == "1"


@pytest.mark.long
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


@pytest.mark.long
def test_changes_of_one_topic_land_together(site: Site) -> None:
    topic = f"topic=trip-{site.suffix}"
    one = site.proposes(site.api, {"trip": "1\n"}, options=[topic])
    site.checked(one)
    other = site.proposes(site.lib, {"trip": "2\n"}, options=[topic])
    site.checked(other)
    site.approves(one)
    wait_for("it says what it waits for", lambda: any("/lib-" in text for text in site.messages(one)))
    assert site.status(one) == "NEW"
    site.approves(other)
    site.lands(one, other)
    assert site.clones[site.api].shows("trip") == "1" and site.clones[site.lib].shows("trip") == "2"


@pytest.mark.long
def test_a_footer_with_a_url_or_a_change_id_delays_a_change_until_the_other_one_lands(site: Site) -> None:
    first = site.proposes(site.lib, {"first": "1\n"})
    url = f"{site.gerrit.url}/c/{site.lib}/+/{first.number}"
    second = site.proposes(site.api, {"second": "1\n"}, f"Use it\n\nDepends-On: {url}")
    third = site.proposes(site.api, {"third": "1\n"}, f"Use it, too\n\nDepends-On: {first.change_id}")
    nobody = f"I{'0' * 40}"
    other = site.proposes(site.api, {"other": "1\n"}, f"Use what is not there\n\nDepends-On: {nobody}")
    site.checked(first, second, third, other)
    assert any(nobody in text and "it is ignored" in text for text in site.messages(other))
    site.approves(second, third)
    message = f"#{first.number}"
    for one in (second, third):
        wait_for("it says what it waits for", lambda one=one: any(message in text for text in site.messages(one)))
        assert site.status(one) == "NEW"
    site.approves(first)
    site.lands(first, second, third)


@pytest.mark.long
def test_an_unmet_rule_is_reported_and_waited_for(site: Site) -> None:
    change = site.proposes(site.api, {"rule": "1\n"})
    site.checked(change)
    site.people.requires(site.api, "Settled", "-has:unresolved")
    site.people.bob.remarks(change.number, "rule", "why?")
    site.approves(change)
    wait_for("it says so", lambda: any("Settled" in text for text in site.messages(change)))
    assert site.status(change) == "NEW" and not site.headgate.items("gate")
    site.people.resolves(change.number)
    site.lands(change)


@pytest.mark.long
def test_a_negative_vote_removes_a_change_from_the_queue(site: Site) -> None:
    held = site.proposes(site.api, {"HOLD": "1\n"})
    site.checked(held)
    site.approves(held)
    wait_for("it is in the gate", lambda: site.headgate.items("gate"))
    site.people.bob.votes(held.number, "no, wait", Code_Review=-2)
    wait_for("it has left", lambda: not site.headgate.items("gate"))
    assert site.status(held) == "NEW"
    site.people.alice.abandons(held.number)


@pytest.mark.long
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
