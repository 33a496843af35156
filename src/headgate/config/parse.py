"""Parse the files of one branch of a project into stanzas, and check each stanza independently.

The result does not depend on other projects or branches, so each content is parsed only once.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from headgate.base.hints import HintedText, nearest
from headgate.config.budgets import BRANCH_MAX_BYTES, DEFAULTS, FILES_MAX, Budgets, sized
from headgate.config.files.checks import one_stanza
from headgate.config.files.document import SecretOpener, Table, load
from headgate.config.files.source import Source, Wrong, roots
from headgate.config.keys.objects import KINDS, PROJECT, TEMPLATE
from headgate.config.kinds.stanza import check_stanza
from headgate.config.model import ConfigError
from headgate.config.operator.model import TenantProject

CACHE_MAX = 40_000
"""Maximum number of cached branches, and of cached files."""
TOO_LARGE = "Configuration Too Large"
"""Name of errors about input that exceeds its budget."""
_FORBIDDEN = "only config-projects may define pipelines; move it there"
T = TypeVar("T")


# Stanzas are keys of many tables, but their bodies cannot be hashed, so identity distinguishes them (`eq=False`).
@dataclass(frozen=True, slots=True, eq=False)
class Stanza:
    """Represent one checked element of a file."""

    kind: str
    body: Table
    source: Source
    line: int
    pragma: Mapping[str, Any] = field(default_factory=dict)
    """Pragma of the same file: implied-branch-matchers, implied-branches."""
    position: int = 0
    """Position among the stanzas of its project and branch."""

    @property
    def name(self) -> str:
        name = self.body.get("name", "")
        return name if isinstance(name, str) else ""

    @property
    def place(self) -> str:
        return f"{self.source.place}:{self.line}"

    def sections(self) -> Iterator[tuple[str, Table]]:
        """Yield (pipeline, section) for each section of a project or template."""
        own = PROJECT if self.kind == "project" else TEMPLATE
        return ((key, value) for key, value in self.body.items() if key not in own)

    def error(self, name: str, text: str | HintedText, key: str = "", severity: str = "error") -> ConfigError:
        return self.source.error(name, text, self.body.at(key) if key else self.line, severity)


@dataclass(frozen=True, slots=True)
class ParsedBranch:
    """Hold the parsed files of one branch. Equal digests mean equal contents."""

    project: TenantProject
    branch: str
    stanzas: tuple[Stanza, ...]
    errors: tuple[ConfigError, ...]
    digest: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Parsed files: path -> text."""


class _Content(NamedTuple):
    """Hold the parsed content of a file, which does not depend on its branch."""

    items: tuple[tuple[str, Table, int] | Wrong, ...]
    """Stanzas as (kind, body, line), or errors."""
    pragma: Mapping[str, Any]


Contents = OrderedDict[str, _Content]
"""Digest of project settings and text -> parsed content."""


class ParseCache:
    """Cache parsed branches by project settings, branch and content. A file that was parsed on another branch is not
    parsed again either.

    An `opener` decrypts the secrets of each content once, as a check.
    """

    def __init__(self, opener: SecretOpener | None = None, budgets: Budgets = DEFAULTS) -> None:
        self.budgets = budgets
        self._known: OrderedDict[str, ParsedBranch] = OrderedDict()
        self._files: Contents = OrderedDict()
        self._opener = opener
        self.parsed = 0
        """Number of branches that were parsed rather than found in the cache."""

    def parse(self, project: TenantProject, branch: str, files: Mapping[str, str]) -> ParsedBranch:
        """Parse the files of a branch, or return the cached result."""
        # Leave out the protection, which does not affect the result.
        settings = msgspec.json.encode(replace(project, protection=None))
        digest = _digest(settings, branch, *(text for path in sorted(files) for text in (path, files[path])))
        known = self._known.get(digest)
        if known is None:
            self.parsed += 1
            known = _parse(project, branch, files, digest, self._opener, self._files, self.budgets)
            _keep(self._known, digest, known)
        else:
            self._known.move_to_end(digest)
        return known


def _keep(known: OrderedDict[str, T], key: str, value: T) -> None:
    known[key] = value
    if len(known) > CACHE_MAX:
        known.popitem(last=False)


def _digest(settings: bytes, *parts: str) -> str:
    digest = hashlib.sha256(settings)
    for part in parts:
        found = part.encode("utf-8", "surrogatepass")
        # Include lengths: otherwise text could move from the end of one part to the next without changing the digest.
        digest.update(b"%d:" % len(found))
        digest.update(found)
    return digest.hexdigest()


def parse_branches(
    project: TenantProject, found: Mapping[str, Mapping[str, str]], budgets: Budgets = DEFAULTS
) -> dict[str, ParsedBranch]:
    """Parse several branches of one project. A file that is the same on all of them is parsed once."""
    contents: Contents = OrderedDict()
    return {branch: _parse(project, branch, files, "", None, contents, budgets) for branch, files in found.items()}


