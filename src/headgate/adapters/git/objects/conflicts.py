"""Summarise what `git merge-tree -z` says about a merge that failed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

SHOWN_MAX = 50
"""Files that a summary names; of further files it gives the number."""
_KIND = re.compile(r"CONFLICT \((.+)\)")


def conflicts(fields: Sequence[str], commits: Sequence[str]) -> str:
    """Return the files in conflict, each once, with the kind of its conflict unless both sides changed its content.

    `fields` follow the tree: names up to an empty one, then messages, each a count, so many names, kind and text.
    `commits` are the two sides: a file that had to make way is listed as `<name>~<commit>`.
    """
    aside = re.compile(rf"~({'|'.join(map(re.escape, commits))})(_\d+)?$")
    names, messages = _halves(fields)
    found: dict[str, str] = {}
    for kind, paths in _messages(messages):
        if (kind_match := _KIND.match(kind)) is not None:
            for path in paths:
                found.setdefault(aside.sub("", path), "" if kind_match[1] == "contents" else f" ({kind_match[1]})")
    for name in names:
        found.setdefault(aside.sub("", name), "")
    shown = [shown_name(name) + kind for name, kind in sorted(found.items())]
    more = len(shown) - SHOWN_MAX
    return ", ".join(shown[:SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def shown_name(path: str) -> str:
    """Return a path as it is if that is unambiguous, otherwise quoted."""
    plain = path.isprintable() and path == path.strip() and not set(path) & set('",')
    return path if plain else json.dumps(path, ensure_ascii=not path.isprintable())


def _halves(fields: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    end = fields.index("") if "" in fields else len(fields)
    return fields[:end], fields[end + 1 :]


def _messages(fields: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    at = 0
    while at < len(fields) and fields[at].isdigit():
        count = int(fields[at])
        yield fields[at + 1 + count], fields[at + 1 : at + 1 + count]
        # A message takes the count, so many names, the kind and the text.
        at += count + 3
