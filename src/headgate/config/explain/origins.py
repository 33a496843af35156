"""Explain why a job is or is not in a graph, and where each of its attributes comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.base.errors import ConfigurationError
from headgate.config.explain import describe
from headgate.config.files.checks import as_list, deep_plain, plain
from headgate.config.files.document import Rows, Table, Tagged
from headgate.config.freeze import sections
from headgate.config.freeze.collect import collect
from headgate.config.freeze.freeze import mixed
from headgate.config.freeze.mix import VariantRefused
from headgate.config.layout import Layout
from headgate.config.model import ConfigError
from headgate.config.parse import TOO_LARGE, Stanza
from headgate.config.patterns import Rule, any_matches, matches

PLACES_MAX = 3
"""Maximum number of definitions to name in one explanation."""
WORK_MAX = 200_000
"""Maximum number of values that the steps of one explanation compare, which takes a second or two. Each step compares
the complete job, so a job with many variants takes much longer to explain than to freeze."""
_KEYS = {
    "variables": ("vars",),
    "extra_variables": ("extra-vars",),
    "host_variables": ("host-vars",),
    "group_variables": ("group-vars",),
    "semaphores": ("semaphores", "semaphore"),
    "override_checkout": ("override-checkout", "override-branch"),
    # Secrets restrict a job of an untrusted project to post-review pipelines.
    "post_review": ("post-review", "secrets"),
}
"""Attribute of a described job -> keys of a stanza that set it, if the names differ."""
_DEEP = ("variables", "extra_variables", "host_variables", "group_variables")
_DERIVED = ("name", "parent_chain", "inheritance", "noop", "roles")
"""Attributes that no stanza sets."""


class Decision(NamedTuple):
    """Hold whether the files of a change select a job, and why."""

    matches: bool
    why: str
    files: tuple[Rule, ...]
    irrelevant_files: tuple[Rule, ...]


class LeftOut(NamedTuple):
    job: str
    why: str


class Explainer:
    """Explain the jobs of one project in one pipeline, on one branch. `files` are those of the change, or None if
    unknown."""

    def __init__(
        self, layout: Layout, pipeline: str, project: str, branch: str, files: Sequence[str] | None = None
    ) -> None:
        self._layout, self._target, self._files = layout, sections.FreezeTarget(branch), tuple(files or ())
        self._entries = sections.attached(sections.of(layout, pipeline, project, self._target))

    def decision(self, job: str) -> Decision:
        """Return the decision of the job's file matchers. Another job that needs it, or a change of its own
        configuration, may overrule it."""
        fitting = self._fitting(job)
        variants = collect(self._layout, job, fitting, self._target) if fitting else []
        bodies = [*(v.body for v in variants), *(e.attributes for e in fitting)]
        wanted, irrelevant = _rules(bodies, "files"), _rules(bodies, "irrelevant-files")
        good, why = _decided(wanted, irrelevant, self._files)
        return Decision(good, why, tuple(wanted), tuple(irrelevant))

    def left_out(self, present: Iterable[str]) -> list[LeftOut]:
        """Return the jobs attached to the pipeline that are not among those `present` in the graph."""
        in_graph = set(present)
        return [LeftOut(job, self.why_not(job)) for job in self._entries if job not in in_graph]

    def _fitting(self, job: str) -> list[sections.SectionEntry]:
        return [e for e in self._entries.get(job, ()) if self._target.matches(e.attributes.get("branches"))]

    def why_not(self, job: str) -> str:
        """Return why a job that is attached is not in the graph."""
        # Test in the order in which a freeze drops jobs: later tests mean nothing for a job that an earlier one drops.
        layout, branch = self._layout, self._target.branch
        fitting = self._fitting(job)
        if not fitting:
            rules = ", ".join(_shown(rule) for e in self._entries[job] for rule in _listed(e.attributes, "branches"))
            return f"attached for other branches only: {rules}"
        variants = layout.variants(job)
        if not variants:
            return "no job of this name is defined"
        if not any(sections.job_applies(layout, variant, self._target) for variant in variants):
            places = [variant.place for variant in variants]
            more = f" and {len(places) - PLACES_MAX} more" if len(places) > PLACES_MAX else ""
            return f"none of its definitions is for branch {branch}: {', '.join(places[:PLACES_MAX])}{more}"
        if not collect(layout, job, fitting, self._target):
            return f"one of its parents has no definition for branch {branch}"
        return self.decision(job).why


def _decided(wanted: list[Rule], irrelevant: list[Rule], files: tuple[str, ...]) -> tuple[bool, str]:
    # The decision is that of `freeze._files_match`; this one also keeps the reason.
    if not wanted and not irrelevant:
        return True, "runs for any files"
    if not files:
        return True, "runs unless its file matchers exclude the files of the change"
    if wanted:
        hit = next(((rule, file) for rule in wanted for file in files if matches(rule, file)), None)
        if hit is None:
            return False, f"no file matches {' or '.join(_shown(rule) for rule in wanted)}"
        why = f"{hit[1]} matches {_shown(hit[0])}"
    relevant = next((file for file in files if not any_matches(irrelevant, file)), None)
    if irrelevant and relevant is None:
        return False, f"every file is irrelevant: {' or '.join(_shown(rule) for rule in irrelevant)}"
    return True, why if wanted else f"{relevant} is relevant"


def _rules(bodies: Iterable[Table], key: str) -> list[Rule]:
    """Return the effective rules: those of the last body that sets the key, to which `!inherit` adds the earlier
    ones."""
    found: list[Rule] = []
    for body in bodies:
        if key in body:
            rules = _listed(body, key)
            found = [*found, *rules] if isinstance(body[key], Tagged) and body[key].tag == "inherit" else rules
    return found


def _listed(body: Table, key: str) -> list[Rule]:
    return list(deep_plain(as_list(plain(body.get(key)))))


def _shown(rule: Rule) -> str:
    if isinstance(rule, str):
        return rule
    return f"not {rule['regex']}" if rule.get("negate") else str(rule["regex"])


class Origin(NamedTuple):
    """Represent a place in a variant, which is one step in building a frozen job."""

    step: int
    """Number of the step, from 1; 0 means the variables of the project, which all variants up to the one that attaches
    the job override."""
    job: str
    """Name of the job of which this is a variant."""
    project: str
    """Canonical name of the project; empty for a built-in, like all fields below."""
    branch: str
    path: str
    line: int
    attaching: bool
    """Whether it is the entry of a job in the stanza of a project or a template."""


class OriginStep(NamedTuple):
    """Record the value that one step gave to an attribute, or to a part of one."""

    value: Any
    origin: Origin
    """Origin, with the line of the attribute itself."""


class Attribute(NamedTuple):
    path: str
    """Attribute as in `explain.describe`; dots lead into mappings."""
    settings: tuple[OriginStep, ...]
    """Settings in the order in which they apply; the last one takes effect."""


class Elements(NamedTuple):
    """Describe a list to which several variants have added."""

    path: str
    settings: tuple[OriginStep, ...]
    """One setting for each element, in the order of the list."""


class Explained(NamedTuple):
    job: str
    variants: tuple[Origin, ...]
    """Variants in the order in which they apply."""
    attributes: tuple[Attribute | Elements, ...]
    errors: tuple[ConfigError, ...]
    """Errors because of which the job cannot be frozen."""
    frozen: dict[str, Any]
    """Attributes as in `explain.describe`, up to the first error."""


def explained(
    layout: Layout, job: str, target: sections.FreezeTarget, pipeline: str = "", project: str = ""
) -> Explained:
    """Return where each attribute of the job comes from in this pipeline of this project (canonical name), or,
    without these, in its own variants.

    This rebuilds the job, one variant at a time; an attribute that a step changes comes from that step.
    """
    entries = sections.attached(sections.of(layout, pipeline, project, target)).get(job, []) if project else []
    fitting = [entry for entry in entries if target.matches(entry.attributes.get("branches"))]
    variants = collect(layout, job, fitting, target) if fitting or not project else []
    variables = sections.project_vars(layout, project, target) if project else {}
    recorder = _AttributeRecorder(layout, project, target)
    errors: tuple[ConfigError, ...] = ()
    try:
        for mix, step in mixed(layout, job, variants, variables, fitting):
            recorder.take(describe.job(mix.frozen(noop=job == "noop")), _Step.of(len(recorder.variants) + 1, job, step))
    except VariantRefused as refused:
        errors = (refused.stanza.error(refused.name, refused.message, refused.key),)
    except _TooLarge:
        text = f"job {job} is too large to explain: its variants set more than {WORK_MAX:,} values"
        errors = (ConfigError(TOO_LARGE, text, project, target.branch),)
    return Explained(job, tuple(recorder.variants), tuple(recorder.attributes()), errors, recorder.state)


class _TooLarge(ConfigurationError):
    """Report that an explanation compares more than WORK_MAX values."""


class _Step(NamedTuple):
    """Represent one step: a variant, an entry in a project's section or, without a stanza, the project's variables."""

    number: int
    job: str
    stanza: Stanza | None
    body: Table
    attaching: bool = False

    @classmethod
    def of(cls, number: int, job: str, step: Stanza | sections.SectionEntry | None) -> _Step:
        if isinstance(step, sections.SectionEntry):
            return cls(number, job, step.stanza, step.attributes, attaching=True)
        return cls(number, step.name, step, step.body) if step is not None else cls(0, job, None, Table(0))

    def origin(self, line: int) -> Origin:
        assert self.stanza is not None, "`_project_variable` finds the origin of project variables"
        source = self.stanza.source
        return Origin(self.number, self.job, source.project, source.branch, source.path, line, self.attaching)

    def says(self, key: str) -> str:
        """Return the key with which this step sets the attribute, or an empty string if it does not set it."""
        return next((word for word in _KEYS.get(key, (key.replace("_", "-"),)) if word in self.body), "")

    def line(self, key: str, inner: list[str]) -> int:
        word = self.says(key)
        return _line_in(self.body[word], inner, self.body.at(word)) if word else self.body.line

    def rows(self, key: str) -> list[tuple[Any, int]]:
        """Return the elements of the list as written, each with its line."""
        value = plain(self.body.get(self.says(key)))
        return list(zip(value, value.lines, strict=True)) if isinstance(value, Rows) else []


class _AttributeRecorder:
    def __init__(self, layout: Layout, project: str, target: sections.FreezeTarget) -> None:
        self._layout, self._project, self._target = layout, project, target
        self.state: dict[str, Any] = {}
        self.variants: list[Origin] = []
        self._settings: dict[str, list[OriginStep]] = {}
        self._elements: dict[str, dict[str, OriginStep]] = {}
        self._work = 0

    def _count(self, values: int) -> None:
        """Count values that are about to be compared. Raise _TooLarge."""
        self._work += values
        if self._work > WORK_MAX:
            raise _TooLarge(self._work)

    def take(self, after: dict[str, Any], step: _Step) -> None:
        """Record which attributes `step` changed. `after` is the job after the step."""
        if step.stanza is not None:
            self.variants.append(step.origin(step.body.line))
        for key, value in after.items():
            if key in _DERIVED:
                continue
            before = self.state.get(key)
            # Several steps may have added to a list, so each element has an origin of its own.
            if isinstance(value, list):
                self._list(key, before or [], value, step)
            # Mappings of variables are merged deeply, so each variable has an origin of its own.
            elif key in _DEEP:
                old = dict(_leaves(key, before or {}))
                leaves = list(_leaves(key, value))
                self._count(len(old) + len(leaves))
                for path, leaf in leaves:
                    if path not in old or old[path] != leaf:
                        self._set(path, leaf, step)
            # If a step sets an attribute to the value that it already has, the origin is new nevertheless. Before the
            # first step, there is nothing to compare with.
            elif (step.says(key) or (before != value and self.state)) and (value or before) not in ("", None):
                self._set(key, value, step)
        self.state = after

    def _set(self, path: str, value: Any, step: _Step) -> None:
        key, _, inner = path.partition(".")
        if step.stanza is None:
            origin = self._project_variable(inner.split("."))
        else:
            origin = step.origin(step.line(key, inner.split(".") if inner else []))
        self._settings.setdefault(path, []).append(OriginStep(value, origin))

    def _list(self, key: str, before: list[Any], after: list[Any], step: _Step) -> None:
        self._count(len(before) + len(after))
        # Elements may be mappings, which are not hashable.
        had, known = {repr(value) for value in before}, self._elements.setdefault(key, {})
        if fresh := {name: value for value in after if (name := repr(value)) not in had}:
            rows, otherwise = step.rows(key), step.line(key, [])
            words = {row: at for row, at in reversed(rows) if isinstance(row, str)}
            for name, value in fresh.items():
                at = words.get(value, otherwise) if isinstance(value, str) else self._line(rows, value, otherwise)
                known[name] = OriginStep(value, step.origin(at))

    def _line(self, rows: list[tuple[Any, int]], element: Any, otherwise: int) -> int:
        self._count(len(rows))
        return next((at for row, at in rows if _is(row, element)), otherwise)

    def attributes(self) -> Iterator[Attribute | Elements]:
        for key, value in self.state.items():
            if isinstance(value, list):
                known = self._elements.get(key, {})
                found = tuple(known[repr(one)] for one in value if repr(one) in known)
                if found:
                    yield Elements(key, found)
                continue
            for path in (path for path, _ in _leaves(key, value)) if key in _DEEP else (key,):
                if path in self._settings:
                    yield Attribute(path, tuple(self._settings[path]))

    def _project_variable(self, inner: list[str]) -> Origin:
        """Return the origin of a variable of the project: the last stanza that sets it."""
        # `sections.project_vars` merges in the opposite order, so the first match here is the value in force.
        for stanza, templates in reversed(list(sections.applying(self._layout, self._project, self._target))):
            for one in (stanza, *reversed(templates)):
                variables = one.body.get("vars")
                if isinstance(variables, Table) and inner[0] in variables:
                    line = _line_in(variables, inner, one.body.at("vars"))
                    source = one.source
                    return Origin(0, "", source.project, source.branch, source.path, line, True)
        return Origin(0, "", "", "", "", 0, True)


def _line_in(value: Any, inner: list[str], line: int) -> int:
    for name in inner:
        value = plain(value)
        if not isinstance(value, Table) or name not in value:
            break
        line, value = value.at(name), value[name]
    return line


def _is(row: Any, element: Any) -> bool:
    """Return whether a described element corresponds to a row of the stanza's list."""
    if not isinstance(element, Mapping):
        return bool(row == element)
    # Described elements have canonical names, but the stanza may use short ones.
    names = {element.get(key) for key in ("name", "path", "project")}
    word = row if isinstance(row, str) else row.get("name", row.get("zuul")) if isinstance(row, dict) else None
    return word in names or any(isinstance(name, str) and name.endswith(f"/{word}") for name in names)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path, value