def _parse(
    project: TenantProject,
    branch: str,
    files: Mapping[str, str],
    digest: str,
    opener: SecretOpener | None,
    contents: Contents,
    budgets: Budgets,
) -> ParsedBranch:
    stanzas: list[Stanza] = []
    errors: list[ConfigError] = []
    settings = msgspec.json.encode(project)
    found = roots(files, project.extra_config_paths) if project.loads else roots((), ())
    # If the branch is too large, read nothing: a part of it would be a different configuration.
    if why := _too_much(files, found.read):
        source = Source(project.project, project.connection, branch, found.read[0], project.trusted, "")
        return ParsedBranch(project, branch, (), (source.error(TOO_LARGE, why),), digest, files)
    for path in found.read:
        # Replace lone surrogates: they cause encoding errors wherever the text is stored or shown.
        text = files[path].encode("utf-8", "replace").decode()
        source = Source(project.project, project.connection, branch, path, project.trusted, text)
        key = _digest(settings, text)
        content = contents.get(key)
        if content is None:
            content = _content(project, text, opener, budgets)
            _keep(contents, key, content)
        for item in content.items:
            if isinstance(item, Wrong):
                errors.append(source.error_from(item))
            else:
                stanzas.append(Stanza(*item[:2], source, item[2], content.pragma, len(stanzas)))
    for path in found.spurned:
        source = Source(project.project, project.connection, branch, path, project.trusted, files[path])
        text = f"configuration is read from {found.read[0]}; {path} is ignored"
        errors.append(source.error("Multiple Project Configurations", text, severity="warning"))
    return ParsedBranch(project, branch, tuple(stanzas), tuple(errors), digest, files)


def _too_much(files: Mapping[str, str], read: Sequence[str]) -> str:
    """Return why the branch is not read, or an empty string if it is within its limits."""
    if len(read) > FILES_MAX:
        return f"this branch has {len(read)} configuration files; at most {FILES_MAX} are allowed"
    if (length := sum(len(files[path]) for path in read)) > BRANCH_MAX_BYTES:
        return f"the configuration on this branch has {sized(length)}; at most {sized(BRANCH_MAX_BYTES)} are allowed"
    return ""


def _content(project: TenantProject, text: str, opener: SecretOpener | None, budgets: Budgets) -> _Content:
    """Parse the text of a file. A file that is not a list of stanzas contributes only its error."""
    try:
        document = load(text, budgets)
        items = [] if document is None else _items(document)
    except Wrong as wrong:
        return _Content((_noted(_undashed(text, wrong)),), {})
    found: list[tuple[str, Table, int] | Wrong] = []
    forbidden = False
    pragma: dict[str, Any] = {}
    # A pragma applies to its entire file, wherever it is; the sort is stable and keeps the order of other stanzas.
    for kind, body, line in sorted(items, key=lambda item: item[0] != "pragma"):
        # Do not even check stanzas that the operator excludes from this tenant.
        if kind != "pragma" and kind not in project.include:
            continue
        if kind == "pipeline" and not project.trusted:
            if not forbidden:
                found.append(Wrong(_FORBIDDEN, line, "Pipeline Forbidden"))
            forbidden = True
            continue
        warnings: list[Wrong] = []
        try:
            check_stanza(kind, body, line, project.project, opener, warnings)
        except Wrong as wrong:
            found.append(_noted(wrong, line))
            continue
        found += (_noted(warning, line) for warning in warnings)
        if kind == "pragma":
            pragma.update(body)
        else:
            found.append((kind, body, line))
    return _Content(tuple(found), pragma)


def _noted(wrong: Wrong, line: int = 0) -> Wrong:
    """Return a copy of the error without its traceback, so that it can be cached."""
    return Wrong(wrong.message, wrong.line or line, wrong.name, wrong.severity)


_UNDASHED = re.compile(rf"(?:{'|'.join(map(re.escape, KINDS))}):(?=\s|$)")


def _undashed(text: str, wrong: Wrong) -> Wrong:
    """Replace a YAML error by one that points to a stanza without its dash; return any other error unchanged."""
    lines = text.splitlines()
    # The parser may detect a missing dash only on a later line.
    for line in range(min(wrong.line, len(lines)), max(0, wrong.line - 3), -1):
        if wrong.text.startswith("this is not YAML") and (found := _UNDASHED.match(lines[line - 1])):
            return Wrong(f"this stanza lacks its dash: write `- {found[0]}`, and indent the lines below it", line)
    return wrong


def _items(document: Any) -> list[tuple[str, Any, int]]:
    if isinstance(document, Table) and (kind := next((key for key in document if key in KINDS), None)):
        raise Wrong(f"this stanza lacks its dash: write `- {kind}:`, and indent the lines below it", document.at(kind))
    if not isinstance(document, list):
        raise Wrong("a configuration file must be a list of stanzas such as `- job:`", 1)
    items = []
    for item in document:
        kind, body = one_stanza(item, KINDS, "each stanza must be a mapping with one key, such as `- job:`")
        if kind not in KINDS:
            raise Wrong(HintedText(f"{kind!r} is not a kind of stanza", nearest(kind, KINDS)), item.at(kind))
        if not isinstance(body, Table):
            raise Wrong(f"the content of `- {kind}:` must be a mapping", item.at(kind))
        items.append((kind, body, item.at(kind)))
    return items
