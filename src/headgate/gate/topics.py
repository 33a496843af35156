"""Changes of one topic need each other: where their queue says so, or where their forge merges them all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from headgate.gate.change import Change, ChangeState
from headgate.gate.world import LayoutView

BY_TOPIC = "dependencies-by-topic"
"""A setting of queues."""
MEMBERS_MAX = 250
"""Limit of changes of one topic that a change may need."""

Topics = Mapping[tuple[str, str], Collection[str]]
"""Connection and topic -> keys of the open changes that have it."""


class ByTopic(Mapping[str, ChangeState]):
    """Look up standings in which a change also needs the other changes of its topic."""

    def __init__(self, standings: Mapping[str, ChangeState], topics: Topics, layout: LayoutView) -> None:
        self._standings, self._topics, self._layout = standings, topics, layout
        self._found: dict[str, ChangeState] = {}

    def __getitem__(self, key: str) -> ChangeState:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._with_topic(self._standings[key])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._standings)

    def __len__(self) -> int:
        return len(self._standings)

    def _with_topic(self, standing: ChangeState) -> ChangeState:
        change = standing.change
        members = beside(standing, self._topics) if standing.open else ()
        if not members or not self._together(standing, change):
            return standing
        needs = dict.fromkeys((*change.needs, *sorted(members)[:MEMBERS_MAX]))
        return replace(standing, change=replace(change, needs=tuple(needs)))

    def _together(self, standing: ChangeState, change: Change) -> bool:
        whole = standing.details is not None and standing.details.together
        return whole or self._layout.queue_says(change.project, change.branch, BY_TOPIC)


class DependantsByTopic(Mapping[str, Collection[str]]):
    """Map a change's key to the keys of changes that may need it, including those of its topic."""

    def __init__(
        self, dependants: Mapping[str, Collection[str]], standings: Mapping[str, ChangeState], topics: Topics
    ) -> None:
        self._dependants, self._standings, self._topics = dependants, standings, topics

    def __getitem__(self, key: str) -> Collection[str]:
        standing = self._standings.get(key)
        members = beside(standing, self._topics) if standing is not None else ()
        return {*self._dependants.get(key, ()), *members}

    def __iter__(self) -> Iterator[str]:
        return iter(self._dependants)

    def __len__(self) -> int:
        return len(self._dependants)


def beside(standing: ChangeState, topics: Topics) -> Collection[str]:
    """Return the keys of the other open changes of its topic."""
    where = topic_of(standing)
    return {key for key in topics.get(where, ()) if key != standing.change.key} if where is not None else ()


def topic_of(standing: ChangeState) -> tuple[str, str] | None:
    """Return the connection and the topic of a change; None: it has none."""
    topic = standing.details.topic if standing.details is not None else None
    return (standing.change.connection, topic) if topic else None
