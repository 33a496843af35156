"""Test the arena itself: a harmless change lands like everybody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from .arena import ATTACKER, Arena


@pytest.mark.long
def test_in_an_arena_without_an_attack_everybody_lands(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        commit = arena.attack("harmless", "#!/bin/sh\necho harmless\n")
        assert "Build succeeded" in arena.note_section(ATTACKER, commit, "check")
        assert "harmless" in arena.job_log("example", "attack")
        assert not arena.landed(ATTACKER, "jobs/attack")
        arena.approve(ATTACKER, "harmless")
        assert arena.neighbours_land() > 0
        assert "Landed on master" in arena.note_section(ATTACKER, commit, "gate")
