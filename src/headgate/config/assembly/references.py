"""Find references to undefined names and forbidden references.

The stanza stays in the layout; a freeze reports the error, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from headgate.base.hints import HintedText, nearest
from headgate.config.assembly.providers import PARTS, attached, misfits, retained_counts
from headgate.config.definitions import Key, LayoutDefinitions
from headgate.config.files.checks import deep_plain, entries
from headgate.config.files.document import Table
from headgate.config.files.source import MEANING
from headgate.config.freeze.resources import UnknownNodeset, flattened_nodesets
from headgate.config.freeze.sections import is_dropped
from headgate.config.keys.forms import BY_DEFAULT
from headgate.config.kinds.stanza import BOOK_KEYS, section_jobs
from headgate.config.model import ConfigError
from headgate.config.parse import Stanza
from headgate.config.patterns import Undecided

UNMERGED_GITHUB = ("cherry-pick",)
"""Merge modes that GitHub does not have."""
_INHERITED = ("final", "intermediate", "protected", "type", "image-build-name")
"""Attributes of a job that restrict the jobs that inherit from it."""


def seen_from_outside(key: Key, admitted: Sequence[Stanza]) -> object:
    """Return a value that changes whenever references to `key` must be checked again."""
    match key[0]:
        case "job":
            # A change of other attributes cannot make a reference right or wrong.
            return [(s.source.project, *(s.body.get(word) for word in _INHERITED)) for s in admitted]
        case "nodeset" | "pipeline" | "section" | "label":
            return [deep_plain(s.body) for s in admitted]
        case "secret":
            return [s.source.project for s in admitted]
        case "image":
            return [(s.source.project, deep_plain(s.body)) for s in admitted]
        case _:
            return bool(admitted)


class References:
    """Check the references of one stanza, and record in `read` which keys of the layout it depends on."""

    def __init__(self, layout: LayoutDefinitions, *, helpful: bool = True) -> None:
        """Prepare to check stanzas. Suggest similar names only if `helpful`, because finding them is slow."""
        self._layout, self._helpful = layout, helpful
        self._tenant = layout.tenant
        self.read: set[Key] = set()

    def _nearest(self, word: str, known: Collection[str]) -> str:
        return nearest(word, known) if self._helpful else ""

    def _known(self, kind: str, name: str) -> bool:
        self.read.add((kind, name))
        return bool(self._layout.admitted((kind, name)))

    def _single(self, kind: str, name: str) -> Stanza | None:
        return self._layout.singles[kind].get(name) if self._known(kind, name) else None

    def check(self, stanza: Stanza) -> Iterator[ConfigError]:
        """Yield the errors in the references of a stanza."""
        match stanza.kind:
            case "job":
                yield from self._job(stanza)
            case "nodeset":
                yield from self._nodeset(stanza, stanza.name, stanza.body.at("alternatives"))
                yield from self._labels(stanza, stanza.body)
            case "pipeline":
                yield from self._missing(stanza, "supercedes", "pipeline", self._layout.pipelines, MEANING)
                yield from self._unchecked(stanza)
            case "project" | "project-template":
                known = self._layout.templates
                yield from self._missing(stanza, "templates", "project-template", known, "Template Not Found")
                yield from self._merge_mode(stanza)
                for pipeline, section in stanza.sections():
                    if self._known("pipeline", pipeline):
                        yield from self._section(stanza, pipeline, section)
            case "label" | "section" | "provider":
                yield from self._nodepool(stanza)
            case "image":
                yield from retained_counts(stanza)
            case _:
                return

    def _missing(self, stanza: Stanza, key: str, kind: str, known: Collection[str], name: str) -> Iterator[ConfigError]:
        for word, line in entries(stanza.body.get(key), stanza.body.at(key)):
            if not self._known(kind, word):
                yield stanza.source.error(
                    name, HintedText(f"there is no {kind} {word!r}", self._nearest(word, known)), line
                )

    def _unchecked(self, stanza: Stanza) -> Iterator[ConfigError]:
        """Yield an error for each undefined pipeline whose results a requirement checks."""
        for key in ("require", "reject"):
            for requirement in stanza.body.get(key, Table(0)).values():
                if not isinstance(requirement, Table) or "check" not in requirement:
                    continue
                wanted, line = requirement["check"], requirement.at("check")
                for name in wanted if isinstance(wanted, Table) else (BY_DEFAULT,):
                    if not self._known("pipeline", name):
                        effect = "no change can enter" if key == "require" else "it rejects no changes"
                        near = self._nearest(name, self._layout.pipelines)
                        text = HintedText(f"there is no pipeline {name!r}, whose result {key} checks: {effect}", near)
                        yield stanza.source.error(MEANING, text, line, "warning")

    def _defined(self, job: str) -> bool:
        return job == "noop" or self._known("job", job)

    def _undefined(self, stanza: Stanza, job: str, line: int, how: str = "job", severity: str = "error") -> ConfigError:
        text = HintedText(f"the {how} {job!r} is not defined", self._nearest(job, self._layout.jobs))
        return stanza.source.error(MEANING, text, line, severity)

    # --- jobs

    def _job(self, stanza: Stanza) -> Iterator[ConfigError]:
        yield from self._parent(stanza)
        yield from self._attributes(stanza, stanza.body)

    def _attributes(self, stanza: Stanza, body: Table) -> Iterator[ConfigError]:
        """Yield the errors in the attributes of a job, in its own stanza or in a project's section."""
        for entry, line in entries(body.get("dependencies"), body.at("dependencies")):
            name = entry if isinstance(entry, str) else entry["name"]
            if not self._defined(name):
                yield self._undefined(stanza, name, line, "job it depends on,", "warning")
        yield from self._nodeset(stanza, body.get("nodeset"), body.at("nodeset"))
        yield from self._labels(stanza, body.get("nodeset"))
        yield from self._roles(stanza, body)
        yield from self._secrets(stanza, body)

    def _parent(self, stanza: Stanza) -> Iterator[ConfigError]:
        body, line = stanza.body, stanza.body.at("parent")
        parent = body.get("parent")
        # A variant may name its own job as its parent, which adds nothing.
        if parent is None or parent == stanza.name:
            return
        if not self._defined(parent):
            yield self._undefined(stanza, parent, line, "parent job")
        variants = self._layout.variants(parent)
        if any(v.body.get("final") for v in variants):
            yield stanza.source.error(MEANING, f"the job {parent} is final: no job may inherit from it", line)
        if any(v.body.get("intermediate") for v in variants) and not body.get("abstract"):
            text = f"the job {parent} is intermediate: only abstract jobs may inherit from it"
            yield stanza.source.error(MEANING, text, line)
        if any(v.body.get("protected") and v.source.project != stanza.source.project for v in variants):
            text = f"the job {parent} is protected: no job of another project may inherit from it"
            yield stanza.source.error(MEANING, text, line)

    def _nodeset(self, stanza: Stanza, nodeset: Any, line: int = 0) -> Iterator[ConfigError]:
        if nodeset is None:
            return
        named: set[str] = set()
        try:
            found = flattened_nodesets(self._layout, nodeset, named)
        except UnknownNodeset as unknown:
            at = line if isinstance(nodeset, str) else nodeset.at("alternatives")
            yield stanza.source.error(unknown.kind, unknown.message, at)
            return
        finally:
            # Also after an error: the stanza must be checked again once the missing nodeset is defined.
            self.read.update(("nodeset", name) for name in named)
        most = self._tenant.max_nodes_per_job
        largest = max((sum(len(node.name) for node in one.nodes) for one in found), default=0)
        # Defining a large nodeset is harmless until a job uses it.
        if stanza.kind != "nodeset" and 0 <= most < largest:
            text = f"this nodeset has {largest} nodes; the tenant allows a job at most {most}"
            yield stanza.source.error(MEANING, text, line)

    def _labels(self, stanza: Stanza, nodeset: Any) -> Iterator[ConfigError]:
        """Yield the errors in the labels of an inline nodeset. The labels of a named nodeset are checked at its
        definition."""
        if self._tenant.use_nodepool or not isinstance(nodeset, Table):
            return
        for node, _ in entries(nodeset.get("nodes"), nodeset.line):
            label = node["label"]
            if not self._known("label", label):
                text = HintedText(f"there is no label {label!r}", self._nearest(label, self._layout.singles["label"]))
                yield stanza.source.error("Label Not Found", text, node.at("label"))
        for other, _ in entries(nodeset.get("alternatives"), nodeset.line):
            yield from self._labels(stanza, other)

    def _roles(self, stanza: Stanza, body: Table) -> Iterator[ConfigError]:
        for role, line in entries(body.get("roles"), body.at("roles")):
            if "zuul" in role and self._tenant.find(role["zuul"]) is None:
                text = self._tenant.why_not(role["zuul"]).after("this role is ignored: ")
                yield stanza.source.error("Project Not Found", text, role.at("zuul") or line, "warning")

    def _secrets(self, stanza: Stanza, body: Table) -> Iterator[ConfigError]:
        """Yield an error for each unknown secret if the stanza has a playbook that would receive it, otherwise a
        warning."""
        used = any(key in body for key in BOOK_KEYS)
        for entry, line in entries(body.get("secrets"), body.at("secrets")):
            name = entry if isinstance(entry, str) else entry.get("secret", entry["name"])
            found = self._single("secret", name)
            # A secret of another project does not count: otherwise anybody could use it by knowing its name.
            if found is None or found.source.project != stanza.source.project:
                text = f"the secret {name!r} is not defined in {stanza.source.project}, the project of this job"
                yield stanza.source.error(MEANING, text, line, "error" if used else "warning")

    # --- projects

    def _section(self, stanza: Stanza, pipeline: str, section: Table) -> Iterator[ConfigError]:
        allowed = self._layout.source(stanza.source.project).allow_reporter_jobs
        for name, attributes, line in section_jobs(section):
            if not self._defined(name):
                # A template may be unused, in which case nothing is broken.
                severity = "warning" if stanza.kind == "project-template" else "error"
                yield self._undefined(stanza, name, line, severity=severity)
            yield from self._attributes(stanza, attributes)
            self.read.add(("job", name))
            bodies = [attributes, *(v.body for v in self._layout.variants(name))]
            if not allowed and any(body.get("type") == "reporter" for body in bodies):
                text = f"{stanza.source.project} may not attach {name}, a job of type reporter"
                yield stanza.source.error("Reporter Job Not Permitted", text, line)
            yield from self._image(stanza, bodies, line)
        if is_dropped(self._layout, pipeline, section):
            text = f"the pipeline {pipeline} accepts no parameters: it does not set allow-parameters"
            yield stanza.source.error(MEANING, text, section.at("parameters"))

    def _image(self, stanza: Stanza, bodies: list[Table], line: int) -> Iterator[ConfigError]:
        for name in dict.fromkeys(body["image-build-name"] for body in bodies if "image-build-name" in body):
            image = self._single("image", name)
            if image is None or image.source.project != stanza.source.project:
                text = f"the image {name!r} is not defined in {stanza.source.project}, which attaches the job"
                yield stanza.source.error(MEANING, text, line, "warning")

    def _merge_mode(self, stanza: Stanza) -> Iterator[ConfigError]:
        mode = stanza.body.get("merge-mode")
        if mode not in UNMERGED_GITHUB:
            return
        on_github = (p for p in self._tenant.projects if self._tenant.driver(p.connection) == "github")
        with suppress(Undecided):  # the freeze reports the pattern
            if found := next((p for p in on_github if self._layout.configures(stanza, p)), None):
                text = f"{found.name} is on GitHub, which does not have merge-mode {mode}"
                yield stanza.error(MEANING, text, "merge-mode")

    # --- sources of nodes

    def _nodepool(self, stanza: Stanza) -> Iterator[ConfigError]:
        for key, kind in (("image", "image"), ("flavor", "flavor"), ("parent", "section"), ("section", "section")):
            name = stanza.body.get(key)
            if isinstance(name, str) and not self._known(kind, name):
                known = self._layout.singles[kind]
                text = HintedText(f"there is no {kind} {name!r}", self._nearest(name, known))
                yield stanza.error(MEANING, text, key)
        if stanza.kind == "label":
            return
        connection, configured = stanza.body.get("connection"), self._tenant.connections
        if connection is not None and connection not in configured:
            hint = self._nearest(connection, configured)
            text = HintedText(f"the connection {connection!r} is not configured", hint)
            yield stanza.error("Unknown Connection", text, "connection")
        for key, kind in PARTS.items():
            for part in attached(stanza, key):
                if not self._known(kind, part.name):
                    hint = self._nearest(part.name, self._layout.singles[kind])
                    yield part.error(HintedText(f"there is no {kind} {part.name!r}", hint))
        yield from self._above(stanza)

    def _above(self, stanza: Stanza) -> Iterator[ConfigError]:
        """Yield the errors of a stanza together with the sections from which it inherits, or one for a circular chain;
        if a section is missing, yield nothing."""
        path = [stanza]
        while (above := self._single("section", _parent_of(path[-1]))) is not None:
            if above in path:
                names = " -> ".join(s.name for s in (*path, above))
                yield stanza.error(MEANING, f"the sections inherit in a circle: {names}", "parent")
                return
            path.append(above)
        if not _parent_of(path[-1]):
            yield from misfits(path, self._single, self._tenant.driver)


def _parent_of(stanza: Stanza) -> str:
    found = stanza.body.get("section" if stanza.kind == "provider" else "parent")
    return found if isinstance(found, str) else ""
