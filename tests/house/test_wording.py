"""Words: what people read is plain English, with one word for one thing."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/headgate"
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
GLOSSARY = ROOT / "docs/glossary.md"
SUCCESSORS = {
    "what (?:came|comes|became|becomes) of": "result, outcome",
    "(?:is|are|was|were) told": "receives, is notified, or name the text: the report says",
    "(?:is|are|was|were) said": "name the text that says it, in the active voice",
    "nobody tells": "no report, no process reports",
    "anew": "again",
    "none but": "only",
    "(?:of|on) which nothing": "a sentence of its own",
    "(?:goes|go|going) on": "continues",
    "for want of": "because ... is missing",
    "(?:is|are) no more(?! than)": "has ended, no longer exists",
    "not any more": "no longer",
    "in words": "with a reason, as text",
    "all the same": "nevertheless, anyway",
    "by (?:itself|themselves)": "automatically, on its own",
    "(?:is|are) not to be": "must not be",
    "(?:is|are|be) had": "exists, is available",
    "at a look": "at a poll, at a check",
    "a look(?!-)": "a poll, a check, a query",
    "a text(?! (?:file|descriptor))": "a string, a message",
    "of the whole": "of the system, of the file: say of which",
    "in the place of": "instead of",
    "where it lies": "where it is stored",
    "whose it is": "its owner, its tenant",
    "is nobody's": "belongs to nobody",
    "it is there": "it exists",
    "without number": "unlimited",
    "stands? still": "stops, waits",
    "as it stands": "unchanged",
    "in vain": "without effect, for nothing",
    "beside (?:it|them|that|this|these|those|its|their|a|an|one|the)": "next to, in the directory of, in addition to",
    "since when": "how long, or when it began",
    "until when": "for how long, or the time until which",
    "again and again": "repeatedly",
    "(?:is|are|was|were|be|being|not|then) given back": "is returned, is released",
    "gives? (?:it|them|everything) back": "returns, releases",
    "at (?:its|their) start(?!-)": "when it starts",
    ", also (?:if|when|after|where|while)": "even if, even after; or a sentence of its own",
    "(?:store|server|forge|provider|receiver|service|database) is away": "is unavailable, is down",
    "without end": "endless, endlessly",
    "(?:is|are) half.made": "incomplete",
    "at once": "immediately; or concurrently, together, in one request, at the same time",
    "for ever": "forever",
    "for good": "permanently",
}
"""Phrases (regular expressions) that a reader parses twice, and what to write instead."""
IN_SOURCE = {
    **SUCCESSORS,
    "beside(?= [\\w`])": "next to, alongside, besides",
    "in vain": "without result, or say what does not happen",
    "has run out": "has expired",
    "look-ups?": "lookup",
    "answers (?:with )?(?:status )?[1-5]\\d\\d": "returns status 404",
    "as above": "say it again, or name where to look",
}
"""Further phrases that code does not use, in the same form."""
ANY = re.compile(rf"\b(?:{'|'.join(IN_SOURCE)})", re.IGNORECASE)
OPENINGS = {
    "Most (?!of)": "Maximum number of",
    "Tell whether": "Return whether",
    "Note that": "Record that",
    "(?:Hold|Return|Give) (?:what|everything)": "name it: the settings of a driver, the pause in seconds",
    "Take `": "Create …, and then a sentence about each argument",
    "Say (?:when|what|which|who|how)": "Define, or name it",
}
"""Beginnings of docstrings (regular expressions), and what to write instead."""
LONELY = re.compile(r"See `[^`]+`\.")
"""A docstring that only sends its reader elsewhere."""


def _odd(text: str, phrases: Mapping[str, str] = SUCCESSORS) -> Counter[str]:
    """Count the phrases in a text, whose lines may be broken anywhere."""
    # Code is quoted: it may contain what a program prints, or a name of Zuul.
    text = " ".join(re.sub(r"```.*?```|`[^`\n]*`", "``", text, flags=re.DOTALL).split())
    # Most texts have none, so one search for all of them decides first.
    if not ANY.search(text):
        return Counter()
    return Counter({phrase: n for phrase in phrases if (n := len(re.findall(rf"\b{phrase}\b", text, re.IGNORECASE)))})


def _hints(found: Counter[str]) -> dict[str, str]:
    return {phrase: SUCCESSORS[phrase] for phrase in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_written_in_plain_english(page: Path) -> None:
    found = _odd(page.read_text())
    assert not found, _hints(found)


@cache
def _sources() -> dict[Path, str]:
    """Read the modules of Headgate, except those that a compiler of protocols generated."""
    return {path: path.read_text() for path in sorted(PACKAGE.rglob("*.py")) if not path.name.endswith("_pb2.py")}


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the string constants (docstrings among them) and the blocks of comments of a module, each with its line."""
    for node in ast.walk(ast.parse(source)):
        # A string without a blank is a name: a key, or the tag of a record.
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            # A phrase may begin on one line of a comment and end on the next.
            if block and token.start[0] != last + 1:
                yield last, " ".join(block)
                block = []
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    yield last, " ".join(block)


def test_the_source_is_written_in_plain_english() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {phrase} -> {IN_SOURCE[phrase]}"
        for path, source in _sources().items()
        # Tokens take seconds, and most modules have none of the phrases. Quotes and # occur where a text is broken.
        if ANY.search(re.sub(r"(?:[\"']\s+f?[\"']|[\s\"'#])+", " ", source))
        for line, text in _texts(source)
        for phrase in _odd(text, IN_SOURCE).elements()
    ]
    assert not found, "\n".join(found)


def _docstrings(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each docstring in the modules whose source matches the pattern."""
    for path, source in _sources().items():
        if not re.search(pattern, source):
            continue
        # Docstrings are expressions that consist of a string, also those below an attribute.
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", " ".join(node.value.value.split())


def test_every_docstring_says_what_its_own_code_does() -> None:
    lonely = [place for place, text in _docstrings("See `") if LONELY.fullmatch(text)]
    assert not lonely, f"say what it does, then where to read more: {lonely}"


def test_docstrings_open_with_the_usual_words() -> None:
    opening = rf"(?:{'|'.join(OPENINGS)})"
    found = [
        f"{place}: {opened} -> {better}"
        for place, text in _docstrings(rf'"""{opening}')
        for opened, better in OPENINGS.items()
        if re.match(opened, text)
    ]
    assert not found, "\n".join(found)


def test_no_text_cites_a_document_that_is_not_here() -> None:
    cites = [path for part in ("src", "docs") for path in (ROOT / part).rglob("*") if path.suffix in {".py", ".md"}]
    assert not [str(path.relative_to(ROOT)) for path in cites if "\N{SECTION SIGN}" in path.read_text()]


def test_every_term_of_the_glossary_is_defined_once() -> None:
    terms = re.findall(r"^\| ([^|]+) \|", GLOSSARY.read_text(), re.MULTILINE)
    words = [word.strip() for term in terms if term not in {"term", "---"} for word in term.split(",")]
    assert len(words) > 70 and len(words) == len(set(words))
