"""Define what builds report: how they ran, and the data that their jobs returned, which is validated here."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal
from urllib.parse import urljoin, urlsplit

import msgspec

from headgate.base.errors import HeadgateError
from headgate.base.texts import line, visible

DATA_SIZE_MAX_BYTES = 256_000
"""Size limit of returned data, which is stored and which every later job receives."""
DEPTH_MAX = 50
INTEGER_MAX_BITS = 256
SECRET_SIZE_MAX_BYTES = 64_000
"""Size limit of the secret data that one job returns, in clear text."""
NAME_SIZE_MAX = 500
URL_SIZE_MAX = 4_000
TEXT_SIZE_MAX = 20_000
REDACTED_LINES_MAX, REDACTED_SIZE_MAX = 100, 8_000
"""Limits on the lines and characters of all redactions together: every line of the log is searched for each of them, in
many encodings."""
LINE_MAX = 2**31
MACHINES_MAX = 50
MACHINE_SIZE_MAX = 200
VALUE_SHOWN_MAX, TEXT_SHOWN_MAX = 100, 300
"""Limits on the characters that errors show of a value, and of a message that the job's author wrote."""
_DEEP = f"it is more than {DEPTH_MAX} levels deep"
_LARGE = f"it exceeds the limit of {DATA_SIZE_MAX_BYTES // 1000} kB of data"
_NEVER = ("javascript", "data", "vbscript", "blob", "filesystem", "about", "view-source")
"""URL schemes that make a browser run code or build a page from the URL itself."""
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_SIZE_MAX)]
Url = Annotated[str, msgspec.Meta(max_length=URL_SIZE_MAX)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_SIZE_MAX)]
Line = Annotated[int, msgspec.Meta(ge=0, le=LINE_MAX)]
"""A line of a file; 0 means the whole file."""


class Unfit(HeadgateError, ValueError):
    """Report that the data that a job returned is invalid. The message is for the job's author."""


def parsed(text: bytes, size_max_bytes: int = DATA_SIZE_MAX_BYTES) -> object:
    """Parse JSON within the bounds. Raise Unfit."""
    # Parsing would multiply the memory.
    if len(text) > size_max_bytes:
        raise Unfit(_LARGE)
    try:
        return msgspec.json.decode(text)
    except RecursionError as error:
        raise Unfit(_DEEP) from error
    except ValueError as error:
        raise Unfit(f"it is not JSON: {line(str(error))}") from error


def bounded(value: object) -> None:
    """Check a value against the bounds. Raise Unfit."""
    level, count = [value], 0
    # Level by level instead of by recursion, so that no depth can overflow the interpreter's stack.
    for _ in range(DEPTH_MAX):
        below: list[object] = []
        for one in level:
            if isinstance(one, dict):
                _keys(one)
                below += one.values()
            elif isinstance(one, list | tuple):
                below += one
            else:
                _leaf(one)
        level, count = below, count + len(below)
        # Every element costs memory, even an empty one.
        if count > DATA_SIZE_MAX_BYTES:
            raise Unfit(_LARGE)
    if level:
        raise Unfit(_DEEP)
    # Encoding is safe now that the value is known to be small and flat enough.
    if len(msgspec.json.encode(value)) > DATA_SIZE_MAX_BYTES:
        raise Unfit(_LARGE)


