"""Test that a forge shows quoted text in reports literally, as plain text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from headgate.adapters.forges.reporter import APART, inert
from tests.tiers import share

MARKDOWN = MarkdownIt("gfm-like", {"html": True, "linkify": False})
"""Parse it as forges do: CommonMark with tables, strikethrough and HTML."""
ACTS = {"image", "html_inline", "html_block", "link_open", "fence"}
PIECES = st.sampled_from(
    ["[x]", "(http://evil.example)", "(javascript:a)", "![", "]", "<img src=x>", "<!-- headgate gate -->", "</details>",
     "```\n", "~~~\n", "&#64;admin", "&lt;", "_@admin_", "\n", "\n\n", "    ", "- ", "> ", "`", "*", "[x]: /y\n",
     "<a href=/y>", "\\", "word", "![i](/p.png)", "[a][b]", "1. ", "\t", "<script>", "@", "@org/team"]
)  # fmt: skip


def kinds(text: str) -> set[str]:
    """Return the kinds of all tokens that Markdown finds."""
    found = set[str]()
    for token in MARKDOWN.parse(text):
        found |= {token.type, *(inner.type for inner in token.children or ())}
    return found


@pytest.mark.parametrize(
    "text",
    ["[click](http://evil.example)", "![seen](http://evil.example/p.png)", "<img src=x>", "<!-- headgate gate -->",
     "[a][b]\n\n[b]: http://evil.example", "```\nall that follows", "> ~~~\nall that follows", "<a href='/x'>y</a>"],
)  # fmt: skip
def test_text_that_would_act_as_markup_is_shown_as_text(text: str) -> None:
    assert kinds(text) & ACTS, "the example acts unless something is done"
    assert not kinds(inert(text)) & ACTS
    assert inert(text).replace(APART, "") == text, "people read what was written"


@pytest.mark.parametrize("text", ["@admin", "_@admin_", "*@org/team*", "(@admin)", "cc:@admin"])
def test_a_mention_is_broken_up_so_that_it_calls_nobody(text: str) -> None:
    assert f"@{APART}" in inert(text)


def test_character_entities_are_not_decoded() -> None:
    assert "@admin" not in MARKDOWN.render(inert("&#64;admin &commat;admin"))


@pytest.mark.parametrize(
    "text", ["https://ci.example/t/x?a=1&amp;b=2#12", "ada@example.org", "a < b && c > d", "x[1] = 2"]
)
def test_links_and_plain_text_stay_unchanged(text: str) -> None:
    assert inert(text) == text


@settings(max_examples=share(300))
@given(st.lists(PIECES, max_size=14).map("".join))
def test_no_mixture_of_markup_acts(text: str) -> None:
    assert not kinds(inert(text)) & ACTS
    assert inert(text).replace(APART, "") == text
