"""Determine which files contain configuration, and represent these files and the errors in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from headgate.base.errors import ConfigurationError
from headgate.base.hints import HintedText, hinted
from headgate.base.texts import line as one_line
from headgate.base.texts import visible
from headgate.config.model import ConfigError

STANDARD_PATHS = ("zuul.yaml", "zuul.d/", ".zuul.yaml", ".zuul.d/")
"""Roots of a project's configuration; only the first one that exists is read."""
IGNORE = ".zuul.ignore"
"""Name of a file that excludes its directory, and everything below it, from the configuration."""
CONTEXT_LINES = 4
"""Number of lines to show above and below the line of an error."""
LINE_SHOWN_MAX = 500
"""Maximum number of characters to show of a line."""
SCHEMA = "Unknown"
"""Name of syntax errors: text that is not YAML, an unknown key, or a wrong type."""
UNKNOWN_WORD = "Unknown Word"
"""Name of warnings about words that a driver does not know."""
NO_EFFECT = "No Effect"
"""Name of warnings about settings that are accepted but have no effect."""
NEVER = "Trigger Never Matches"
"""Name of warnings about triggers that no event can match."""
MEANING = "Unknown Configuration Error"
"""Name of all other errors without a name of their own."""
_UNREADABLE = "\0headgate: "
"""Prefix of the placeholder for the text of a file that was not read; no YAML contains a NUL."""


class Roots(NamedTuple):
    """Hold the configuration files of a branch."""

    read: tuple[str, ...]
    """Files to read, in this order."""
    spurned: tuple[str, ...]
    """First file of each root that is ignored because an earlier root exists."""


def roots(files: Iterable[str], extra: Iterable[str]) -> Roots:
    """Return the configuration files among `files`. `extra` names further files, and directories with a trailing slash,
    to read in addition."""
    files = list(files)
    # Keep the slash at the end: ignoring `zuul.d/a/` must not exclude `zuul.d/ab/`.
    ignored = tuple(path.removesuffix(IGNORE) for path in files if path.endswith(f"/{IGNORE}"))
    # `startswith` with an empty tuple is false for every path.
    usable = sorted(path for path in files if not path.startswith(ignored))
    known = set(usable)

    def under(root: str) -> list[str]:
        if not root.endswith("/"):
            return [root] if root in known else []
        return [path for path in usable if path.startswith(root) and path.endswith(".yaml")]

    found = [paths for root in STANDARD_PATHS if (paths := under(root))]
    chosen = found[0] if found else []
    chosen = chosen + [path for root in extra for path in under(root)]
    return Roots(tuple(dict.fromkeys(chosen)), tuple(paths[0] for paths in found[1:]))


def touches(files: Iterable[str], extra: Iterable[str]) -> bool:
    """Return whether a change of these files changes the configuration."""
    return any(_is_at(path, root) for root in (*STANDARD_PATHS, *extra) for path in files)


def _is_at(path: str, root: str) -> bool:
    if not root.endswith("/"):
        return path == root
    # Adding or removing an ignore file changes which files are read.
    return path.startswith(root) and (path.endswith(".yaml") or path.endswith(f"/{IGNORE}"))


@dataclass(frozen=True, slots=True)
class Source:
    """Represent a file on a branch of a project."""

    project: str
    connection: str
    branch: str
    path: str
    trusted: bool
    text: str

    def error(self, name: str, text: str | HintedText, line: int = 0, severity: str = "error") -> ConfigError:
        """Return an error in this file, with the lines around it."""
        return ConfigError(
            name=name,
            text=visible(str(text)),
            project=self.project,
            branch=self.branch,
            path=one_line(self.path),
            line=line,
            snippet=snippet(self.text, line),
            severity=severity,
            hint=visible(hinted(text).hint),
        )

    def error_from(self, wrong: Wrong, line: int = 0) -> ConfigError:
        """Convert `wrong` to an error in this file. `line` applies if the error has no line of its own."""
        return self.error(wrong.name, wrong.message, wrong.line or line, wrong.severity)

    @property
    def place(self) -> str:
        return f"{self.project} {self.branch} {self.path}"


class Wrong(ConfigurationError):
    """Report one error at one line. Code that knows the source converts it to a ConfigError."""

    def __init__(self, text: str | HintedText, line: int, name: str = SCHEMA, severity: str = "error") -> None:
        super().__init__(str(text))
        self.message, self.text = hinted(text), str(text)
        self.line, self.name, self.severity = line, name, severity


def unread(why: str) -> str:
    """Return a placeholder for the text of a file that was not read; parsing it reports `why`."""
    return _UNREADABLE + why


def unreadable(text: str) -> str:
    """Return why the text of a file was not read, or an empty string if it was."""
    return text.removeprefix(_UNREADABLE) if text.startswith(_UNREADABLE) else ""


@lru_cache(maxsize=32)
def _lines(text: str) -> list[str]:
    """Split a file's content into lines. Cache the result, because each error in a file needs the lines again."""
    return text.splitlines()


