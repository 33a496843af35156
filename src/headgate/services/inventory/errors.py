"""Why a request is refused; each is one status on the wire.  The texts are for the person who asked."""

from __future__ import annotations


class InventoryError(Exception):
    """Base of what is said to the caller; `names.Invalid` is its sibling for what cannot be, whatever the state."""


class NotFound(InventoryError):
    """There is none, or none the caller may know of."""


class AlreadyExists(InventoryError):
    """The name or uuid is taken."""


class PermissionDenied(InventoryError):
    """Not by this caller."""


class Unauthenticated(InventoryError):
    """Nobody the service knows."""


class Stale(InventoryError):
    """It changed meanwhile: look again, then try again."""


class Unmet(InventoryError):
    """Something it stands on is missing or in the way: a partition, a type, objects that still exist."""


class Broad(InventoryError):
    """More would have to be looked at than one question may cost: ask for less."""


class MomentExpired(InventoryError):
    """That moment is no longer kept: begin anew."""
