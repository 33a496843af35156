"""`Depends-On:`, on every forge: URLs of changes of any connection, and names of changes of plain git."""

from __future__ import annotations

import re

import pytest

from headgate.config.forges.footers import FOOTER_MAX_CHARS, FOOTERS_MAX, footers, ids, named

PROJECTS = ("git.example/code/api", "git.example/code/api/tools", "git.example/lib", "other.example/lib")
_PULL = re.compile(r"https://hub\.example/(.+)/pull/(\d+)")


def of_url(url: str) -> str:
    """Return the key of the change on a forge called hub.example."""
    found = _PULL.match(url)
    return f"hub.example/{found[1]}#{found[2]}" if found else ""


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("Title\n\nDepends-On: https://hub.example/a/b/pull/1\n", ["https://hub.example/a/b/pull/1"]),
        ("depends-on:https://x/1\r\nDEPENDS-ON:\thttps://x/2\r\n", ["https://x/1", "https://x/2"]),
        ("  Depends-On: https://x/1\n> Depends-On: https://x/2\n- Depends-On: https://x/3", []),
        ("It has Depends-On: https://x/1 in its middle", []),
        ("Depends-On:\nDepends-On: \r\n", []),
        ("Depends-On: the other one", ["the other one"]),
        ("Depends-On: https://x/1, https://x/2", ["https://x/1", "https://x/2"]),
        ("Depends-On: <https://x/1> (the server's half)", ["https://x/1"]),
        (
            "Depends-On: [#1](https://x/1).\nDepends-On: [https://x/2](https://x/2)",
            ["https://x/1", "https://x/2", "https://x/2"],
        ),
        ("Depends-On: `https://x/1`\nDepends-On: HTTPS://X/2/ and", ["https://x/1", "HTTPS://X/2/"]),
        ("Depends-On: api/main/one, api/main/two", ["api/main/one", "api/main/two"]),
        (f"Depends-On: I{'a' * 40} I{'b' * 40}\r\n", [f"I{'a' * 40}", f"I{'b' * 40}"]),
        ("Depends-On: #12\nDepends-On: a/b#3", ["#12", "a/b#3"]),
    ],
)
def test_footers_begin_a_line_and_name_whatever_people_write_there(message: str, found: list[str]) -> None:
    assert list(footers(message)) == found


def test_the_number_and_length_of_footers_are_limited() -> None:
    assert len(list(footers("Depends-On: x\n" * (FOOTERS_MAX + 5)))) == FOOTERS_MAX
    assert not list(footers(f"Depends-On: https://x/{'1' * FOOTER_MAX_CHARS}"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("https://hub.example/a/b/pull/7", "hub.example/a/b#7"),
        ("https://hub.example/a/b/pull/7/files?w=1", "hub.example/a/b#7"),
        ("git.example/code/api/master/topic", "git.example/code/api/master/topic"),
        ("code/api/stable/1.0/topic", "git.example/code/api/stable/1.0/topic"),
        ("code/api/tools/master/x", "git.example/code/api/tools/master/x"),
        ("git.example/lib/master/x/", "git.example/lib/master/x"),
    ],
)
def test_footers_name_the_right_changes(text: str, key: str) -> None:
    assert named([text], of_url, PROJECTS) == ((key,), ())


@pytest.mark.parametrize(
    "text",
    ["https://elsewhere.example/a/pull/1", "lib/master/x", "code/api/master", "#12", "a/b#3", "nobody/knows/this"],
)
def test_a_footer_that_names_nothing_is_reported(text: str) -> None:
    """The name may also belong to two projects, or lack a topic."""
    assert named([text], of_url, PROJECTS) == ((), (text,))


def test_the_old_form_of_gerrit_names_every_change_that_has_the_id() -> None:
    own, other = f"I{'a' * 40}", f"I{'b' * 40}"
    message = f"Title\n\nChange-Id: {own}\n  Change-Id: {other}\nIt has Change-Id: {other}\n"
    assert ids(message) == {own}
    known = {own: ("r.example/p#7", "r.example/p#9")}
    found = named([own, other], of_url, PROJECTS, lambda id: known.get(id, ()))
    assert found == (("r.example/p#7", "r.example/p#9"), (other,)), "and who names none is told"


def test_a_change_that_is_named_twice_is_needed_once() -> None:
    twice = ["https://hub.example/a/b/pull/7", "https://hub.example/a/b/pull/7/files"]
    assert named(twice, of_url, PROJECTS).needs == ("hub.example/a/b#7",)
