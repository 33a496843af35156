"""Store the states of a play: each is written as the difference to the previous one, and read again."""

from __future__ import annotations

from dataclasses import dataclass, field

from headgate.gate.state.model import State
from headgate.map.places import Map
from headgate.map.state import load, writes
from headgate.store.types import Append, Delete, Entry, Op, Put
from headgate.testing.plays import Play

PLACE = Map().tenant("t").pipeline("gate")


@dataclass(slots=True)
class StoredState:
    """Hold the records of one play."""

    entries: dict[str, Entry] = field(default_factory=dict)
    before: State = field(default_factory=State)

    def reloaded(self, state: State) -> State:
        """Return the state after it was read again; it must be the same."""
        for op in writes(PLACE, self.before, state):
            self._apply(op)
        loaded = load(PLACE, self.entries.values())
        assert loaded.damaged == () and loaded.state == state
        self.before = loaded.state
        return loaded.state

    def _apply(self, op: Op) -> None:
        match op:
            case Put(path, value):
                self.entries[path] = Entry(path, value, 1, 1)
            case Delete(path):
                self.entries.pop(path, None)
            case Append():
                raise AssertionError("a state is no queue")


@dataclass(slots=True)
class Restarts:
    """Hold the records of every play of one test."""

    _plays: list[tuple[Play, StoredState]] = field(default_factory=list)

    def of(self, play: Play) -> StoredState:
        for known, stored in self._plays:
            if known is play:
                return stored
        self._plays.append((play, StoredState()))
        return self._plays[-1][1]
