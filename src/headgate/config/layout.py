"""Assemble a tenant's configuration into a layout, and answer questions about it: jobs, queues, and which projects take
part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.config.assembly.links import exchanged
from headgate.config.budgets import DEFAULTS, Budgets
from headgate.config.definitions import Branches, Index, LayoutDefinitions
from headgate.config.files.check import as_list
from headgate.config.freeze.freeze import FreezeQuestion, freeze
from headgate.config.freeze.matchers import FreezeTarget, project_applies
from headgate.config.freeze.sections import sections
from headgate.config.model import FrozenGraph
from headgate.config.operator.model import Tenant
from headgate.config.parse import Stanza
from headgate.config.patterns import Undecided

QUEUE_TYPES = ("all-branches", "per-branch", "branch-assigned")


@dataclass(slots=True)
class Layout(LayoutDefinitions):
    """Represent a tenant's layout; `build_layout` makes one."""

    def takes_part(self, pipeline: str, project: str, branch: str, ref: str = "") -> bool:
        """Return whether the project takes part in the pipeline, or may do so: for a tag, only freezing decides."""
        target = FreezeTarget(branch, ref, anywhere=not branch and ref.startswith("refs/tags/"))
        try:
            return bool(sections(self, pipeline, project, target))
        except Undecided:
            # The item then enters, and freezing shows it the pattern.
            return True

    def freeze(
        self,
        pipeline: str,
        project: str,
        branch: str,
        ref: str = "",
        files: tuple[str, ...] | None = None,
        ahead: LayoutDefinitions | None = None,
        *,
        containing: tuple[str, ...] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> FrozenGraph:
        """Return the jobs of an item. Errors in the graph make the item a configuration error.

        `files` are the files that the change modifies, or None if they are unknown. `ahead` is the layout without the
        change, if the change alters the configuration. `containing` holds the branches that contain the commit of a
        tag.
        """
        target = FreezeTarget(branch, ref, containing)
        return freeze(self, FreezeQuestion(pipeline, project, target, files, ahead, dict(parameters or {})))

    def queue_of(self, project: str, branch: str, pipeline: str) -> str:
        """Return the name of the project's shared queue, or else of the project. A per-branch queue has `@` and the
        branch appended."""
        name = self._named_queue(project, branch)
        return f"{name or project}@{branch}" if self._queue_type(name) == "per-branch" else name or project

    def queue_says(self, project: str, branch: str, key: str) -> bool:
        """Return whether this flag is set in the queue of the project."""
        queue = self.singles["queue"].get(self._named_queue(project, branch))
        return queue is not None and bool(queue.body.get(key))

    def _named_queue(self, project: str, branch: str) -> str:
        """Return the name of the project's shared queue, or an empty string if it has a queue of its own."""
        named = list(self._queues(project))
        name = next((queue for _, queue in named), "")
        if self._queue_type(name) != "branch-assigned":
            return name
        target = FreezeTarget(branch)
        assigned = (queue for s, queue in named if project_applies(self, s, project, target))
        try:
            return next(assigned, name)
        except Undecided:
            return name  # freezing reports it

    def _queues(self, project: str) -> Iterator[tuple[Stanza, str]]:
        """Yield each stanza of the project with each queue that it or one of its templates names."""
        for stanza in self.stanzas(project):
            templates = [t for n in as_list(stanza.body.get("templates")) for t in self.templates.get(n, [])]
            yield from ((stanza, s.body["queue"]) for s in (stanza, *templates) if s.body.get("queue"))

    def _queue_type(self, name: str) -> str:
        """Return the type of a queue: all-branches, per-branch or branch-assigned; all-branches if it is not
        defined."""
        queue = self.singles["queue"].get(name)
        if queue is None:
            return QUEUE_TYPES[0]
        kind: str = queue.body.get("type", QUEUE_TYPES[0])
        return QUEUE_TYPES[1] if queue.body.get("per-branch") else kind


def build_layout(tenant: Tenant, branches: Branches, budgets: Budgets = DEFAULTS) -> Layout:
    """Build the layout from all files, in the order of precedence: config-projects, then the other projects; within
    a project its first branch, then the others by name."""
    return exchanged(Layout(tenant, {}, budgets, index=Index()), branches, keep=True)


def branch_of(layout: Layout, queue: str) -> str | None:
    """Return the branch of a per-branch queue from its name as `queue_of` returns it, or None for a queue of another
    type."""
    # Names of queues and branches may contain `@`, too: the first cut that leaves a per-branch queue is right.
    cuts = (at for at, c in enumerate(queue) if c == "@" and layout._queue_type(queue[:at]) == "per-branch")
    return next((queue[at + 1 :] for at in cuts), None)
