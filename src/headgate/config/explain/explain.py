"""Explain to people why a job is, or is not, in a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headgate.config.files.check import as_list, deep_plain, plain
from headgate.config.files.document import Table, Tagged
from headgate.config.freeze.collect import collect
from headgate.config.freeze.matchers import FreezeTarget, job_applies
from headgate.config.freeze.sections import SectionEntry, attached, sections
from headgate.config.layout import Layout
from headgate.config.patterns import Rule, any_matches, matches

PLACES_MAX = 3
"""Number of definitions named in one explanation."""


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
        self._layout, self._target, self._files = layout, FreezeTarget(branch), tuple(files or ())
        self._entries = attached(sections(layout, pipeline, project, self._target))

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

    def _fitting(self, job: str) -> list[SectionEntry]:
        return [e for e in self._entries.get(job, ()) if self._target.matches(e.attributes.get("branches"))]

    def why_not(self, job: str) -> str:
        """Return why a job that is attached is not in the graph."""
        layout, branch = self._layout, self._target.branch
        fitting = self._fitting(job)
        if not fitting:
            rules = ", ".join(_shown(rule) for e in self._entries[job] for rule in _listed(e.attributes, "branches"))
            return f"it is attached for other branches: {rules}"
        variants = layout.variants(job)
        if not variants:
            return "no job of this name is defined"
        if not any(job_applies(layout, variant, self._target) for variant in variants):
            places = [variant.place for variant in variants]
            more = f" and {len(places) - PLACES_MAX} more" if len(places) > PLACES_MAX else ""
            return f"none of its definitions is for branch {branch}: {', '.join(places[:PLACES_MAX])}{more}"
        if not collect(layout, job, fitting, self._target):
            return f"one of its parents has no definition for branch {branch}"
        return self.decision(job).why


def _decided(wanted: list[Rule], irrelevant: list[Rule], files: tuple[str, ...]) -> tuple[bool, str]:
    # The decision is that of `freeze._files_match`; this one also keeps the reason.
    if not wanted and not irrelevant:
        return True, "runs whatever the files"
    if not files:
        return True, "runs unless the files of the change speak against it"
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
