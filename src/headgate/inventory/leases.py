"""Decide on leases and quotas: who holds an object, or amounts of its properties, for how long, and the limits."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

import msgspec
from msgspec.structs import replace

from headgate.inventory.model import Object
from headgate.inventory.names import Invalid, name, number, number_text, value

WAITING, HELD, CLEANING, ENDED = "waiting", "held", "cleaning", "ended"
PRECEDENCE = 200
"""The default precedence; lower goes first, as among builds."""
PRECEDENCE_MAX = 1_000
AGING_MS = 600_000
"""Time after which a waiting lease moves one level (100) ahead of later ones, so that none waits forever."""
DURATION_MIN_S, DURATION_MAX_S = 1, 30 * 24 * 3_600
SEARCH_SIZE_MAX_BYTES = 2_000
AMOUNTS_MAX = 16
WINDOW_MAX_HOURS = 31 * 24
_HOUR_MS = 3_600_000


class ObjectLease(msgspec.Struct, frozen=True, omit_defaults=True):
    """Record that somebody wants an object, has it, or had it."""

    id: str
    user: str
    project: str
    partition: str
    """Uuid of the partition."""
    search: str
    """A filter, as people write it."""
    duration_s: int
    requested_ms: int = msgspec.field(name="asked_ms")
    roles: tuple[str, ...] = ()
    """The roles that the user held in the partition when requesting it."""
    amounts: dict[str, str] = {}
    """Property -> amount of it that is leased; empty: the whole object."""
    precedence: int = PRECEDENCE
    give_up_ms: int = 0
    """Time at which the lease stops waiting."""
    note: str = ""
    state: str = WAITING
    object: str = ""
    """Uuid of the leased object."""
    name: str = ""
    """The name of the object."""
    begun_ms: int = 0
    until_ms: int = 0
    ended_ms: int = 0
    why: str = ""
    """Why the lease ended."""
    counts: tuple[str, ...] = ()
    """Names of the quotas whose search the object matched when it was leased."""
    properties: dict[str, str] = msgspec.field(default_factory=dict, name="reach")
    """The properties that the object had when it was leased."""
    provider: dict[str, str] = {}
    """The properties that the object's provider had then."""

    @property
    def exclusive(self) -> bool:
        """Return whether the lease takes the whole object, so that no other lease holds any of it."""
        return not self.amounts

    @property
    def takes(self) -> bool:
        """Return whether the lease holds an object now."""
        return self.state in (HELD, CLEANING)


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limit what leases in a partition may have together: at a time, or in hours within a window.

    An empty project, user or search: of all; `*`: of each project or user for itself.
    """

    name: str
    partition: str
    project: str = ""
    user: str = ""
    search: str = ""
    """A filter, as people write it; leases of objects that it matches count."""
    property: str = ""
    """The property whose amounts count; empty: objects are counted."""
    most: str = ""
    """Limit at any one time, as a number; empty: no limit."""
    hours: str = ""
    """Limit in each window, in hours of the property's unit or of an object; empty: no limit."""
    window_hours: int = 0


