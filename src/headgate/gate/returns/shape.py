"""Define the keys that Headgate reads in the data of a job, and check them against the rules that they must follow.

Only these keys below `zuul` have a type.  All others, there and beside it, are the job's own: they are handed on
unchanged, within the bounds of `values`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urljoin, urlsplit

import msgspec

from headgate.base.texts import line, visible
from headgate.gate.returns.values import Unfit, bounded

NAME_SIZE_MAX = 500
URL_SIZE_MAX = 4_000
TEXT_SIZE_MAX = 20_000
REDACTED_LINES_MAX, REDACTED_SIZE_MAX = 100, 8_000
"""Limits of the lines and characters of all redactions together: each line is searched for in every line of the log, in
many forms."""
LINE_MAX = 2**31
SHOWN_MAX = 300
_NEVER = ("javascript", "data", "vbscript", "blob", "filesystem", "about", "view-source")
"""URL schemes that a browser would run, or from which it would make up a page."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_SIZE_MAX)]
Url = Annotated[str, msgspec.Meta(max_length=URL_SIZE_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_SIZE_MAX)]
Line = Annotated[int, msgspec.Meta(ge=0, le=LINE_MAX)]
"""A line of a file; 0 means the whole file."""


class ReturnedArtifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a file or URL that the build published."""

    name: Name
    url: Url
    """Absolute, or relative to the build's log."""
    metadata: dict[str, Any] | None = None


class Range(msgspec.Struct, frozen=True):
    """Locate a comment: from a character of one line to a character of another."""

    start_line: Line
    start_character: Line
    end_line: Line
    end_character: Line


class FileComment(msgspec.Struct, frozen=True):
    """Comment on a line of a file."""

    message: Text
    line: Line = 0
    level: Literal["info", "warning", "error"] | None = None
    range: Range | None = None


class Returned(msgspec.Struct, frozen=True):
    """Hold the keys below `zuul` that are read."""

    log_url: Url | None = None
    artifacts: tuple[ReturnedArtifact, ...] | None = None
    child_jobs: tuple[str, ...] | None = None
    """The jobs to run of those that depend on this one; None: all of them."""
    pause: bool | None = None
    retry: bool | None = None
    warnings: tuple[Text, ...] | None = None
    file_comments: dict[str, tuple[FileComment, ...]] | None = None
    disable_file_comment_line_mapping: bool | None = None
    redactions: tuple[str, ...] | None = None
    """Texts that are as secret as secret data from then on."""


NOTHING = Returned()


def checked(data: object) -> Returned:
    """Check the shape of the returned data. Raise Unfit that says what is wrong and where."""
    # Sizes come first: converting a huge or deep value would itself take long.
    bounded(data)
    if not isinstance(data, dict):
        raise Unfit("the data must be an object")
    zuul = data.get("zuul")
    if zuul is None:
        return NOTHING
    if not isinstance(zuul, dict):
        raise Unfit("zuul must be an object")
    try:
        found = msgspec.convert(zuul, Returned, strict=True)
    except msgspec.ValidationError as error:
        raise Unfit(_plain(str(error))) from error
    _texts(found)
    return found


def _texts(found: Returned) -> None:
    """Check the texts. Raise Unfit."""
    if found.log_url is not None:
        _url("zuul.log_url", found.log_url)
    for number, artifact in enumerate(found.artifacts or ()):
        _one_line(f"zuul.artifacts[{number}].name", artifact.name)
        _url(f"zuul.artifacts[{number}].url", artifact.url)
    for number, text in enumerate(found.warnings or ()):
        _seen(f"zuul.warnings[{number}]", text)
    for path, comments in (found.file_comments or {}).items():
        _one_line("a path of zuul.file_comments", path)
        for comment in comments:
            _seen(f"a message of zuul.file_comments.{line(path, SHOWN_MAX)}", comment.message)
    _redactions(found.redactions or ())


def _redactions(texts: tuple[str, ...]) -> None:
    lines, size = sum(max(1, len(text.splitlines())) for text in texts), sum(map(len, texts))
    if lines > REDACTED_LINES_MAX or size > REDACTED_SIZE_MAX:
        most = f"{REDACTED_LINES_MAX} lines and {REDACTED_SIZE_MAX} characters"
        raise Unfit(f"zuul.redactions has {lines} lines and {size} characters; at most {most} can be kept out of logs")


def _seen(where: str, text: str) -> None:
    if visible(text) != text:
        raise Unfit(f"{where} has characters that cannot be shown: {_shown(text)}")


def _one_line(where: str, text: str) -> None:
    _seen(where, text)
    if "\n" in text:
        raise Unfit(f"{where} is more than one line: {_shown(text)}")


def _url(where: str, url: str) -> None:
    if url != url.strip() or "\t" in url or "\n" in url or visible(url) != url:
        raise Unfit(f"{where} is not a URL, as it has white space around it or what cannot be shown: {_shown(url)}")
    try:
        parts = urlsplit(url)
        # The port is checked only when it is read.
        _ = parts.port
    except ValueError as error:
        raise Unfit(f"{where} is not a URL: {error}: {_shown(url)}") from error
    # Pages link to this address: with such a scheme, a job's author could run scripts in the browsers of all readers.
    if url.partition(":")[0].lower() in _NEVER:
        raise Unfit(f"{where} is not a URL that anybody can be sent to: {_shown(url)}")
    if parts.password is not None:
        raise Unfit(f"{where} has a password in it, which everybody could read")


def joined(base: str, url: str) -> str:
    """Join a relative `url` with `base`. Return an empty string if either is not a URL, because older versions
    stored some that are not."""
    try:
        absolute = urljoin(f"{base.rstrip('/')}/", url)
        _url("it", absolute)
    except (ValueError, Unfit):
        return ""
    return absolute


def _shown(text: str) -> str:
    return f'"{line(text, SHOWN_MAX)}"'


def _plain(error: str) -> str:
    """Return msgspec's text with the place in front, as people write it."""
    what, at, where = error.rpartition(" - at `$")
    if not at:
        return f"zuul: {line(error)}"
    return f"zuul{line(where.rstrip('`'))}: {line(what)}"
