"""Why a request is refused; each is one status on the wire.  The texts are for the person who asked."""

from __future__ import annotations


class Refused(Exception):
    """Base of what is said to the caller; `names.Invalid` is its sibling for what cannot be, whatever the state."""


class NotFound(Refused):
    """There is none, or none the caller may know of."""


class Exists(Refused):
    """The name or uuid is taken."""


class Denied(Refused):
    """Not by this caller."""


class Unauthenticated(Refused):
    """Nobody the service knows."""


class Stale(Refused):
    """It changed meanwhile: look again, then try again."""


class Unmet(Refused):
    """Something it stands on is missing or in the way: a partition, a type, objects that still exist."""


class Broad(Refused):
    """More would have to be looked at than one question may cost: ask for less."""


class Expired(Refused):
    """That moment is no longer kept: begin anew."""
