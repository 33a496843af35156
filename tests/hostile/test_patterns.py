"""Test that no pattern in a proposal blocks anybody, and all are matched correctly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .arena import ATTACKER, Arena

LONG = "a" * 40 + "!"
"""A file name that a backtracking engine reads again and again."""
ENDLESS = (
    "^(?=(a+)+$)",
    "(?!b)(a+)+$",
    "(?!b)(a|aa)+$",
    "(?!b)((a*)*)*$",
    "(?=(?:(?:(?:a|a)*)*)*$)",
    "(?<!x)(?:[a-z]+)*$",
    "(?!b)(.*a){30}$",
    "(?:(?!(?:a|aa)+$).)*!!",
    "(?=(?:a{1000}){1000})a",
    "(?>(?:a|aa)+)(?!!)$",
)
"""Patterns that kept the process busy for ever when matched with `LONG`."""
UNTOLD = "^(a*)*\\1b"
"""Patterns that no engine can decide quickly: they refer to a group within repetitions."""


def jobs(key: str, patterns: tuple[str, ...]) -> str:
    own = "run: jobs/never, match-on-config-updates: false"
    made = [f"- job: {{name: p{n}, {own}, {key}: ['{pattern}']}}\n" for n, pattern in enumerate(patterns)]
    return "".join(made) + f"- project: {{check: {{jobs: [{', '.join(f'p{n}' for n in range(len(patterns)))}]}}}}\n"


@pytest.mark.long
def test_no_pattern_of_a_proposal_keeps_anybody_waiting(tmp_path: Path) -> None:
    with Arena(tmp_path) as arena:
        files = {LONG: "x\n", "jobs/never": "#!/bin/sh\nexit 1\n"}
        commits = {}
        for name, text in {
            "files": jobs("files", ENDLESS),
            "branches": jobs("branches", ENDLESS),
            "sections": "- project: {branches: ['(?!b)((((.*)*)*)*)*$', '^master$'], check: {jobs: [unit]}}\n",
            "untold": jobs("files", (UNTOLD,)),
            "irrelevant": jobs("irrelevant-files", (UNTOLD,)),
            "many": jobs("files", tuple(f"^(?!{n})(a*)*\\1b{n}$" for n in range(60))),
        }.items():
            commits[name] = arena.propose(ATTACKER, f"pattern-{name}", {"zuul.yaml": text, **files})
        assert arena.neighbours_land() < 90
        for name, fitting in (("files", []), ("branches", ["p5"]), ("sections", [])):
            note = arena.note_section(ATTACKER, commits[name], "check")
            assert "- unit " in note and re.findall(r"^- (p\d+) ", note, re.MULTILINE) == fitting, f"{name}: {note}"
        for name in ("untold", "irrelevant", "many"):
            note = arena.note_section(ATTACKER, commits[name], "check")
            assert "steps; write a simpler pattern" in note and "(a*)*" in note and "zuul.yaml" in note, note
        assert arena.neighbours_land() < 90
