"""Find the changes that a change needs, and those that need it, by its footers and by its topic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.world import LayoutView, World

NEEDS_MAX = 200
"""Limit on the changes that one change may need in total; exceeding it is reported as a problem."""
CIRCLES = "allow-circular-dependencies"
"""Name of the setting of queues that allows circles."""
BY_TOPIC = "dependencies-by-topic"
"""Name of the setting of queues that lets changes of one topic need each other."""
MEMBERS_MAX = 250
"""Limit on the changes of one topic that a change may need."""
Topics = Mapping[tuple[str, str], Collection[str]]
"""Connection and topic -> keys of the open changes that have it."""


class Needs(NamedTuple):
    circle: tuple[Change, ...]
    """The change itself, and those that it needs and that also need it, in the order of merging."""
    ahead: tuple[tuple[Change, ...], ...] = ()
    """Groups of open changes that must land first, each group after those that it needs; the changes of one group need
    each other."""
    problems: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    """Messages about the changes that must land first because the tenant does not have their projects."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """Return all changes that must land first."""
        return tuple(change for group in self.ahead for change in group)


def needs(change: Change, world: World) -> Needs:
    """Return all changes that `change` needs, directly or through others. Landed changes are not included, and neither
    are changes that nobody has proposed yet."""
    walk, known = _Walk(world), world.change_states.get(change.key)
    current = known is not None and known.open and known.change.commit == change.commit
    # The connection's copy of the same patchset also has needs that were found later.
    walk.visit(known.change if known is not None and current else change, 1)
    # Tarjan's algorithm finds a circle after the circles that it leads to, so the change's own comes last.
    *ahead, own = walk.groups
    unknown = (
        f"Depends-On: {text}: no project has a branch of this name; the format is <project>/<branch>/<topic>"
        for one in own
        for text in one.unresolved
    )
    stale = (outdated(one, world) for group in walk.groups for one in group)
    refused = (_circle_refused(group, world) for group in walk.groups)
    problems = tuple(dict.fromkeys((*unknown, *walk.problems, *filter(None, (*stale, *refused)))))
    first = tuple(in_order(group, group[0].key) for group in ahead)
    return Needs(in_order(own, change.key), first, problems, tuple(walk.outside))


def called(change: Change, key: str) -> str:
    """Return the name that messages use for the way in which the change needs `key`."""
    return "Parent change" if key in change.bases else "Depends-On"


def is_outside(change_state: ChangeState, world: World) -> bool:
    """Return whether the tenant does not have the project of a change, so that nothing may be tested with it: people of
    the tenant may have no right to read it."""
    return not world.layouts.landed.has(change_state.change.project)


def must_land(change: Change, key: str) -> str:
    """Return why a change cannot be tested with `key`, which is outside the tenant."""
    return f"{called(change, key)}: {key}: the tenant does not have its project, so it must land first"


def outdated(change: Change, world: World) -> str:
    """Return why a change that is built on an earlier patchset cannot land; empty if it can. Its landing would include
    commits that are in no currently proposed patchset."""
    if not world.dependent or not change.stale:
        return ""
    return f"{change.key} is built on an earlier patchset of {', '.join(change.stale)}: rebase it, and propose it again"


class _Walk:
    """Find the circles among the changes that a change needs, each after the circles that it needs (Tarjan)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._low: dict[str, int] = {}
        """Change key -> number of the earliest change on the path that it leads back to."""
        self._path: list[Change] = []
        self._open: set[str] = set()
        """Keys of the changes on the path."""
        self.groups: list[tuple[Change, ...]] = []
        self.problems: list[str] = []
        self.outside: dict[str, None] = {}

    def visit(self, change: Change, depth: int) -> None:
        number = self._low[change.key] = len(self._low)
        self._path.append(change)
        self._open.add(change.key)
        for key in change.needs:
            change_state = self._world.change_states.get(key)
            if change_state is None or change_state.landed:
                continue  # an unknown change counts once somebody proposes it
            if is_outside(change_state, self._world):
                # Jobs must not read it, and messages must not tell its state or what it needs.
                self.outside[f"{must_land(change, key)}; then this change will be enqueued"] = None
            elif not change_state.open:
                self.problems.append(
                    f"{called(change, key)}: {key}: {change_state.reason or 'that change was abandoned'}"
                )
            # The depth is also limited, because Python limits recursion to about a thousand calls.
            elif key not in self._low and (depth >= NEEDS_MAX or len(self._low) > NEEDS_MAX):
                self.problems.append(f"{change.key} needs more than {NEEDS_MAX} changes")
                break
            else:
                if key not in self._low:
                    self.visit(change_state.change, depth + 1)
                # A change outside the path belongs to a circle that is complete, and cannot join this one.
                if key in self._open:
                    self._low[change.key] = min(self._low[change.key], self._low[key])
        if self._low[change.key] == number:
            start = next(place for place, one in enumerate(self._path) if one.key == change.key)
            group = tuple(self._path[start:])
            del self._path[start:]
            self._open -= {one.key for one in group}
            self.groups.append(group)


def _circle_refused(group: tuple[Change, ...], world: World) -> str:
    """Return why these changes cannot land together, or an empty string if they can or there is only one."""
    layout, name = world.layouts.landed, world.pipeline.name
    refused = [c for c in group if len(group) > 1 and not layout.queue_says(c.project, c.branch, CIRCLES)]
    if not refused:
        return ""
    circle = " -> ".join(change.key for change in (*group, group[0]))
    queues = sorted({layout.queue_of(change.project, change.branch, name) for change in refused})
    return (
        f"Depends-On forms a circle: {circle}; that is not allowed in {', '.join(queues)}: merge them into one "
        f"change, remove one of the footers, or set {CIRCLES} for a queue that their projects share"
    )


def in_order(circle: Iterable[Change], first: str) -> tuple[Change, ...]:
    """Return the changes of a circle in the order in which they are merged: a change's git parent before it, otherwise
    `first` (its key) before the others."""
    left = {change.key: change for change in sorted(circle, key=lambda one: (one.key != first, one.key))}
    ordered: list[Change] = []
    while left:
        # Commits cannot be each other's ancestors, but a forge may report such bases; then any order is fine.
        free = [one for one in left.values() if not any(base in left for base in one.bases)]
        chosen = (free or [*left.values()])[0]
        ordered.append(left.pop(chosen.key))
    return tuple(ordered)


def needed_by(key: str, world: World) -> list[Change]:
    """Return the open changes that need `key`, in the order of their keys."""
    among = world.change_states if world.dependants is None else world.dependants.get(key, ())
    found = [s.change for one in sorted(among) if (s := world.change_states.get(one)) is not None and s.open]
    return [change for change in found if key in change.needs]


class ByTopic(Mapping[str, ChangeState]):
    """Look up change states in which a change also needs the other changes of its topic."""

    def __init__(self, change_states: Mapping[str, ChangeState], topics: Topics, layout: LayoutView) -> None:
        self._change_states, self._topics, self._layout = change_states, topics, layout
        self._found: dict[str, ChangeState] = {}

    def __getitem__(self, key: str) -> ChangeState:
        # A turn looks up only a few changes, so the topic is resolved on lookup.
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
        if change_state.details is None or not change_state.details.together:
            # A topic is free text, so it must not tell what other tenants work on.
            members = [key for key in members if self._layout.has(self._change_states[key].change.project)]
        # Sorted, so that a topic over the limit always gives the same members.
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