def snippet(text: str, line: int) -> str:
    """Return the lines around `line` (1-based), with that line marked, or an empty string if there is no such line."""
    lines = _lines(text) if line > 0 and not unreadable(text) else []
    if line > len(lines):
        return ""
    first, last = max(1, line - CONTEXT_LINES), min(len(lines), line + CONTEXT_LINES)
    width = len(str(last))
    shown = (
        # The text is untrusted: it may contain control characters, or be a single line of megabytes.
        f"{'>' if n == line else ' '} {n:{width}} | {one_line(lines[n - 1], LINE_SHOWN_MAX)}"
        for n in range(first, last + 1)
    )
    return "\n".join(shown) if lines else ""


class ErrorClass(NamedTuple):
    """Describe all errors of one name, for the reference page of the language."""

    when: str
    """When the error occurs."""
    costs: str
    """What is ignored because of it."""
    severity: str = "error"


_STANZA = "the stanza"
_ITEM = "nothing; an item that would run the job reports the error"
ERRORS: dict[str, ErrorClass] = {
    SCHEMA: ErrorClass(
        "invalid YAML, an unknown key, a value of the wrong type", "the file if it is not a list, otherwise the stanza"
    ),
    MEANING: ErrorClass(
        "conflicting definitions, a name that refers to nothing, and all errors without a name of their own",
        "see below",
    ),
    "Base Job Not Permitted": ErrorClass(
        "`parent: null` in a project other than a config-project that may define base jobs", _STANZA
    ),
    "Duplicate Node": ErrorClass("two nodes of a nodeset have the same name", _STANZA),
    "Duplicate Nodeset Group": ErrorClass("two groups of a nodeset have the same name", _STANZA),
    "Node From Group Not Found": ErrorClass("a group names a node that is not in its nodeset", _STANZA),
    "Nodeset Not Found": ErrorClass("a job or an alternative names an undefined nodeset", _ITEM),
    "Label Forbidden": ErrorClass("the tenant file does not allow the label", _STANZA),
    "Label Not Found": ErrorClass("with `use-nodepool: false`, an undefined label", "nothing"),
    "Max Timeout Exceeded": ErrorClass("a timeout above max-job-timeout", _STANZA),
    "Pre-Timeout Exceeds Timeout": ErrorClass("pre-timeout above timeout in one stanza", _STANZA),
    "Max OIDC TTL Exceeded": ErrorClass("ttl of a secret above max-oidc-ttl", _STANZA),
    "OIDC issuer not allowed": ErrorClass("iss of a secret is not in allowed-oidc-issuers", _STANZA),
    "Pipeline Forbidden": ErrorClass("a pipeline outside of config-projects; reported once per file", _STANZA),
    "Project Forbidden": ErrorClass("a stanza for another project that this project may not configure", _STANZA),
    "Project Not Found": ErrorClass(
        "a project that is not in the tenant, or a short name that several connections have", _STANZA
    ),
    "Reporter Job Not Permitted": ErrorClass("a project that may not do so attaches a job of type reporter", _ITEM),
    "Template Not Found": ErrorClass("a project names an undefined template", "all jobs of the project"),
    "Unknown Connection": ErrorClass(
        "a connection that the tenant may not use", "the pipeline; in the tenant file, the file"
    ),
    "AuthZ Rule Not Found": ErrorClass("the tenant file names a rule it does not define", "the tenant"),
    "Role Not Found": ErrorClass("the tenant file names a role it does not define", "the tenant"),
    "Global Semaphore Not Found": ErrorClass("the tenant file names a semaphore it does not define", "the tenant"),
    "Multiple Project Configurations": ErrorClass(
        "a branch has several of the standard roots", "the later roots", "warning"
    ),
    "Regex Deprecation": ErrorClass("a pattern that only Python's dialect supports", "nothing", "warning"),
    "Cleanup Run Deprecation": ErrorClass("cleanup-run instead of post-run with `cleanup: true`", "nothing", "warning"),
    NO_EFFECT: ErrorClass(
        "a setting that is accepted but has no effect; reports of changes do not mention it", "nothing", "warning"
    ),
    UNKNOWN_WORD: ErrorClass("a word that the connection's driver does not know", "nothing", "warning"),
    NEVER: ErrorClass("a trigger of plain git names a ref that causes no events", "nothing", "warning"),
    "Github Trigger Configuration Warning": ErrorClass(
        "a GitHub trigger has an unknown word, or a value of the wrong type", "nothing, or that trigger", "warning"
    ),
    "Gerrit Deprecation": ErrorClass("a key of a trigger that has a successor", "nothing", "warning"),
    "GitHub Deprecation": ErrorClass("a key of a trigger that has a successor", "nothing", "warning"),
}
"""Name of errors or warnings -> their description."""
_NOTHING = "nothing; only `headgate check` reports it"
CHECKED: dict[str, ErrorClass] = {
    "Pipeline Not Found": ErrorClass("a project has a section for a pipeline that no tenant has", _NOTHING),
    "Parents In A Circle": ErrorClass("a job inherits from itself through others", _NOTHING),
    "Queue Not Found": ErrorClass(
        "a project names an undeclared queue, which all branches then share", _NOTHING, "warning"
    ),
    "Semaphore Not Found": ErrorClass(
        "a job names an undeclared semaphore, which then admits one build at a time", _NOTHING, "warning"
    ),
}
"""Problems that only a check reports; changes are not rejected because of them."""
