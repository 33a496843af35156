"""Define the errors of requests; each is one status on the wire. The messages are for the caller."""

from __future__ import annotations

from headgate.base.errors import HeadgateError


class InventoryError(HeadgateError):
    """Base of the errors that callers see; `names.Invalid` is for requests that are invalid whatever the state."""


class NotFound(InventoryError):
    """Report that the requested thing does not exist, or that the caller may not see it."""


class AlreadyExists(InventoryError):
    """Report that the name or uuid is taken."""


class PermissionDenied(InventoryError):
    """Report that the caller may not do this."""


class Unauthenticated(InventoryError):
    """Report that the service does not know the caller."""


class Stale(InventoryError):
    """Report that the object has changed in the meantime: read it again, then retry."""


class Unmet(InventoryError):
    """Report that a precondition is not met: a partition or type is missing, or objects still exist."""


class Broad(InventoryError):
    """Report that the search would read more than the limits allow: narrow it."""


class MomentExpired(InventoryError):
    """Report that the journal no longer goes back to this moment: start again."""
