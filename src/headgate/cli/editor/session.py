"""Combine the loaded tenants with the unsaved text in the editor: find errors, explain words, locate definitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headgate.base.errors import UserError
from headgate.cli.check.inspection import pipelines_of
from headgate.cli.offline.explain import chosen, shown
from headgate.cli.offline.graphs import default_branch
from headgate.cli.offline.reader import LoadedTenant
from headgate.cli.offline.report import place
from headgate.cli.offline.repositories import checked_out
from headgate.cli.terminal.say import unstyled
from headgate.config.check.findings import GraphFinding, frozen, graphs, layout_findings, left_out, missed
from headgate.config.check.uses import reached
from headgate.config.explain.marks import Extent, extent, key_of, word_at
from headgate.config.explain.origins import explained
from headgate.config.files.source import STANDARD_PATHS
from headgate.config.model import ConfigError
from headgate.config.operator.model import TenantProject
from headgate.config.parse import Stanza, parse_branches

SHOWN_MAX = 25
"""Maximum number of lines of a definition or an explanation in a hover."""
NEARBY_MAX = 20
"""Maximum number of projects to freeze after typing; saving a file freezes all affected projects."""


class Problem(NamedTuple):
    error: ConfigError
    extent: Extent
    because: str
    """Problem elsewhere that causes this one, or empty."""


class Location(NamedTuple):
    path: Path
    line: int


class ProjectFile(NamedTuple):
    """Name a file of a project, on the branch that is checked out."""

    project: str
    branch: str
    path: str


@dataclass(slots=True)
class _Tenant:
    loaded: LoadedTenant
    ended: dict[str, list[GraphFinding]] = field(default_factory=dict)
    """Project -> findings that break its graphs, for each project that has been frozen."""
    stale: set[str] = field(default_factory=set)
    """Projects that must be frozen again."""
    layout_findings: list[GraphFinding] | None = None
    """Findings of the current layout, or None if it has not been checked yet."""


class EditorSession:
    """Hold the tenants, with the text in the editor overriding files. `trees` maps canonical names to work trees;
    `complete` states that no tenant is missing."""

    def __init__(self, tenants: Mapping[str, LoadedTenant], trees: Mapping[str, Path], *, complete: bool):
        self._tenants = {name: _Tenant(loaded) for name, loaded in tenants.items()}
        self._trees = {project: path.resolve() for project, path in trees.items()}
        self._roots = {path: project for project, path in self._trees.items()}
        self._complete = complete
        self._alone: dict[Path, str] = {}
        """Texts of files that belong to no tenant."""
        for tenant in self._tenants.values():
            # Nothing has been frozen yet, so everything counts as stale.
            tenant.stale |= {source.project for source in tenant.loaded.tenant.projects}

    # --- files

    def file(self, path: Path) -> ProjectFile | None:
        """Return the project's file, or None if it is not configuration of a known project."""
        path = path.resolve()
        root = next((above for above in path.parents if above in self._roots), None)
        project, name = self._roots.get(root or path, ""), str(path.relative_to(root)) if root is not None else ""
        for tenant in self._tenants.values():
            source = tenant.loaded.tenant.by_canonical.get(project)
            if source is not None and _counts(name, source.config_paths):
                return ProjectFile(project, self._branch(tenant.loaded, source), name)
        return None

    def _branch(self, loaded: LoadedTenant, source: TenantProject) -> str:
        current = checked_out(self._trees[source.project])
        return current if current in loaded.branches.get(source.project, {}) else default_branch(loaded, source)

    def write(self, path: Path, text: str | None) -> None:
        """Replace the text of a file; None restores the text on disk."""
        file = self.file(path)
        if text is None:
            text = path.read_text(errors="replace") if path.is_file() else ""
        if file is None:
            self._alone[path] = text
            return
        for tenant in self._tenants.values():
            had = tenant.loaded.files.get(file.project, {}).get(file.branch, {})
            # Saving an unchanged file must not freeze anything again.
            if file.project in tenant.loaded.tenant.by_canonical and had.get(file.path, "") != text:
                new = tenant.loaded.with_files({file.project: {file.branch: {**had, file.path: text}}})
                # Stale projects accumulate over several edits; only freezing removes them.
                tenant.stale |= reached(tenant.loaded.layout, new.layout)
                tenant.loaded = new
                # Another tenant may name pipelines of this one.
                for other in self._tenants.values():
                    other.layout_findings = None

    def refresh(self, file: ProjectFile | None, *, everything: bool) -> Iterator[None]:
        """Freeze stale projects, one for each step of the iterator, beginning with the project of the file."""
        for tenant in self._tenants.values():
            # Freeze the file's own project first: the user waits for its errors.
            waiting = sorted(tenant.stale, key=lambda project: (file is None or project != file.project, project))
            # A base job affects every project: freezing all of them after each pause in typing would take too long.
            for project in waiting if everything else waiting[:NEARBY_MAX]:
                layout = tenant.loaded.layout
                tenant.ended[project] = [one for graph in graphs(layout, {project}) for one in frozen(layout, graph)]
                tenant.stale.discard(project)
                yield

    # --- problems

    def problems(self, path: Path) -> dict[Path, list[Problem]]:
        """Return the problems of every file of this file's project, which always includes the file itself."""
        file = self.file(path)
        if file is None:
            return {path: list(self._form(path))}
        found: dict[Path, dict[tuple[str, int], Problem]] = {path: {}}
        root = self._trees[file.project]
        for tenant in self._tenants.values():
            if file.project not in tenant.loaded.tenant.by_canonical:
                continue
            lost = left_out(tenant.loaded.layout)
            texts = tenant.loaded.files.get(file.project, {}).get(file.branch, {})
            for error in self._errors(tenant):
                if (error.project, error.branch) != (file.project, file.branch) or not error.path:
                    continue
                cause = lost.get(missed(error, lost))
                because = f"{place(cause)}: {cause.text}" if cause is not None and cause != error else ""
                exact = extent(error, texts.get(error.path, ""))
                problem = Problem(error, exact, because)
                # Several tenants or graphs may report the same mistake: show it once per line.
                found.setdefault(root / error.path, {}).setdefault((missed(error) or error.text, error.line), problem)
        return {where: list(problems.values()) for where, problems in found.items()}

    def _errors(self, tenant: _Tenant) -> Iterable[ConfigError]:
        yield from tenant.loaded.errors
        if tenant.layout_findings is None:
            # If tenants are missing, they may define a pipeline that seems unknown.
            pipelines = pipelines_of(one.loaded for one in self._tenants.values()) if self._complete else None
            tenant.layout_findings = list(layout_findings(tenant.loaded.layout, pipelines))
        yield from (finding.error for finding in tenant.layout_findings)
        yield from (finding.error for found in tenant.ended.values() for finding in found)

    def _form(self, path: Path) -> Iterator[Problem]:
        """Yield the syntax errors of a file outside all tenants; nothing else can be checked."""
        source = TenantProject("", "", "", trusted=True)
        text = self._alone.get(path, "")
        # Skip other open files, such as playbooks, which are not Headgate configuration.
        if path.suffix != ".yaml" or not any(part in str(path) for part in ("zuul.yaml", "zuul.d/")):
            return
        for error in parse_branches(source, {"": {"zuul.yaml": text}})[""].errors:
            yield Problem(error, extent(error, text), "")

    # --- hovers and definitions

    def hover(self, path: Path, line: int, column: int) -> str:
        """Return an explanation of the word at this position, as Markdown, or an empty string."""
        file = self.file(path)
        for tenant in self._tenants.values() if file is not None else ():
            assert file is not None, "only then there are tenants to look at"
            key = self._key(tenant, file, line, column)
            found = tenant.loaded.layout.admitted(key) if key is not None else ()
            if key is not None and key[0] == "job" and found:
                return _fenced(self._job(tenant.loaded, key[1], file))
            if found:
                return _fenced(_definition(found[0]), "yaml")
        return ""

    def definition(self, path: Path, line: int, column: int) -> list[Location]:
        """Return the places on this machine that define what the word at this position names."""
        file, found = self.file(path), dict[Location, None]()
        for tenant in self._tenants.values() if file is not None else ():
            assert file is not None, "only then there are tenants to look at"
            key = self._key(tenant, file, line, column)
            for stanza in tenant.loaded.layout.admitted(key) if key is not None else ():
                root = self._trees.get(stanza.source.project)
                if root is not None and (root / stanza.source.path).is_file():
                    found[Location(root / stanza.source.path, stanza.body.at("name"))] = None
        return list(found)

    def _key(self, tenant: _Tenant, file: ProjectFile, line: int, column: int) -> tuple[str, str] | None:
        text = tenant.loaded.files.get(file.project, {}).get(file.branch, {}).get(file.path, "")
        word = word_at(text, line, column)
        return key_of(word) if word is not None else None

    def _job(self, loaded: LoadedTenant, name: str, file: ProjectFile) -> str:
        """Return an explanation of the job as the file's own project runs it, or else in general."""
        try:
            question = chosen({"": loaded}, name, file.project, None, file.branch)
        except UserError:
            # A project may mention a job without running it.
            question = chosen({"": loaded}, name, None, None, None)
        where = question.place
        at_place = (where.pipeline, where.project.project) if where is not None else ("", "")
        lines = unstyled("\n".join(shown(question, explained(loaded.layout, name, question.target, *at_place))))
        return _cut(lines.splitlines())


def _counts(name: str, paths: Iterable[str]) -> bool:
    """Return whether the file with this path in the repository is configuration."""
    return any(name == path or (path.endswith("/") and name.startswith(path)) for path in (*paths, *STANDARD_PATHS))


def _definition(stanza: Stanza) -> str:
    lines = stanza.source.text.splitlines()[stanza.line - 1 :]
    end = next((n for n, line in enumerate(lines) if n and line.startswith("-")), len(lines))
    return _cut([f"# {stanza.place}", *lines[:end]])


def _cut(lines: list[str]) -> str:
    more = ["…"] if len(lines) > SHOWN_MAX else []
    return "\n".join([*(line.rstrip() for line in lines[:SHOWN_MAX]), *more]).rstrip()


def _fenced(text: str, language: str = "") -> str:
    # Break up fences in the text, which could otherwise end this one and inject Markdown.
    return f"```{language}\n{text.replace('```', '` ` `')}\n```"
