"""Test that strings of proposals and jobs that a database refuses keep no builds out of the history."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from headgate.testing.servers.databases import new_database
from tests.waiting import wait_for

from .arena import ATTACKER, LAND_S, NEIGHBOURS, Arena

LONG = "j" * 400
RETURNS = r"""#!/bin/sh
cat >data <<'E'
{"zuul": {"log_url": "https://logs.example/\u0000", "artifacts": [
  {"name": "a\u0000b", "url": "https://x.example/\u0000y", "metadata": {"\u0000": "\ud800", "type": "long"}}
]}, "own": "\u0000"}
E
headgate-return --json data
exit 0
"""
OWN = f"""
- job: {{name: odd, run: returns, provides: ["p\\0", "{LONG}"]}}
- job: {{name: "n\\0ul", run: returns}}
- job: {{name: {LONG}, run: returns}}
- project: {{check: {{jobs: [%s]}}}}
"""
JOBS = ("odd", '"n\\0ul"', LONG)


@pytest.mark.long
def test_strange_values_that_a_database_refuses_keep_no_build_out_of_the_history(
    tmp_path: Path, postgres_server: str
) -> None:
    settings = f"[database]\ndburi = {new_database(postgres_server).replace('://', '+psycopg://')}\n"
    with Arena(tmp_path, settings=settings) as arena:
        commits = []
        for number, job in enumerate(JOBS):
            files = {"zuul.yaml": OWN % job, "returns": RETURNS}
            commits.append(arena.propose(ATTACKER, f"odd{number}", files))
        for commit in commits:
            arena.note_section(ATTACKER, commit, "check")
        arena.neighbours_land()
        for tenant, project in zip(("example", "other"), NEIGHBOURS, strict=True):
            place = f"/api/tenant/{tenant}/builds?complete=true&project={project}&pipeline=gate"
            wait_for(f"{project} is in the history", partial(arena.headgate.get, place), LAND_S)
        every = f"/api/tenant/example/buildsets?complete=true&project={ATTACKER}"
        wait_for("what was told is kept", lambda: len(arena.headgate.get(every)) == len(JOBS), LAND_S)
        assert "cannot be" not in arena.log, arena.log
