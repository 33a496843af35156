"""Parse Containerfiles, which describe how to build an image, with the instructions that a single stage needs."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headgate.base.errors import ExecutionError

SIZE_MAX_BYTES = 100_000
STEPS_MAX = 100
VARIABLES_SIZE_MAX = 65_536
"""Total length of all variables that the file sets."""
_IDLE = frozenset(["CMD", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "VOLUME"])
"""Instructions about the start of containers, which have no effect here."""
_VARIABLE = re.compile(
    r"\\\$|\$(?:(?P<plain>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]{0,1000}))?\})", re.ASCII
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BadFile(ExecutionError, ValueError):
    """Report an error in the file, with its line; the message is shown to users."""


@dataclass(frozen=True, slots=True)
class Step:
    """Represent one RUN or COPY."""

    line: int
    description: str
    """Short description, for logs."""
    directory: str
    environment: Mapping[str, str]
    command: tuple[str, ...] = ()
    """Command of RUN."""
    sources: tuple[str, ...] = ()
    """Sources of COPY, relative to the directory of the file."""
    target: str = ""


@dataclass(slots=True)
class Recipe:
    """Collect the instructions of a Containerfile as steps that commands carry out."""

    base: str = ""
    steps: list[Step] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the image."""
    _arguments: dict[str, str] = field(default_factory=dict)
    _directory: str = "/"

    @property
    def copies(self) -> bool:
        """Return whether the files in its directory affect the result."""
        return any(step.sources for step in self.steps)

    def add(self, line: int, word: str, rest: str) -> None:
        """Add one instruction. Raise BadFile."""
        if word == "FROM":
            self._from(line, rest)
        elif word == "ARG":
            name, _, value = rest.partition("=")
            self._arguments[_named(line, name.strip())] = self._substituted(line, value)
        elif not self.base:
            raise BadFile(f"line {line}: {word} comes before FROM")
        elif word == "ENV":
            self.environment |= self._variables(line, rest)
        elif word == "WORKDIR":
            # A relative path is relative to the last WORKDIR.
            self._directory = posixpath.join(self._directory, self._substituted(line, rest))
        elif word in ("RUN", "COPY"):
            self._step(line, word, rest)
        elif word not in _IDLE:
            known = "FROM, ARG, ENV, WORKDIR, RUN and COPY"
            raise BadFile(f"line {line}: {word[:20]!r} is not supported; {known} are")
        if word in ("ARG", "ENV") and _size({**self._arguments, **self.environment}) > VARIABLES_SIZE_MAX:
            raise BadFile(f"line {line}: the variables together are too large")

    def _from(self, line: int, rest: str) -> None:
        words = self._substituted(line, rest).split()
        if self.base or len(words) != 1:
            raise BadFile(f"line {line}: only one FROM, with one image, is allowed: images are built in one stage")
        # An ARG before FROM applies only to FROM, as in every builder.
        self.base, self._arguments = words[0], {}

    def _step(self, line: int, word: str, rest: str) -> None:
        # Options such as --mount and --chown, and here-documents, would change what a step does: refuse them.
        if rest.startswith("--") or "<<" in rest.split("\n")[0][:4]:
            raise BadFile(f"line {line}: options of {word}, and here-documents, are not supported")
        environment = {**self._arguments, **self.environment}
        description = f"{word} {' '.join(rest.split())[:200]}"
        listed = _listed(rest)
        if word == "RUN":
            # Do not substitute here: the shell does that itself, with the variables in its environment.
            command = listed or ("/bin/sh", "-c", rest)
            self.steps.append(Step(line, description, self._directory, environment, command=command))
        else:
            words = [self._substituted(line, one) for one in (listed or shlex.split(rest))]
            if len(words) < 2:
                raise BadFile(f"line {line}: COPY needs at least one source, and a target")
            sources = tuple(_inner(line, one) for one in words[:-1])
            target = posixpath.join(self._directory, words[-1])
            self.steps.append(Step(line, description, self._directory, environment, sources=sources, target=target))
        if len(self.steps) > STEPS_MAX:
            raise BadFile(f"line {line}: more than {STEPS_MAX} steps")

    def _variables(self, line: int, rest: str) -> dict[str, str]:
        words = shlex.split(rest)
        if words and "=" not in words[0]:  # the old form: a name, followed by the value
            name, _, value = rest.partition(" ")
            return {_named(line, name): self._substituted(line, value.strip())}
        pairs = (word.partition("=") for word in words)
        return {_named(line, name): self._substituted(line, value) for name, _, value in pairs}

    def _substituted(self, line: int, text: str) -> str:
        """Return a string with its variables replaced by their values so far. Raise BadFile if it becomes too long."""
        known = {**self._arguments, **self.environment}
        found = _VARIABLE.sub(
            lambda m: "$" if m[0] == "\\$" else known.get(m["plain"] or m["name"]) or m["default"] or "", text.strip()
        )
        # Repeated lines such as ENV A=$A$A double the length each time.
        if len(found) > SIZE_MAX_BYTES:
            raise BadFile(f"line {line}: its text is too long after substitution")
        return found


def read(content: bytes) -> Recipe:
    """Parse a Containerfile. Raise BadFile."""
    if len(content) > SIZE_MAX_BYTES:
        raise BadFile(f"it has more than {SIZE_MAX_BYTES} bytes")
    found = Recipe()
    for line, text in _instructions(content):
        word, _, rest = text.partition(" ")
        try:
            found.add(line, word.upper(), rest.strip())
        except BadFile:
            raise
        except ValueError as error:  # of shlex
            raise BadFile(f"line {line}: {error}") from error
    if not found.base:
        raise BadFile("it has no FROM")
    return found


def _instructions(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield each instruction with the number of its first line, without comments and empty lines, even inside of it."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise BadFile("it is not UTF-8") from error
    begun, parts = 0, list[str]()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begun = begun if parts else number
        goes_on = line.rstrip().endswith("\\")
        parts.append(line.rstrip()[:-1] if goes_on else line)
        if not goes_on:
            yield begun, " ".join(parts).strip().replace("\t", " ")
            parts = []
    if parts:
        yield begun, " ".join(parts).strip()


def _listed(text: str) -> tuple[str, ...]:
    """Return the words of a JSON list; none if the text is not a JSON list of strings."""
    if not text.startswith("["):
        return ()
    try:
        found = json.loads(text)
    # `RUN [ -f x ]` also begins like a list, but is a shell command.
    except (ValueError, RecursionError):
        return ()
    return tuple(found) if isinstance(found, list) and all(isinstance(one, str) for one in found) else ()


def _size(variables: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in variables.items())


def _named(line: int, name: str) -> str:
    """Return the name if it is a valid name of a variable. Raise BadFile otherwise."""
    if not _NAME.fullmatch(name):
        raise BadFile(f"line {line}: {name[:40]!r} cannot be the name of a variable")
    return name


def _inner(line: int, path: str) -> str:
    """Return the path of a file next to the Containerfile.  Raise BadFile if it leads elsewhere or is a pattern."""
    # Normalize first: `a/../../x` leads outside, too.
    found = posixpath.normpath(path)
    if found.startswith(("/", "..")) or set("*?[") & set(path):
        raise BadFile(f"line {line}: {path[:80]!r} is not the name of a file next to the Containerfile")
    return found
