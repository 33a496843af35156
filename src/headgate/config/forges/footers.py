"""Find what a change says that it needs: `Depends-On:`, at the beginning of a line of what it says of itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import NamedTuple

FOOTER_MAX_CHARS, FOOTERS_MAX = 1_000, 100
_DEPENDS = re.compile(r"^Depends-On:[ \t]*(\S[^\n]*)$", re.IGNORECASE | re.MULTILINE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s<>\"]+", re.IGNORECASE)
_AROUND = "*_`'.,;:!)]}"
"""Characters that may follow an address in a sentence without being part of it."""
_CHANGE_ID = re.compile(r"I[0-9a-f]{40}")
"""Gerrit's old form of a change id."""
_HAS_ID = re.compile(r"^Change-Id:[ \t]*(I[0-9a-f]{40})[ \t\r]*$", re.MULTILINE)


def footers(message: str) -> Iterator[str]:
    """Yield what the footers name, as it is written, of very many the first."""
    found = (
        one for line in _DEPENDS.findall(message) for one in _names_in(line.strip()) if len(one) <= FOOTER_MAX_CHARS
    )
    return islice(found, FOOTERS_MAX)


def _names_in(line: str) -> list[str]:
    """Return what one line names: every address, whatever people write around it; else the names in it.  A line that
    names nothing is one name, which nobody has: so it is told."""
    if addresses := _URL.findall(line.replace("](", " ")):
        return [one.rstrip(_AROUND) for one in addresses]
    names = [one for one in re.split(r"[\s,]+", line) if one]
    return names if all("/" in one or _CHANGE_ID.fullmatch(one) for one in names) else [line]


def ids(message: str) -> frozenset[str]:
    """Return the Change-Ids that a message says a change has."""
    return frozenset(_HAS_ID.findall(message))


class Named(NamedTuple):
    """Hold what the footers of a change name: keys of changes, and texts that name none."""

    needs: tuple[str, ...] = ()
    """Keys of changes, whether anybody has proposed them or not."""
    unknown: tuple[str, ...] = ()
    """Footers, as written, that name no change that could be in this installation."""


def named(
    texts: Collection[str],
    of_url: Callable[[str], str],
    projects: Collection[str],
    of_id: Callable[[str], Collection[str]] = lambda _: (),
) -> Named:
    """Return what footers mean.  `of_url`: the key of the change at a URL, or nothing; `projects`: canonical names of
    those whose changes are written `<project>/<branch>/<topic>`; `of_id`: keys of the changes that have a Change-Id."""
    needs, unknown = dict[str, None](), dict[str, None]()
    for text in texts:
        if _CHANGE_ID.fullmatch(text):
            keys = [*of_id(text)]
        else:
            keys = [of_url(text) if "://" in text else _plain(text.strip("/"), projects)]
        if found := [key for key in keys if key]:
            needs |= dict.fromkeys(found)
        else:
            unknown[text] = None
    return Named(tuple(needs), tuple(unknown))


def _plain(text: str, projects: Collection[str]) -> str:
    """Return the key of a change of plain git, or nothing if there is none: of the longest name of a project that it
    begins with, which may leave the host out where no other project has that name."""
    names: dict[str, set[str]] = {}
    for project in projects:
        for name in (project, project.partition("/")[2]):
            if name and text.startswith(f"{name}/"):
                names.setdefault(name, set()).add(project)
    longest = max(names, key=len, default="")
    rest = text[len(longest) + 1 :]
    if len(names.get(longest, ())) != 1 or "/" not in rest:
        return ""
    return f"{min(names[longest])}/{rest}"
