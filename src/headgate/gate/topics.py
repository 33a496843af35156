"""Make changes of one topic need each other, if their queue says so, or if their forge merges them all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from headgate.gate.change import Change, ChangeState
from headgate.gate.world import LayoutView

BY_TOPIC = "dependencies-by-topic"
"""Name of the setting of queues."""
MEMBERS_MAX = 250
"""Limit of changes of one topic that a change may need."""

Topics = Mapping[tuple[str, str], Collection[str]]
"""Connection and topic -> keys of the open changes that have it."""


class ByTopic(Mapping[str, ChangeState]):
    """Look up change states in which a change also needs the other changes of its topic."""

    def __init__(self, change_states: Mapping[str, ChangeState], topics: Topics, layout: LayoutView) -> None:
        self._change_states, self._topics, self._layout = change_states, topics, layout
        self._found: dict[str, ChangeState] = {}

    def __getitem__(self, key: str) -> ChangeState:
        # Most changes are never asked for in a turn, so states are completed when they are.
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._with_topic(self._change_states[key])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._change_states)

    def __len__(self) -> int:
        return len(self._change_states)

    def _with_topic(self, change_state: ChangeState) -> ChangeState:
        change = change_state.change
        members = beside(change_state, self._topics) if change_state.open else ()
        if not members or not self._together(change_state, change):
            return change_state
        # Sorted, so that a topic over the limit gives every reader the same members.
        needs = dict.fromkeys((*change.needs, *sorted(members)[:MEMBERS_MAX]))
        return replace(change_state, change=replace(change, needs=tuple(needs)))

    def _together(self, change_state: ChangeState, change: Change) -> bool:
        together = change_state.details is not None and change_state.details.together
        return together or self._layout.queue_says(change.project, change.branch, BY_TOPIC)


class DependantsByTopic(Mapping[str, Collection[str]]):
    """Map a change's key to the keys of changes that may need it, including those of its topic."""

    def __init__(
        self, dependants: Mapping[str, Collection[str]], change_states: Mapping[str, ChangeState], topics: Topics
    ) -> None:
        self._dependants, self._change_states, self._topics = dependants, change_states, topics

    def __getitem__(self, key: str) -> Collection[str]:
        change_state = self._change_states.get(key)
        members = beside(change_state, self._topics) if change_state is not None else ()
        return {*self._dependants.get(key, ()), *members}

    def __iter__(self) -> Iterator[str]:
        return iter(self._dependants)

    def __len__(self) -> int:
        return len(self._dependants)


def beside(change_state: ChangeState, topics: Topics) -> Collection[str]:
    """Return the keys of the other open changes of its topic."""
    where = topic_of(change_state)
    return {key for key in topics.get(where, ()) if key != change_state.change.key} if where is not None else ()


def topic_of(change_state: ChangeState) -> tuple[str, str] | None:
    """Return the connection and the topic of a change; None if it has no topic."""
    topic = change_state.details.topic if change_state.details is not None else None
    return (change_state.change.connection, topic) if topic else None
