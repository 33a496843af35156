"""The files of one branch of one project, as stanzas that were checked one by one.

Independent of the tenant's other projects and of every other branch, so it is done once for the same content.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headgate.config.keys.objects import KINDS, PROJECT, TEMPLATE
from headgate.config.kinds.checks import check_stanza
from headgate.config.model import ConfigError
from headgate.config.reading.document import Table, load
from headgate.config.reading.roots import roots
from headgate.config.reading.source import Source, Wrong, nearest
from headgate.config.secrets import SecretOpener
from headgate.config.tenants import TenantProject

CACHE_MAX = 40_000
"""Parsed branches kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Stanza:
    """One checked element of a file."""

    kind: str
    body: Table
    source: Source
    line: int
    pragma: Mapping[str, Any] = field(default_factory=dict)
    """Of the same file: implied-branch-matchers, implied-branches."""

    @property
    def name(self) -> str:
        name = self.body.get("name", "")
        return name if isinstance(name, str) else ""

    @property
    def place(self) -> str:
        return f"{self.source.place}:{self.line}"

    def sections(self) -> Iterator[tuple[str, Table]]:
        """Of a project or template: (pipeline, what it says of it)."""
        own = PROJECT if self.kind == "project" else TEMPLATE
        return ((key, value) for key, value in self.body.items() if key not in own)

    def error(self, name: str, text: str, key: str = "", severity: str = "error") -> ConfigError:
        return self.source.error(name, text, self.body.at(key) if key else self.line, severity)


@dataclass(frozen=True, slots=True)
class ParsedBranch:
    """`digest` is equal only for equal content."""

    project: TenantProject
    branch: str
    stanzas: tuple[Stanza, ...]
    errors: tuple[ConfigError, ...]
    digest: str


class ParseCache:
    """Same project settings, branch and content: same parsed branch, not parsed again.

    `opener`, when there is one, is asked once for each content whether its secrets can be opened.
    """

    def __init__(self, opener: SecretOpener | None = None) -> None:
        self._known: OrderedDict[str, ParsedBranch] = OrderedDict()
        self._opener = opener
        self.parsed = 0
        """How often something really was parsed."""

    def parse(self, project: TenantProject, branch: str, files: Mapping[str, str]) -> ParsedBranch:
        digest = _digest(project, branch, files)
        known = self._known.get(digest)
        if known is None:
            self.parsed += 1
            known = self._known[digest] = parse_branch(project, branch, files, digest, self._opener)
            if len(self._known) > CACHE_MAX:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(digest)
        return known


def _digest(project: TenantProject, branch: str, files: Mapping[str, str]) -> str:
    digest = hashlib.sha256(msgspec.json.encode(project))
    for part in (branch, *(text for path in sorted(files) for text in (path, files[path]))):
        found = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(found))
        digest.update(found)
    return digest.hexdigest()


def parse_branch(
    project: TenantProject,
    branch: str,
    files: Mapping[str, str],
    digest: str = "",
    opener: SecretOpener | None = None,
) -> ParsedBranch:
    stanzas: list[Stanza] = []
    errors: list[ConfigError] = []
    found = roots(files, project.extra_config_paths) if project.loads else roots((), ())
    for path in found.read:
        source = Source(project.project, project.connection, branch, path, project.trusted, files[path])
        for one in _file(project, source, opener):
            (errors if isinstance(one, ConfigError) else stanzas).append(one)  # type: ignore[arg-type]  # by type
    for path in found.spurned:
        source = Source(project.project, project.connection, branch, path, project.trusted, files[path])
        text = f"configuration is read from {found.read[0]}; {path} is not looked at"
        errors.append(source.error("Multiple Project Configurations", text, severity="warning"))
    return ParsedBranch(project, branch, tuple(stanzas), tuple(errors), digest)


def _file(project: TenantProject, source: Source, opener: SecretOpener | None) -> Iterator[Stanza | ConfigError]:
    """A file that is no list of stanzas contributes nothing but its error."""
    try:
        document = load(source.text)
        items = [] if document is None else _items(document)
    except Wrong as wrong:
        yield source.told(wrong)
        return
    forbidden = False
    pragma: dict[str, Any] = {}
    for kind, body, line in sorted(items, key=lambda item: item[0] != "pragma"):
        if kind != "pragma" and kind not in project.include:
            continue
        if kind == "pipeline" and not source.trusted:
            if not forbidden:
                text = "pipelines are defined in config-projects only; move it there"
                yield source.error("Pipeline Forbidden", text, line)
            forbidden = True
            continue
        warnings: list[Wrong] = []
        try:
            check_stanza(kind, body, line, source, opener, warnings)
        except Wrong as wrong:
            yield source.told(wrong, line)
            continue
        yield from (source.told(warning, line) for warning in warnings)
        if kind == "pragma":
            pragma.update(body)
        else:
            yield Stanza(kind, body, source, line, pragma)


def _items(document: Any) -> list[tuple[str, Any, int]]:
    if not isinstance(document, list):
        raise Wrong("a configuration file must be a list of stanzas such as `- job:`", 1)
    items = []
    for item in document:
        if not isinstance(item, Table) or len(item) != 1:
            raise Wrong("each stanza must be a mapping with one key, such as `- job:`", getattr(item, "line", 1))
        ((kind, body),) = item.items()
        if kind not in KINDS:
            raise Wrong(f"{kind!r} is no kind of stanza{nearest(kind, KINDS)}", item.at(kind))
        if not isinstance(body, Table):
            raise Wrong(f"what a {kind} is must be a mapping", item.at(kind))
        items.append((kind, body, item.at(kind)))
    return items
