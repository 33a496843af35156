"""Measure `headgate check` and `headgate freeze --all` on a tenant of many repositories."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pygit2
import yaml

REPOSITORIES = 1_300
PIPELINES = ("check", "gate", "post", "periodic")
_ME = pygit2.Signature("Ada", "ada@example.org", 1_700_000_000, 0)


def _central() -> list[dict[str, Any]]:
    return [
        *(
            {
                "pipeline": {
                    "name": name,
                    "manager": "dependent" if name == "gate" else "independent",
                    "trigger": {"hub": [{"event": "change-proposed"}]},
                    "success": {"hub": {}},
                }
            }
            for name in PIPELINES
        ),
        {"job": {"name": "base", "parent": None, "abstract": True, "timeout": 1800, "pre-run": "pre.yaml"}},
        *({"job": _shared(n)} for n in range(201)),
        *(
            {
                "project-template": {
                    "name": f"standard-{n}",
                    **{p: {"jobs": [f"shared-{n}", f"shared-{n + 1}"]} for p in ("check", "gate")},
                }
            }
            for n in range(50)
        ),
    ]


def _shared(n: int) -> dict[str, Any]:
    return {
        "name": f"shared-{n}",
        "description": "A job that many projects use,\nwith some words about it.\n",
        "run": f"playbooks/shared-{n}.yaml",
        "post-run": "playbooks/post.yaml",
        "vars": {"level": n, "packages": ["gcc", "make"]},
    }


def _own(n: int) -> list[dict[str, Any]]:
    kinds = ("unit", "lint", "docs", "functional", "upgrade")
    upgrade = {f"p{n}-upgrade": {"dependencies": [f"p{n}-unit"], "voting": False}}
    jobs = [f"p{n}-{kind}" for kind in ("unit", "lint", "functional")]
    return [
        *({"job": _job(n, kind)} for kind in kinds),
        {
            "project": {
                "templates": [f"standard-{n % 50}"],
                "queue": "shared",
                "check": {"jobs": [*jobs, upgrade]},
                "gate": {"jobs": jobs},
                "post": {"jobs": [f"p{n}-docs"]},
            }
        },
    ]


def _job(n: int, kind: str) -> dict[str, Any]:
    return {
        "name": f"p{n}-{kind}",
        "parent": f"shared-{n % 200}",
        "description": f"What {kind} means here.\n",
        "run": f"playbooks/{kind}.yaml",
        "nodeset": {"nodes": [{"name": "controller", "label": "small"}]},
        "required-projects": ["org/p0", "org/p1"],
        "irrelevant-files": ["^docs/.*$", "^.*\\.md$"],
        "vars": {"kind": kind, "settings": {"retries": n % 7, "flags": ["one", "two"]}},
    }


def make(root: Path, count: int = REPOSITORIES, branches: tuple[str, ...] = ("master", "stable")) -> Path:
    """Make a tenant file, and its bare repositories below `root`/repos; return the file."""
    _repository(root / "repos/hub/org/config", {"zuul.yaml": _central()}, ("master",))
    for n in range(count - 1):
        _repository(root / f"repos/hub/org/p{n}", {".zuul.yaml": _own(n)}, branches)
    projects = {"config-projects": ["org/config"], "untrusted-projects": [f"org/p{n}" for n in range(count - 1)]}
    tenants = root / "tenants.yaml"
    tenants.write_text(yaml.safe_dump([{"tenant": {"name": "large", "source": {"hub": projects}}}]))
    return tenants


def _repository(place: Path, files: dict[str, list[dict[str, Any]]], branches: tuple[str, ...]) -> None:
    repository = pygit2.init_repository(str(place), bare=True, initial_head=branches[0])
    builder = repository.TreeBuilder()
    for name, stanzas in files.items():
        blob = repository.create_blob(yaml.dump(stanzas, Dumper=yaml.CSafeDumper, sort_keys=False).encode())
        builder.insert(name, blob, pygit2.enums.FileMode.BLOB)
    commit = repository.create_commit(None, _ME, _ME, "Begin", builder.write(), [])
    for branch in branches:
        repository.references.create(f"refs/heads/{branch}", commit)


def measure(count: int = REPOSITORIES) -> dict[str, tuple[float, float]]:
    """Return command -> seconds, and MB of its largest process."""
    headgate = Path(sys.executable).parent / "headgate"
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        tenants = make(Path(name), count)
        proposal = Path(name, "proposal/hub/org/p1/.zuul.yaml")
        proposal.parent.mkdir(parents=True)
        proposal.write_text(yaml.safe_dump(_own(1), sort_keys=False).replace("retries: 1", "retries: 9"))
        given = ["--tenant-config", str(tenants), "--repos", f"{name}/repos", "--json"]
        commands = {
            "check": ["check"],
            "explain job": ["explain", "job", f"p{count - 2}-docs"],
            "freeze --all": ["freeze", "--all"],
            "freeze --diff": ["freeze", "--diff", f"{name}/proposal"],
        }
        for title, command in commands.items():
            start = time.perf_counter()
            process = subprocess.Popen([headgate, *command, *given], stdout=subprocess.DEVNULL)
            # wait4 reports this child alone; RUSAGE_CHILDREN the largest of all so far.
            _, _, used = os.wait4(process.pid, 0)
            found[title] = time.perf_counter() - start, used.ru_maxrss / 1024
    return found
