from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.testing.repositories import Repositories
from headgate.testing.servers.databases import new_database

PIPELINES = """
- pipeline:
    name: check
    manager: independent
    trigger:
      local:
        - event: change-proposed
    success:
      local: {}
    failure:
      local: {}

- pipeline:
    name: gate
    manager: dependent
    trigger:
      local:
        - event: change-approved
    require:
      local:
        approved: true
    success:
      local:
        land: true
    failure:
      local: {}

- job:
    name: base
    parent: null
    abstract: true

- job:
    name: unit
    run: jobs/unit

- project:
    name: ^code/.*
    queue: integrated
    check:
      jobs: [unit]
    gate:
      jobs: [unit]
"""

TENANTS = """
- tenant:
    name: example
    source:
      local:
        config-projects:
          - config
        untrusted-projects:
          - code/api
          - code/lib
"""
MACHINE_TENANTS = """
- tenant:
    name: example
    source:
      local:
        config-projects:
          - config: {include: [pipeline, job, project, image, flavor, label, section, provider]}
        untrusted-projects: [code/api]
"""
"""Provide a gate whose configuration defines machines and their images."""


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    """Provide a config project and two code projects that share a queue."""
    found = Repositories(tmp_path)
    found.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\nexit 0\n"})
    found.create("code/api", {"README": "api\n"})
    found.create("code/lib", {"README": "lib\n"})
    return found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Provide a disk of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "headgate-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture(scope="module")
def database(postgres_server: str) -> str:
    return new_database(postgres_server)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    sqlite = request.param == "sqlite"
    return f"sqlite:///{tmp_path / 'messages.sqlite'}" if sqlite else request.getfixturevalue("database")