def _keys(value: dict[object, object]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise Unfit(f"a key is not a string: {line(repr(key), VALUE_SHOWN_MAX)}")
        _leaf(key)


def _leaf(value: object) -> None:
    match value:
        case None | bool():
            return
        case str():
            try:
                # Neither the store nor browsers accept such a string.
                value.encode()
            except UnicodeEncodeError as error:
                raise Unfit(f'a string contains half a surrogate pair: "{line(value, VALUE_SHOWN_MAX)}"') from error
        case int():
            # Python refuses to print integers of thousands of digits, and other readers of the data accept even fewer.
            if value.bit_length() > INTEGER_MAX_BITS:
                raise Unfit(f"a number has more than {INTEGER_MAX_BITS} bits")
        case float():
            # Python's parser accepts NaN and Infinity, which JSON does not have.
            if not math.isfinite(value):
                raise Unfit(f"it contains {value}, which is not a number in JSON")
        case _:
            raise Unfit(f"it contains a {type(value).__name__}, which is not a JSON type")


class Sealed(msgspec.Struct, frozen=True, omit_defaults=True):
    """Hold bytes that only the private key of a project decrypts."""

    connection: str = ""
    project: str = ""
    """The name of the project in its connection."""
    key: tuple[str, ...] = ()
    """Key of the box, encrypted with the project's public key, in pieces like a project's secret."""
    box: str = ""
    """The encrypted data, base64."""

    @property
    def size_bytes(self) -> int:
        return len(self.box) + sum(map(len, self.key))


class ReturnedArtifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent a file or URL that the build published."""

    name: Name
    url: Url
    """Absolute, or relative to the URL of the build's log."""
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
    """Hold the keys below `zuul` that Headgate reads. All other keys, there and next to `zuul`, belong to the job and
    are passed on unchanged."""

    log_url: Url | None = None
    artifacts: tuple[ReturnedArtifact, ...] | None = None
    child_jobs: tuple[str, ...] | None = None
    """Which of the dependent jobs to run; None: all of them."""
    pause: bool | None = None
    retry: bool | None = None
    warnings: tuple[Text, ...] | None = None
    file_comments: dict[str, tuple[FileComment, ...]] | None = None
    disable_file_comment_line_mapping: bool | None = None
    redactions: tuple[str, ...] | None = None
    """Strings that are treated like secret data from then on."""


NOTHING = Returned()


def checked(data: object) -> Returned:
    """Check the format of the returned data, and return it. Raise Unfit that says what is wrong and where."""
    # Sizes come first, because converting a huge or deep value would itself take long.
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
    """Check the strings. Raise Unfit."""
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
            _seen(f"a message of zuul.file_comments.{line(path, TEXT_SHOWN_MAX)}", comment.message)
    _redactions(found.redactions or ())


def _redactions(texts: tuple[str, ...]) -> None:
    lines, size = sum(max(1, len(text.splitlines())) for text in texts), sum(map(len, texts))
    if lines > REDACTED_LINES_MAX or size > REDACTED_SIZE_MAX:
        most = f"{REDACTED_LINES_MAX} lines and {REDACTED_SIZE_MAX} characters"
        raise Unfit(f"zuul.redactions has {lines} lines and {size} characters; at most {most} can be kept out of logs")


def _seen(where: str, text: str) -> None:
    if visible(text) != text:
        raise Unfit(f"{where} contains unprintable characters: {_shown(text)}")


def _one_line(where: str, text: str) -> None:
    _seen(where, text)
    # A second line could look like another entry of a report.
    if "\n" in text:
        raise Unfit(f"{where} is more than one line: {_shown(text)}")


def _url(where: str, url: str) -> None:
    # Browsers ignore such characters, so a scheme could hide behind them.
    if url != url.strip() or "\t" in url or "\n" in url or visible(url) != url:
        raise Unfit(f"{where} is not a URL: it has white space around it or unprintable characters: {_shown(url)}")
    try:
        parts = urlsplit(url)
        # The port is checked only when it is read.
        _ = parts.port
    except ValueError as error:
        raise Unfit(f"{where} is not a URL: {error}: {_shown(url)}") from error
    # Pages link to this address: with such a scheme, a job's author could run scripts in the browsers of all readers.
    if url.partition(":")[0].lower() in _NEVER:
        raise Unfit(f"{where} has a URL scheme that is not allowed in links: {_shown(url)}")
    if parts.password is not None:
        raise Unfit(f"{where} contains a password, which everybody could read")


def joined(base: str, url: str) -> str:
    """Join a relative `url` with `base`. Return an empty string if either is not a URL, because older versions
    also stored invalid URLs."""
    try:
        absolute = urljoin(f"{base.rstrip('/')}/", url)
        _url("it", absolute)
    except (ValueError, Unfit):
        return ""
    return absolute


def _shown(text: str) -> str:
    return f'"{line(text, TEXT_SHOWN_MAX)}"'


def _plain(error: str) -> str:
    """Return msgspec's message with the location in front, in a readable form."""
    what, at, where = error.rpartition(" - at `$")
    if not at:
        return f"zuul: {line(error)}"
    return f"zuul{line(where.rstrip('`'))}: {line(what)}"


class Course(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent the resources and times of a build, as its executor reports them for display."""

    machines: tuple[str, ...] = ()
    """Its nodes, with their labels."""
    had_ms: int = 0
    """Time at which it had received its nodes, milliseconds since the epoch; 0 if unknown."""
    paused_ms: int = 0
    resumed_ms: int = 0

    def fit(self) -> Course:
        """Return the course with a limited number of machines, each in one line."""
        few = tuple(line(one, MACHINE_SIZE_MAX) for one in self.machines[:MACHINES_MAX])
        return self if few == self.machines else msgspec.structs.replace(self, machines=few)


NO_COURSE = Course()
