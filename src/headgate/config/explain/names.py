"""Find the job, nodeset, secret or template that a word in a file names."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.config.definitions import Key
from headgate.config.files.marks import Spelled, spelled

_DEFINED = ("job", "nodeset", "secret", "project-template")


def at(text: str, line: int, column: int) -> Spelled | None:
    """Return the key or value at this place of a file (both from 1)."""
    return next((one for one in spelled(text) if one.extent.holds(line, column)), None)


def key_of(word: Spelled) -> Key | None:
    """Return the key that a word defines or refers to in a layout, or None if it does neither."""
    path, key = word.path, word.key
    match path:
        case (kind, "name") if kind in _DEFINED and not key:
            return (kind, word.text)
        case ("project" | "project-template", _, "jobs") if not key:
            return ("job", word.text)
        case ("project" | "project-template", _, "jobs", name) if key:
            return ("job", name)
        case ("project", "templates") if not key:
            return ("project-template", word.text)
    return None if key else _attribute(path, word.text)


def _attribute(path: Sequence[str], text: str) -> Key | None:
    """Return the key that an attribute of a job refers to, in a job stanza or in a project's section, or None."""
    match tuple(path[-2:]):
        case (_, "parent") if path[0] == "job" and len(path) == 2:
            return ("job", text)
        case (_, "dependencies") | ("dependencies", "name"):
            return ("job", text)
        case (_, "nodeset" | "alternatives"):
            return ("nodeset", text)
        case (_, "secrets") | ("secrets", "secret" | "name"):
            return ("secret", text)
    return None
