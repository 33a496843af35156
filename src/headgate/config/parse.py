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

from headgate.config import keys
from headgate.config.check import Check, bad_pattern, plain, table
from headgate.config.marked import Source, Table, Wrong, load, nearest
from headgate.config.model import ConfigError
from headgate.config.tenants import STANDARD_PATHS, TenantProject

CACHE_MAX = 4_000
"""Parsed branches kept."""


@dataclass(frozen=True, slots=True)
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
    """Same project settings, branch and content: same parsed branch, not parsed again."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, ParsedBranch] = OrderedDict()
        self.parsed = 0
        """How often something really was parsed."""

    def parse(self, project: TenantProject, branch: str, files: Mapping[str, str]) -> ParsedBranch:
        digest = hashlib.sha256(msgspec.json.encode([project, branch, sorted(files.items())])).hexdigest()
        known = self._known.get(digest)
        if known is None:
            self.parsed += 1
            known = self._known[digest] = parse_branch(project, branch, files, digest)
            if len(self._known) > CACHE_MAX:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(digest)
        return known


def parse_branch(project: TenantProject, branch: str, files: Mapping[str, str], digest: str = "") -> ParsedBranch:
    stanzas: list[Stanza] = []
    errors: list[ConfigError] = []
    chosen, spurned = _roots(project, files)
    for path in chosen:
        source = Source(project.project, project.connection, branch, path, project.trusted, files[path])
        for found in _file(project, source):
            (errors if isinstance(found, ConfigError) else stanzas).append(found)  # type: ignore[arg-type]  # by type
    if spurned:
        source = Source(project.project, project.connection, branch, spurned[0], project.trusted, "")
        text = f"configuration is read from {chosen[0]}; {', '.join(spurned)} is not looked at"
        errors.append(source.error("Multiple Project Configurations", text, severity="warning"))
    return ParsedBranch(project, branch, tuple(stanzas), tuple(errors), digest)


def _roots(project: TenantProject, files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Files to read, and those of a root that an earlier root makes void."""
    ignored = [p.removesuffix(".zuul.ignore") for p in files if p.endswith("/.zuul.ignore")]
    usable = sorted(p for p in files if p.endswith(".yaml") and not any(p.startswith(i) for i in ignored))

    def under(root: str) -> list[str]:
        return [p for p in usable if p == root or (root.endswith("/") and p.startswith(root))]

    by_root = [found for root in STANDARD_PATHS if (found := under(root))]
    extra = [p for root in project.extra_config_paths for p in under(root)]
    return (by_root[0] if by_root else []) + extra, [p for found in by_root[1:] for p in found]


def _file(project: TenantProject, source: Source) -> Iterator[Stanza | ConfigError]:
    """A file that is no list of stanzas contributes nothing but its error."""
    try:
        document = load(source.text)
        if document is None:
            return
        items = _items(document)
    except Wrong as wrong:
        yield source.error(wrong.name, wrong.text, wrong.line)
        return
    pragma = next((dict(body) for kind, body, _ in items if kind == "pragma" and isinstance(body, Table)), {})
    for kind, body, line in items:
        if kind in project.include and kind not in keys.PROVIDER_KINDS:
            try:
                _check(kind, body, source)
                yield Stanza(kind, body, source, line, pragma)
            except Wrong as wrong:
                yield source.error(wrong.name, wrong.text, wrong.line or line)


def _items(document: Any) -> list[tuple[str, Any, int]]:
    if not isinstance(document, list):
        raise Wrong("a configuration file must be a list of stanzas such as `- job:`", 1)
    items = []
    known = [*keys.KINDS, *keys.PROVIDER_KINDS]
    for item in document:
        if not isinstance(item, Table) or len(item) != 1:
            raise Wrong("each stanza must be a mapping with one key, such as `- job:`", getattr(item, "line", 1))
        (kind, body) = next(iter(item.items()))
        if kind not in known:
            raise Wrong(f"{kind!r} is no kind of stanza{nearest(kind, known)}", item.at(kind))
        items.append((kind, body, item.at(kind)))
    return items


