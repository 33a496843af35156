"""Resolve the resources of a job: its nodesets, and its playbooks with their roles and secrets."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from msgspec.structs import replace

from headgate.base.errors import ConfigurationError
from headgate.base.hints import HintedText, hinted, nearest
from headgate.config.definitions import LayoutDefinitions
from headgate.config.files.checks import as_list, deep_plain, entries
from headgate.config.files.document import Table
from headgate.config.files.source import MEANING
from headgate.config.kinds.stanza import BOOK_KEYS, misread
from headgate.config.model import JobRole, Node, NodeGroup, Nodeset, Playbook, PlaybookSecret
from headgate.config.parse import Stanza

ALTERNATIVES_MAX = 200
"""Maximum number of alternatives of one nodeset, and maximum depth of nested alternatives."""
_IMPLICIT = re.compile(r"^(?:ansible[-_.+]*)*(?:role[-_.+]*)*")
"""Prefixes of the name of a repository that are not part of the name of its role."""


class UnknownNodeset(ConfigurationError):
    """Report a nodeset that refers to a missing nodeset, or to itself. `kind` is the name of the error."""

    def __init__(self, text: str | HintedText, kind: str) -> None:
        super().__init__(str(text))
        self.message, self.kind = hinted(text), kind


def flattened_nodesets(layout: LayoutDefinitions, given: str | Table, named: set[str] | None = None) -> list[Nodeset]:
    """Return the alternatives in depth-first order, and add the names of all visited nodesets to `named`. Raise
    UnknownNodeset."""
    found: list[Nodeset] = []
    _flatten_nodesets(layout, given, (), found, set() if named is None else named)
    return found


def unusable_nodeset(nodeset: Nodeset) -> str:
    """Return why the name of a node or group would be misread in an Ansible inventory, or an empty string if none
    would."""
    nodes = (misread(name, "node") for node in nodeset.nodes for name in node.name)
    return next(filter(None, (*nodes, *(misread(group.name, "group") for group in nodeset.groups))), "")


def _flatten_nodesets(
    layout: LayoutDefinitions, given: str | Table, path: tuple[str, ...], found: list[Nodeset], named: set[str]
) -> None:
    if isinstance(given, str):
        named.add(given)
        known = layout.singles["nodeset"]
        if given in path:
            raise UnknownNodeset(f"nodesets are alternatives in a circle: {' -> '.join((*path, given))}", MEANING)
        if given not in known:
            text = HintedText(f"the nodeset {given!r} is not defined", nearest(given, known))
            raise UnknownNodeset(text, "Nodeset Not Found")
        path, given = (*path, given), known[given].body
    # Check both: a chain of names is deep, and nodesets that each name two others double at each level.
    if len(path) > ALTERNATIVES_MAX or len(found) > ALTERNATIVES_MAX:
        raise UnknownNodeset(f"there are more than {ALTERNATIVES_MAX} alternatives", MEANING)
    alternatives = entries(given.get("alternatives"), 0)
    if not alternatives:
        found.append(_nodeset(given))
    for other, _ in alternatives:
        _flatten_nodesets(layout, other, path, found, named)


def _nodeset(body: Any) -> Nodeset:
    nodes = tuple(Node(tuple(as_list(n["name"])), n["label"]) for n, _ in entries(body.get("nodes"), 0))
    groups = tuple(NodeGroup(g["name"], tuple(as_list(g["nodes"]))) for g, _ in entries(body.get("groups"), 0))
    return Nodeset(body.get("name", ""), nodes, groups)


class JobSecrets(NamedTuple):
    """Hold the restrictions that the secrets of one variant impose on the job."""

    restrict: bool
    """Whether unreviewed code can read them, so that the job runs only after review."""
    passed_only: bool
    """Whether the only reason is that an untrusted playbook of a parent receives a secret."""


class UnknownSecret(ConfigurationError):
    """Report a secret that is not defined in the project of the variant that names it."""


class Books:
    """Collect the playbooks of a job; call `add` for one variant after another."""

    def __init__(self, layout: LayoutDefinitions) -> None:
        self._layout = layout
        self.pre_run: list[Playbook] = []
        self.run: list[Playbook] = []
        self.post_run: list[Playbook] = []
        self.roles: list[JobRole] = []
        """Roles, those of the nearest variant first."""
        self._trusted_roles: list[JobRole] = []
        """Roles that config-projects name; a proposed change cannot add to them, wherever it defines its job."""
        self._home_paths: list[str] = []

    def add(self, stanza: Stanza, body: Table, level: int, attaching: bool) -> JobSecrets:
        """Add the playbooks of one variant; `level` is the number of variants before it. Raise UnknownSecret."""
        own, passed = self._secrets(stanza, body)
        new = self._own_roles(stanza, body, attaching)
        self.roles = _with_roles(self.roles, new)
        if stanza.source.trusted:
            self._trusted_roles = _with_roles(self._trusted_roles, new)
        for path, _ in entries(body.get("preserve-home-paths"), 0):
            if path not in self._home_paths:
                self._home_paths.append(path)
        # Check this before adding the variant's own playbooks: only its parents' playbooks receive passed secrets.
        untrusted_parent = bool(passed) and any(not b.trusted for b in (*self.pre_run, *self.run, *self.post_run))
        self._pass(passed)
        if "run" in body:
            self.run = self._books(stanza, body, "run", level, own)
        self.pre_run += self._books(stanza, body, "pre-run", level, own)
        post = self._books(stanza, body, "post-run", level, own)
        # Prepend: post-run playbooks of a child job run before those of its parents, to clean up from the inside out.
        self.post_run = post + self._books(stanza, body, "cleanup-run", level, own) + self.post_run
        foreign = "secrets" in body and bool(entries(body["secrets"], 0)) and not stanza.source.trusted
        return JobSecrets(foreign or untrusted_parent, not foreign)

    def _books(
        self, stanza: Stanza, body: Table, key: str, level: int, secrets: tuple[PlaybookSecret, ...]
    ) -> list[Playbook]:
        source = stanza.source
        return [
            Playbook(
                project=source.project,
                connection=source.connection,
                branch=source.branch,
                path=book if isinstance(book, str) else book["name"],
                trusted=source.trusted,
                nesting=level,
                semaphores=() if isinstance(book, str) else tuple(s for s, _ in entries(book.get("semaphores"), 0)),
                cleanup=key == "cleanup-run" or (not isinstance(book, str) and book.get("cleanup", False)),
                ignore_result=key == "cleanup-run",
                # A trusted playbook must not use roles of untrusted variants, which would get its rights and secrets.
                roles=tuple(self._trusted_roles if source.trusted else self.roles),
                secrets=secrets,
                preserve_home_paths=tuple(self._home_paths),
            )
            for book, _ in entries(body.get(key), 0)
        ]

    def _own_roles(self, stanza: Stanza, body: Table, attaching: bool) -> list[JobRole]:
        """Return the role of the variant's own repository, unless the variant only attaches the job, and the roles that
        it names."""
        source, tenant = stanza.source, self._layout.tenant
        name = _IMPLICIT.sub("", source.project.rpartition("/")[2]) or source.project.rpartition("/")[2]
        new = [] if attaching else [JobRole(source.project, source.connection, name, implicit=True)]
        for role, _ in entries(body.get("roles"), 0):
            project = tenant.find(role["zuul"]) if "zuul" in role else None
            if project is not None:
                named = JobRole(project.project, project.connection, role.get("name", project.name.rpartition("/")[2]))
                # Naming the own repository as a role replaces the implicit role in its place.
                new = [named if known.implicit and known.project == named.project else known for known in new]
                new += [] if named in new else [named]
        return new

    def _secrets(self, stanza: Stanza, body: Table) -> tuple[tuple[PlaybookSecret, ...], tuple[PlaybookSecret, ...]]:
        """Return the secrets for this variant's playbooks, and those that are also passed to its parents' playbooks."""
        own: list[PlaybookSecret] = []
        passed: list[PlaybookSecret] = []
        needed = any(key in body for key in BOOK_KEYS)
        for entry, _ in entries(body.get("secrets"), 0):
            settings: Any = {"name": entry} if isinstance(entry, str) else entry
            is_passed = settings.get("pass-to-parent", False)
            # A secret that no playbook receives may be undefined; the configuration check only warns about it.
            if needed or is_passed:
                secret = self._secret(stanza, settings["name"], settings.get("secret", settings["name"]))
                own.append(secret)
                if is_passed:
                    passed.append(secret)
        return tuple(own), tuple(passed)

    def _secret(self, stanza: Stanza, name: str, secret: str) -> PlaybookSecret:
        found = self._layout.singles["secret"].get(secret)
        project, connection = stanza.source.project, stanza.source.connection
        # A secret belongs to the project that defines it; jobs of other projects must not use it by its name.
        if found is None or found.source.project != project:
            raise UnknownSecret(f"the secret {secret!r} is not defined in {project}")
        if "oidc" in found.body:
            tenant = self._layout.tenant
            settings = deep_plain(found.body["oidc"]) or {}
            return PlaybookSecret(name, project, connection, oidc={"ttl": tenant.default_oidc_ttl_s, **settings})
        return PlaybookSecret(name, project, connection, deep_plain(found.body["data"]))

    def _pass(self, passed: tuple[PlaybookSecret, ...]) -> None:
        """Add these secrets to every playbook collected so far that has no secret of the same name."""

        def given(book: Playbook) -> Playbook:
            known = {s.name for s in book.secrets}
            return replace(book, secrets=(*book.secrets, *(s for s in passed if s.name not in known)))

        if passed:
            self.pre_run = [given(b) for b in self.pre_run]
            self.run = [given(b) for b in self.run]
            self.post_run = [given(b) for b in self.post_run]


def _with_roles(known: list[JobRole], new: list[JobRole]) -> list[JobRole]:
    """Return the known roles with new ones in front. A role that is already in the list keeps its place, and an
    explicit role replaces the implicit role of the same project."""
    explicit = {role.project: role for role in reversed(new) if not role.implicit}
    replaced = [explicit[role.project] if role.implicit and role.project in explicit else role for role in known]
    present = {role.project for role in replaced}
    return [
        *(role for role in new if role not in replaced and not (role.implicit and role.project in present)),
        *replaced,
    ]
