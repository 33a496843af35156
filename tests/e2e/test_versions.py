"""Test that jobs of one change run on the Ansible versions that they request, on a running Headgate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.adapters.ansible.versions import Environments
from headgate.testing.repositories import Repositories
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .ansible import fetched
from .headgate import SETTINGS, Headgate

PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - command: "echo runs {{ ansible_version.full }} asked {{ zuul.ansible_version }} {{ word }}"
      register: said
    - set_fact: {known: "{{ said.stdout }}", cacheable: true}
"""
POST = """
- hosts: localhost
  gather_facts: false
  tasks:
    - zuul_return: {data: {said: "{{ known }}", phase: "{{ zuul_success }}"}}
"""
ZUUL = """
- job: {name: nine, run: play.yaml, post-run: post.yaml, ansible-version: 9, vars: {word: "{{ 'a' }}b"}}
- job: {name: any, run: play.yaml, post-run: post.yaml, vars: {word: plain}}
- job: {name: eleven, run: play.yaml, ansible-version: 11}
- project: {gate: {jobs: [nine, any, eleven]}}
"""


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    return fetched(tmp_path_factory.mktemp("locks"))


@pytest.fixture
def site(tmp_path: Path, environments: Environments) -> Iterator[Headgate]:
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\n"})
    repositories.create("code/api", {"README": "api\n"})
    repositories.create("code/lib", {"README": "lib\n"})
    running = Headgate(repositories, TENANTS, settings=f"{SETTINGS}ansible_root = {environments.root}\n")
    running.start()
    yield running
    running.stop()


@pytest.mark.long
def test_jobs_of_one_change_run_on_the_versions_that_they_ask_for(site: Headgate) -> None:
    site.repositories.propose("code/api", "topic", {"zuul.yaml": ZUUL, "play.yaml": PLAY, "post.yaml": POST})
    site.repositories.approve("code/api", "topic")

    def ended() -> dict[str, dict[str, str]]:
        found = {
            b["job_name"]: b for b in site.get("/api/tenant/example/builds?complete=true&pipeline=gate&change=topic")
        }
        return found if {"nine", "any", "eleven"} <= set(found) else {}

    builds = wait_for("all builds have ended", ended, 120)
    assert len({build["buildset"]["uuid"] for build in builds.values()}) == 1
    logs = {job: (site.root / "state/logs" / build["uuid"] / "job-output.txt") for job, build in builds.items()}
    texts = {job: log.read_text() for job, log in logs.items()}
    assert builds["nine"]["result"] == builds["any"]["result"] == "SUCCESS", "".join(texts.values())
    assert "localhost | runs 2.16." in texts["nine"] and "asked 9 ab" in texts["nine"]
    assert "Ansible 9 (ansible-core 2.16." in texts["nine"]
    assert "localhost | runs 2.19." in texts["any"], "which is beside Headgate"
    assert builds["eleven"]["result"] == "ERROR"
    assert "requests Ansible 11" in texts["eleven"] and "headgate ansible install 11" in texts["eleven"]
    returned = site.get(f"/api/tenant/example/build/{builds['nine']['uuid']}")
    assert returned["result"] == "SUCCESS" and "POST-RUN END: good" in texts["nine"]
