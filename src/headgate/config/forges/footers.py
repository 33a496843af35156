"""Find the dependencies that a change declares with `Depends-On:` at the beginning of a line of its message."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate, islice
from typing import NamedTuple

FOOTER_MAX_CHARS, FOOTERS_MAX = 1_000, 100
# Not `\s*`, which also matches line ends: an empty footer would take its value from the next line.
_DEPENDS = re.compile(r"^Depends-On:[ \t]*(\S[^\n]*)$", re.IGNORECASE | re.MULTILINE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s<>\"]+", re.IGNORECASE)
_AROUND = "*_`'.,;:!)]}"
"""Characters that may follow a URL in a sentence without being part of it."""
_CHANGE_ID = re.compile(r"I[0-9a-f]{40}")
"""Gerrit's old form of a change id."""
_HAS_ID = re.compile(r"^Change-Id:[ \t]*(I[0-9a-f]{40})[ \t\r]*$", re.MULTILINE)


def footers(message: str) -> Iterator[str]:
    """Yield the names in the footers as written, at most FOOTERS_MAX of them."""
    found = (
        one for line in _DEPENDS.findall(message) for one in _names_in(line.strip()) if len(one) <= FOOTER_MAX_CHARS
    )
    return islice(found, FOOTERS_MAX)


def _names_in(line: str) -> list[str]:
    """Return the names in one footer: every URL, without surrounding punctuation, or else the names of changes. Return
    a line that has neither as one name, which will be reported as unknown."""
    # In Markdown, `[text](url)`, the text may also be a URL.
    if addresses := _URL.findall(line.replace("](", " ")):
        return [one.rstrip(_AROUND) for one in addresses]
    names = [one for one in re.split(r"[\s,]+", line) if one]
    return names if all("/" in one or _CHANGE_ID.fullmatch(one) for one in names) else [line]


def ids(message: str) -> frozenset[str]:
    """Return the Change-Ids in a message."""
    return frozenset(_HAS_ID.findall(message))


class Named(NamedTuple):
    """Hold the keys of the changes that footers name, and footers that name no change."""

    needs: tuple[str, ...] = ()
    """Keys of changes, whether or not they have been proposed."""
    unknown: tuple[str, ...] = ()
    """Footers, as written, that name no change that could be in this installation."""


def named(
    texts: Collection[str],
    of_url: Callable[[str], str],
    projects: Collection[str],
    of_id: Callable[[str], Collection[str]] = lambda _: (),
) -> Named:
    """Resolve the texts of footers. `of_url` returns the key of the change at a URL, or an empty string. `projects`
    holds the canonical names of the projects whose changes are written `<project>/<branch>/<topic>`. `of_id` returns
    the keys of the changes with a Change-Id."""
    needs, unknown, known = dict[str, None](), dict[str, None](), _by_name(frozenset(projects))
    for text in texts:
        if _CHANGE_ID.fullmatch(text):
            keys = [*of_id(text)]
        else:
            keys = [of_url(text) if "://" in text else _plain(text.strip("/"), known)]
        if found := [key for key in keys if key]:
            needs |= dict.fromkeys(found)
        else:
            unknown[text] = None
    return Named(tuple(needs), tuple(unknown))


@lru_cache(maxsize=16)
def _by_name(projects: frozenset[str]) -> Mapping[str, frozenset[str]]:
    """Map the names of projects, with and without the host, to the canonical names. It is kept because there may
    be thousands of projects, and anybody may write footers."""
    names: dict[str, frozenset[str]] = {}
    for project in projects:
        for name in filter(None, (project, project.partition("/")[2])):
            names[name] = names.get(name, frozenset()) | {project}
    return names


def _plain(text: str, projects: Mapping[str, frozenset[str]]) -> str:
    """Return the key of a change of plain git, or an empty string if the text names none. The text begins with a
    project name; the longest match takes precedence. The name may omit the host if no other project has that name."""
    *above, _ = accumulate(text.split("/"), "{}/{}".format)
    longest = next((name for name in reversed(above) if name in projects), "")
    rest = text[len(longest) + 1 :]
    # The rest must be a branch and a topic, hence the slash.
    if len(projects.get(longest, ())) != 1 or "/" not in rest:
        return ""
    return f"{min(projects[longest])}/{rest}"