def _check(kind: str, body: Any, source: Source) -> None:
    tables: dict[str, Mapping[str, Check]] = {
        "job": keys.JOB,
        "pipeline": keys.PIPELINE,
        "queue": keys.QUEUE,
        "semaphore": keys.SEMAPHORE,
        "nodeset": keys.NODESET,
        "secret": keys.SECRET,
    }
    if kind == "pragma":
        table(body, keys.PRAGMA, kind, ())
    elif kind in ("project", "project-template"):
        _check_project(kind, body)
    elif kind == "pipeline" and not source.trusted:
        raise Wrong(
            "pipelines are defined in config-projects only; move it there",
            getattr(body, "line", 0),
            "Pipeline Forbidden",
        )
    else:
        table(body, tables[kind], kind, ("name", "manager") if kind == "pipeline" else ("name",))
    if kind == "job":
        check_job(body)
    if kind in ("job", "nodeset"):
        nodeset = body if kind == "nodeset" else plain(body.get("nodeset"))
        if isinstance(nodeset, Table):
            _check_nodeset(nodeset)


def check_job(body: Table) -> None:
    if body.get("intermediate") and not body.get("abstract"):
        raise Wrong("an intermediate job must also be abstract", body.at("intermediate"))
    if body.get("post-review") is False:
        raise Wrong("post-review can be set to true only", body.at("post-review"))
    if body.get("pre-timeout", 0) > body.get("timeout", 1 << 40):
        raise Wrong("pre-timeout is longer than timeout", body.at("pre-timeout"), "Pre-Timeout Exceeds Timeout")
    for key in ("vars", "extra-vars"):
        for name in plain(body.get(key)) or {}:
            if not name.replace("_", "a").isalnum() or name[0].isdigit() or name in RESERVED_VARS:
                raise Wrong(f"{name!r} cannot be the name of a variable", body.at(key))
    if plain(body.get("secrets")):
        raise Wrong(
            "jobs with secrets cannot be run yet: there is no key to open them; remove `secrets`", body.at("secrets")
        )


RESERVED_VARS = frozenset(
    [
        "zuul",
        "zuul_node",
        "nodepool",
        "unsafe_vars",
        "zuul_user_dir",
        "ansible_connection",
        "ansible_host",
        "ansible_python_interpreter",
        "ansible_shell_executable",
        "ansible_user",
    ]
)


def _check_nodeset(body: Table) -> None:
    names: set[str] = set()
    for node in plain(body.get("nodes")) or []:
        table(node, keys.NODE, "node", ("name", "label"))
        for name in node["name"] if isinstance(node["name"], list) else [node["name"]]:
            if name in names or name == "localhost":
                raise Wrong(
                    f"the node name {name!r} cannot be used twice, nor `localhost`", node.line, "Duplicate Node"
                )
            names.add(name)
    for group in plain(body.get("groups")) or []:
        table(group, keys.GROUP, "group", ("name", "nodes"))
        for name in group["nodes"] if isinstance(group["nodes"], list) else [group["nodes"]]:
            if names and name not in names:
                raise Wrong(
                    f"the group names the node {name!r}, which is not there", group.line, "Node From Group Not Found"
                )


def _check_project(kind: str, body: Any) -> None:
    own = keys.PROJECT if kind == "project" else keys.TEMPLATE
    if not isinstance(body, Table):
        raise Wrong(f"a {kind} must be a mapping", 0)
    head = Table(body.line)
    for key, value in body.items():
        if key in own:
            head[key], head.lines[key] = value, body.at(key)
            continue
        table(value, keys.PROJECT_PIPELINE, f"pipeline section ({key!r} is no other key of a {kind})", ())
        for job in value.get("jobs") or []:
            if isinstance(job, Table):
                _check_project_job(job)
    table(head, own, kind, ("name",) if kind == "project-template" else ())
    if body.get("name", "").startswith("^") and (why := bad_pattern(body["name"])):
        raise Wrong(f"name {why}", body.at("name"))


def _check_project_job(job: Table) -> None:
    if len(job) != 1:
        raise Wrong("a job of a project is a name, or a mapping of one name to its attributes", job.line)
    name, attributes = next(iter(job.items()))
    if isinstance(attributes, Table):
        table(attributes, keys.JOB, f"job {name!r} of this project", ())
        check_job(attributes)
    elif attributes is not None:
        raise Wrong(f"the attributes of job {name!r} must be a mapping", job.at(name))
