"""Decide which partition of a strand has the turn, in the worker that owns the strand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headgate.queueing.partitions import comes_next


@dataclass(slots=True)
class StrandTurns:
    """Order the partitions of one strand: one message at a time, as `comes_next` decides."""

    count: int
    """Number of partitions in the strand."""
    patience_s: float
    now_ms: Callable[[], int]
    changed: Callable[[], None]
    """Called when a partition that waits may have got the turn."""
    _stirring: set[int] = field(default_factory=set)
    """Partitions that may have something to do, but have not said so yet; those of lower priority wait for them."""
    _since_ms: list[int | None] = field(default_factory=list)
    """For each partition, when its waiting message was posted, in milliseconds since 1970; None: no message waits."""
    _busy: bool = False
    _passed: int = 0

    def __post_init__(self) -> None:
        self._since_ms = [None] * self.count

    def of(self, which: int) -> Rank:
        """Return the rank of one partition."""
        return Rank(self, which)

    def next(self) -> tuple[int, int] | None:
        """Return the partition that has the turn, and the new value of `passed`; None if none that waits has it."""
        found = comes_next(self._since_ms, self.now_ms(), self._passed, self.patience_s)
        if self._busy or found is None:
            return None
        first = next(which for which, since in enumerate(self._since_ms) if since is not None)
        # One of higher priority that has not looked yet may have a message; it takes one request to find out.
        return None if any(which < first for which in self._stirring) else found


@dataclass(frozen=True, slots=True)
class Rank:
    """Represent one partition in the order."""

    turns: StrandTurns
    which: int

    def stirs(self) -> None:
        """Note that the partition may have something to do."""
        self.turns._stirring.add(self.which)

    def rests(self) -> None:
        """Note that the partition has nothing to do now."""
        if self.which in self.turns._stirring:
            self.turns._stirring.discard(self.which)
            self.turns.changed()

    def waits(self, since_ms: int) -> None:
        """Note that the partition has a message, posted at `since_ms`, or now if the server's clock is ahead."""
        self.turns._since_ms[self.which] = min(since_ms, self.turns.now_ms())

    @property
    def is_next(self) -> bool:
        """Tell whether the partition has the turn."""
        found = self.turns.next()
        return found is not None and found[0] == self.which

    def begins(self) -> None:
        """Note that the partition's message has a slot; the partition has used its turn."""
        found = self.turns.next()
        assert found is not None and found[0] == self.which, "only the partition that has the turn gets a slot"
        self.turns._since_ms[self.which], self.turns._busy, self.turns._passed = None, True, found[1]

    def ends(self) -> None:
        """Note that the slot is free again."""
        self.turns._busy = False

    def gives_up(self) -> None:
        """Note that the partition no longer waits."""
        self.turns._since_ms[self.which] = None