def level(precedence: int, requested_ms: int, now_ms: int) -> int:
    """Return the level of a lease in the line that builds and people share; the lowest comes first."""
    waited_ms = max(0, now_ms - requested_ms) if requested_ms else 0
    return precedence - 100 * (waited_ms // AGING_MS)


def check(lease: ObjectLease) -> ObjectLease:
    """Return the lease if the request for it is valid. Raise Invalid."""
    value(lease.search, "search", size_max_bytes=SEARCH_SIZE_MAX_BYTES)
    value(lease.note, "note")
    check_duration(lease.duration_s)
    if not 1 <= lease.precedence <= PRECEDENCE_MAX:
        raise Invalid(f"precedence is {lease.precedence}; it is from 1 (first) to {PRECEDENCE_MAX}")
    if len(lease.amounts) > AMOUNTS_MAX:
        raise Invalid(f"there are {len(lease.amounts)} amounts; at most {AMOUNTS_MAX} are allowed")
    for key, amount in lease.amounts.items():
        name(key, "property key of an amount")
        found = number(amount)
        if found is None or found <= 0:
            raise Invalid(f"amount {amount!r} of {key} is not a number above 0")
    return lease


def check_duration(duration_s: int) -> None:
    """Check the duration. Raise Invalid."""
    if not DURATION_MIN_S <= duration_s <= DURATION_MAX_S:
        raise Invalid(f"a lease is for {DURATION_MIN_S} s to {DURATION_MAX_S // 86_400} days, not for {duration_s} s")


def check_quota(quota: Quota) -> Quota:
    """Return the quota if it is valid. Raise Invalid."""
    name(quota.name, "name of a quota")
    for field in ("project", "user", "property", "search"):
        value(getattr(quota, field), f"{field} of a quota")
    for field in ("most", "hours"):
        text = getattr(quota, field)
        found = number(text)
        if text and (found is None or found < 0):
            raise Invalid(f"{field} of quota {quota.name} is {text!r}, which is not a number from 0")
    if not quota.most and not quota.hours:
        raise Invalid(f"quota {quota.name} limits nothing: set most, or hours and window_hours")
    if bool(quota.hours) != bool(quota.window_hours):
        raise Invalid(f"quota {quota.name}: set both hours and window_hours, or neither")
    if quota.window_hours > WINDOW_MAX_HOURS:
        raise Invalid(f"window_hours of quota {quota.name} is {quota.window_hours}; it is at most {WINDOW_MAX_HOURS}")
    return quota


# ---- remaining capacity of an object


def used(leases: Iterable[ObjectLease], key: str) -> Decimal:
    """Return the amount of a property that these leases hold together."""
    return sum((number(lease.amounts.get(key, "0")) or Decimal() for lease in leases), Decimal())


def lacking(wanted: ObjectLease, object: Object, others: Sequence[ObjectLease]) -> str:
    """Return why the object, parts of which others hold, cannot be leased; empty: it can be.

    The object is as the requesting user may see it.
    """
    if any(other.exclusive for other in others):
        return "it is leased"
    if wanted.exclusive:
        return "parts of it are leased" if others else ""
    for key, amount in wanted.amounts.items():
        capacity = number(object.properties.get(key, ""))
        left = (capacity or Decimal()) - used(others, key)
        if capacity is None or (number(amount) or Decimal()) > left:
            return f"of {key} {number_text(max(left, Decimal()))} is left"
    return ""


def could(amounts: Mapping[str, str], object: Object) -> bool:
    """Return whether the object's total amounts suffice for the lease."""
    return all((number(object.properties.get(key, "")) or Decimal()) >= (number(n) or 0) for key, n in amounts.items())


# ---- quotas


def within(
    quota: Quota, lease: ObjectLease, others: Iterable[ObjectLease], past: Iterable[ObjectLease], now_ms: int
) -> str:
    """Return why the quota forbids the lease for its duration; empty: it does not.

    `others` are the leases in force, `past` those that ended.
    """
    own = [one for one in others if one.id != lease.id and _together(quota, one, lease)]
    if quota.most:
        have = sum((weight(quota, one) for one in own), Decimal())
        most = number(quota.most) or Decimal()
        if have + weight(quota, lease) > most:
            return (
                f"quota {quota.name}: {number_text(most)} {_unit(quota)} at a time, of which {number_text(have)} taken"
            )
    if quota.hours:
        since_ms = now_ms - quota.window_hours * _HOUR_MS
        # Hours that a lease in force may still use count as spent, or two leases could promise the same hours.
        spent = sum((_spent(quota, one, since_ms, now_ms) for one in own), Decimal())
        spent += sum((_spent(quota, one, since_ms, now_ms) for one in past if _together(quota, one, lease)), Decimal())
        until_ms = lease.until_ms or now_ms + lease.duration_s * 1_000
        begun_ms = lease.begun_ms or now_ms
        wanted = weight(quota, lease) * max(0, until_ms - max(begun_ms, since_ms)) / _HOUR_MS
        hours = number(quota.hours) or Decimal()
        if spent + wanted > hours:
            return (
                f"quota {quota.name}: {number_text(hours)} hours of {_unit(quota)} in {quota.window_hours} hours, of "
                f"which {float(spent):.2f} are spent or promised"
            )
    return ""


def never(quota: Quota, lease: ObjectLease) -> str:
    """Return why the quota can never allow the lease; empty: it can."""
    # With nothing else in force, a quota that still forbids the lease always will.
    return within(quota, lease, (), (), 0)


def weight(quota: Quota, lease: ObjectLease) -> Decimal:
    """Return the amount that a lease counts towards a quota. The lease of a whole object takes all of its properties,
    although it names no amounts."""
    if not quota.property:
        return Decimal(1)
    total = lease.properties.get(quota.property, "") if lease.exclusive else ""
    return number(lease.amounts.get(quota.property, total) or "0") or Decimal()


def concerns(quota: Quota, lease: ObjectLease) -> bool:
    """Return whether partition and owner of the lease are such that it counts for the quota and is limited by it."""
    return (
        quota.partition == lease.partition
        and (not quota.search or quota.name in lease.counts)
        and quota.project in ("", "*", lease.project)
        and quota.user in ("", "*", lease.user)
    )


def _together(quota: Quota, one: ObjectLease, lease: ObjectLease) -> bool:
    """Return whether two leases share the quota."""
    return (
        concerns(quota, one)
        and (quota.project != "*" or one.project == lease.project)
        and (quota.user != "*" or one.user == lease.user)
    )


def _spent(quota: Quota, lease: ObjectLease, since_ms: int, now_ms: int) -> Decimal:
    """Return the hours of a lease from a moment on, including hours that are still to come."""
    end_ms = lease.ended_ms or max(lease.until_ms, now_ms)
    return weight(quota, lease) * max(0, end_ms - max(lease.begun_ms, since_ms)) / _HOUR_MS


def _unit(quota: Quota) -> str:
    return quota.property or "objects"


# ---- ended leases


def ended(lease: ObjectLease, quotas: Iterable[Quota], now_ms: int) -> ObjectLease:
    """Return the record that is kept of a lease that has ended. Of its machine, it keeps the amounts that quotas count
    by time."""
    counted = {quota.property for quota in quotas if quota.hours and concerns(quota, lease)}
    properties = {key: value for key, value in lease.properties.items() if key in counted and number(value) is not None}
    return replace(lease, state=ENDED, ended_ms=now_ms, properties=properties, provider={})


def joined(earlier: ObjectLease, later: ObjectLease) -> ObjectLease:
    """Return one lease for two of the same user, the first of which ended before the other began.

    It counts for quotas at least as much as both, at any time.
    """
    amounts, properties = _larger(earlier.amounts, later.amounts), _larger(earlier.properties, later.properties)
    return replace(later, begun_ms=earlier.begun_ms, amounts=amounts, properties=properties)


def joinable(past: Iterable[ObjectLease]) -> list[tuple[ObjectLease, ObjectLease]]:
    """Return pairs that can be joined, with no lease in two of them; pairs that add the least to the hours spent come
    first."""
    over: dict[tuple[object, ...], list[tuple[int, str]]] = {}
    known = {lease.id: lease for lease in past}
    pairs: list[tuple[int, ObjectLease, ObjectLease]] = []
    for lease in sorted(known.values(), key=lambda one: (one.begun_ms, one.id)):
        own = over.setdefault((lease.partition, lease.project, lease.user, lease.counts, lease.exclusive), [])
        # The lease that ended last before this one began: joining the two adds the smallest gap.
        if at := bisect_right(own, lease.begun_ms, key=lambda one: one[0]):
            ended_ms, id = own.pop(at - 1)
            pairs.append((lease.begun_ms - ended_ms, known[id], lease))
        insort(own, (lease.ended_ms, lease.id))
    found, used = list[tuple[ObjectLease, ObjectLease]](), set[str]()
    for _, earlier, later in sorted(pairs, key=lambda one: (one[0], one[1].id)):
        if used.isdisjoint((earlier.id, later.id)):
            used |= {earlier.id, later.id}
            found.append((earlier, later))
    return found


def _larger(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Return the larger number of each key."""

    def size(text: str) -> Decimal:
        return number(text) or Decimal()

    return {key: max(one.get(key, "0"), other.get(key, "0"), key=size) for key in sorted(one.keys() | other.keys())}
