"""Words: what people read is plain English, with one word for one thing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
    *sorted((ROOT / "docs/decisions").glob("*.md")),
]
GLOSSARY = ROOT / "docs/glossary.md"
SUCCESSORS = {
    "what came of": "result, outcome",
    "what comes of": "result, outcome",
    "is told": "receives, is notified",
    "are told": "receive, are notified",
    "is said": "the text that says it, in the active voice",
    "anew": "again",
    "none but": "only",
    "of which nothing": "a sentence of its own",
    "goes on where": "continues where",
    "for want of": "because ... is missing",
    "is no more": "has ended, no longer exists",
    "in words": "with a reason",
}
"""Phrases that a reader parses twice, and what to write instead."""
ALLOWED = {"docs/security.md": 17}
"""Occurrences that are left, by page: lower these numbers."""
ELSEWHERE_MAX = 2
"""Occurrences that any other page may have."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_written_in_plain_english(page: Path) -> None:
    text = " ".join(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL).split())
    found = {phrase: n for phrase in SUCCESSORS if (n := len(re.findall(rf"\b{phrase}\b", text, re.IGNORECASE)))}
    left = ALLOWED.get(str(page.relative_to(ROOT)), ELSEWHERE_MAX)
    assert sum(found.values()) <= left, {phrase: SUCCESSORS[phrase] for phrase in found}


def test_no_text_cites_a_document_that_is_not_here() -> None:
    cites = [path for part in ("src", "docs") for path in (ROOT / part).rglob("*") if path.suffix in {".py", ".md"}]
    assert not [str(path.relative_to(ROOT)) for path in cites if "\N{SECTION SIGN}" in path.read_text()]


def test_every_term_of_the_glossary_is_defined_once() -> None:
    terms = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text(), re.MULTILINE)
    words = [word.strip() for term in terms if term not in {"term", "---"} for word in term.split(",")]
    assert len(words) > 70 and len(words) == len(set(words))
