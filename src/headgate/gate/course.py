"""Record what a build had while it ran: machines, and a pause."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from headgate.base.texts import line

MACHINES_MAX = 50
MACHINE_SIZE_MAX = 200


class Course(msgspec.Struct, frozen=True, omit_defaults=True):
    """Represent what a build had while it ran, as its executor reports, for people."""

    machines: tuple[str, ...] = ()
    """Its nodes, with their labels."""
    had_ms: int = 0
    """Time at which it had received its nodes, milliseconds since the epoch; 0 if unknown."""
    paused_ms: int = 0
    resumed_ms: int = 0

    def fit(self) -> Course:
        """Return the course with no more machines than people read, each in one line."""
        few = tuple(line(one, MACHINE_SIZE_MAX) for one in self.machines[:MACHINES_MAX])
        return self if few == self.machines else replace(self, machines=few)


NO_COURSE = Course()
