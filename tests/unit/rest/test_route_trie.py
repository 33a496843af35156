"""Test that addresses find their handlers, compared with a naive reading of the templates."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.rest.routes import BadTemplate, RouteTrie, segments

WORDS = ("api", "jobs", "x", "%2F", "ü", "{", "..")
TEMPLATES = st.lists(
    st.lists(st.sampled_from(("api", "jobs", "x", "{}")), max_size=4).flatmap(
        lambda words: st.booleans().map(lambda rest: (*words, "{rest}") if rest else (*words,))
    ),
    max_size=8,
    unique=True,
)


def template(words: Sequence[str]) -> str:
    """Write a template; `{}` is a key for one segment, `{rest}` a key for all that follow."""
    names = {"{}": "{{k{}:str}}", "{rest}": "{{k{}:path}}"}
    return "/" + "/".join(names.get(word, word.replace("{", "{{")).format(place) for place, word in enumerate(words))


def read(templates: Sequence[Sequence[str]], words: Sequence[str]) -> tuple[Sequence[str] | None, list[str]]:
    """Compare the templates segment by segment: literal segments win over keys for one segment; a key for the rest
    comes last."""
    left, values = list(templates), list[str]()
    for place, word in enumerate(words):
        there = [one for one in left if len(one) > place]
        same = [one for one in there if one[place] == word]
        keyed = [one for one in there if one[place] == "{}"]
        rest = [one for one in there if one[place] == "{rest}"]
        if same or keyed:
            left = same or keyed
            values += [] if same else [word]
        elif rest:
            return rest[0], [*values, "/" + "/".join(words[place:])]
        else:
            return None, []
    ended = [one for one in left if len(one) == len(words)]
    return (ended[0], values) if ended else (None, [])


@given(TEMPLATES, st.lists(st.sampled_from(WORDS), max_size=6))
def test_the_trie_finds_the_same_route_as_comparing_all_templates(
    templates: list[tuple[str, ...]], words: list[str]
) -> None:
    trie = RouteTrie[tuple[str, ...]]()
    for one in templates:
        trie.add(template(one), "GET", one)
    found, values = trie.find(words)
    expected, wanted = read(templates, words)
    assert (found["GET"].handler if found else None, values if found else []) == (expected, wanted)
    if found:
        assert len(found["GET"].keys) == len(values)


@given(st.lists(st.text("ab%é. ", min_size=1), max_size=5), st.integers(1, 3))
def test_doubled_slashes_and_one_at_the_end_do_not_count(words: list[str], count: int) -> None:
    assert segments("/" * count + ("/" * count).join(words) + "/" * count) == words


def test_each_method_has_its_own_keys_at_the_same_address() -> None:
    trie = RouteTrie[str]()
    trie.add("/v1/{app:str}/{queue:str}", "GET", "read")
    trie.add("/v1/{app:str}/{name:str}", "PUT", "change")
    found, values = trie.find(["v1", "a", "b"])
    assert {method: one.keys for method, one in found.items()} == {"GET": ("app", "queue"), "PUT": ("app", "name")}
    assert values == ["a", "b"]


@pytest.mark.parametrize("wrong", ["/{a}", "/{a:int}", "/x{a:str}", "/{a:path}/b", "/{a:str}/{a:str}", "/known"])
def test_a_template_that_cannot_be_served_is_refused(wrong: str) -> None:
    trie = RouteTrie[str]()
    trie.add("/known", "GET", "x")
    with pytest.raises(BadTemplate):
        trie.add(wrong, "GET", "y")
