"""Test held builds: only the executor's user can read them, and only authorised people create or end holds."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.testing.clock import DEADLINE_S
from tests.waiting import wait_for

from .arena import ATTACKER, Arena
from .test_authority import status_of

TREASURE = "treasure-of-the-neighbour"
AUTOHOLDS = "/api/tenant/example/autohold"
ASK = "/api/tenant/example/project/code/api/autohold"
WANTED = {"job": "unit", "count": 1, "reason": "mine", "node_hold_expiration": None}
THEFT = """#!/usr/bin/env python3
import json, os, pathlib, urllib.error, urllib.request

place = pathlib.Path("{directory}")
for path in (place, place / "work", place / "work/src/git.example/code/lib/treasure", place.parent):
    try:
        found = os.listdir(path) if path.is_dir() else path.read_text()
        print("SAW", [name for name in found if name != os.environ["ZUUL_BUILD"]] if path == place.parent else found)
    except OSError as error:
        print("refused", error.errno)
for root, _, files in os.walk(place.parents[2]):
    for name in files:
        try:
            if name != "attack" and "{treasure}" in pathlib.Path(root, name).read_text(errors="replace"):
                print("FOUND", root, name)
        except OSError:
            pass
for method, path, body in (("POST", "{ask}", {wanted}), ("DELETE", "{holds}/{id}", None)):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request("{url}" + path, data, {{"Content-Type": "application/json"}}, method=method)
    try:
        print("ANSWERED", urllib.request.urlopen(request, timeout=5).status)
    except urllib.error.HTTPError as error:
        print("answered", error.code)
    except OSError as error:
        print("unreachable", error)
"""


def holds(arena: Arena) -> list[Any]:
    return list(arena.headgate.get(AUTOHOLDS))


def autohold_output(arena: Arena, *words: str) -> str:
    command = [str(Path(sys.executable).with_name("headgate")), "autohold", *words, "--url", arena.headgate.url]
    place = arena.headgate.root
    done = subprocess.run(
        [*command, "--tenant", "example"], cwd=place, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_a_held_build_is_seen_and_ended_only_with_permission_and_outlives_its_executor(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        headgate = arena.headgate
        wait_for("the pipelines are known", lambda: headgate.get("/api/tenant/example/pipelines"))
        assert "has no job 'units'; did you mean 'unit'?" in autohold_output(arena, "code/lib", "units")
        assert "unit of git.example/code/lib, 0 of 1 held: look" in autohold_output(
            arena, "code/lib", "unit", "--reason", "look"
        )
        (hold,) = holds(arena)
        commit = arena.propose("code/lib", "broken", {"BROKEN": "x\n", "treasure": TREASURE})
        assert "Build failed" in arena.note_section("code/lib", commit, "check")
        (held,) = holds(arena)[0]["nodes"]
        assert (held["directory"], held["executor"], holds(arena)[0]["current_count"]) == ("", "", 1), "it is not told"
        (place,) = (tmp_path / "state/builds").iterdir()
        assert place.name == held["build"] and str(place) in autohold_output(arena, "show", hold["id"])
        assert "Held for autohold" in arena.job_log("example", "unit")
        assert headgate.get(f"/api/tenant/example/build/{held['build']}")["held"]

        assert headgate.stop() == 0
        headgate.start()
        treasure = place / "work/src/git.example/code/lib/treasure"
        assert treasure.read_text() == TREASURE and stat.S_IMODE(place.stat().st_mode) == 0o700
        script = THEFT.format(
            directory=place, treasure=TREASURE, ask=ASK, wanted=WANTED, holds=AUTOHOLDS, id=hold["id"], url=headgate.url
        )
        arena.note_section(ATTACKER, arena.attack("theft", script), "check")
        log = arena.job_log("example", "attack")
        lines = [line.partition(" | ")[2] for line in log.splitlines()]
        assert [line for line in lines if line.startswith("refused")], log
        assert not [line for line in lines if line.startswith(("FOUND", "ANSWERED")) or TREASURE in line], log
        assert not [line for line in lines if line.startswith("SAW") and line != "SAW []"], log
        for url, method in ((ASK, "POST"), (f"{AUTOHOLDS}/{hold['id']}", "DELETE")):
            assert status_of(headgate.url + url, WANTED, method=method) == 401
        operator = {"Authorization": f"Bearer {(tmp_path / 'state/token').read_text().strip()}"}
        of_another = f"{AUTOHOLDS.replace('example', 'other')}/{hold['id']}"
        for method in ("GET", "DELETE"):
            assert status_of(headgate.url + of_another, None, operator, method) == 404
        assert headgate.get("/api/tenant/other/autohold") == []
        assert [one["id"] for one in holds(arena)] == [hold["id"]] and treasure.exists()

        assert "and released its builds" in autohold_output(arena, "delete", hold["id"])
        wait_for("it is cleared away", lambda: not place.exists())
        assert autohold_output(arena, "list") == "There are no autoholds.\n"
        arena.neighbours_land()
