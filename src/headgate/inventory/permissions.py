"""Determine who may see and change which properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headgate.inventory.definitions import without
from headgate.inventory.health import PROBE, PROBE_INTERVAL
from headgate.inventory.model import HOST_KEY, READ, WRITE, Caller, Definition, Object, Permission


def mask(rules: tuple[Permission, ...], caller: Caller) -> int | None:
    """Return the rights that the most specific rules for the caller give together, or None if no rule concerns the
    caller.

    A rule for project and role is the most specific; rules for a project, for a role and for everybody follow.
    """
    concern = [
        rule for rule in rules if rule.project in ("", caller.project) and (not rule.role or rule.role in caller.roles)
    ]
    if not concern:
        return None
    most = max(_weight(rule) for rule in concern)
    allowed = 0
    for rule in concern:
        if _weight(rule) == most:
            allowed |= rule.mask
    return allowed


def _weight(rule: Permission) -> int:
    return 2 * bool(rule.project) + bool(rule.role)


def may_read(definition: Definition | None, key: str, caller: Caller) -> bool:
    """Return whether the caller may read the property. Without a rule that concerns the caller, they may."""
    return _may(definition, key, caller, READ)


def may_write(definition: Definition | None, key: str, caller: Caller) -> bool:
    """Return whether the caller may write the property, by the rules of `may_read`; permission to change the object
    itself is a separate check."""
    return _may(definition, key, caller, WRITE)


def _may(definition: Definition | None, key: str, caller: Caller, bit: int) -> bool:
    rules = definition.permissions.get(key) if definition else None
    allowed = mask(rules, caller) if rules else None
    return allowed is None or bool(allowed & bit)


def visible(object: Object, definition: Definition | None, caller: Caller) -> Object:
    """Return the object as the caller may see it; filters use only this."""
    if definition is None or not definition.permissions:
        return object
    secret = hidden(definition, caller)
    if not secret & object.properties.keys():
        return object
    return msgspec.structs.replace(
        object, properties={key: value for key, value in object.properties.items() if key not in secret}
    )


def hidden(definition: Definition | None, caller: Caller) -> frozenset[str]:
    """Return the keys of properties that are hidden from the caller."""
    rules = definition.permissions if definition else {}
    return frozenset(key for key in rules if not may_read(definition, key, caller))


def unwritable(
    before: Mapping[str, str],
    after: Mapping[str, str],
    definition: Definition | None,
    caller: Caller,
    named: Iterable[str] = (),
) -> list[str]:
    """Return the properties that differ although the caller may not change them.

    `named` are the keys in the caller's request. A hidden one among them is always returned, whatever its value,
    because refusing only wrong guesses would reveal the value.
    """
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    changed |= set(named) & hidden(definition, caller)
    return sorted(key for key in changed if not may_write(definition, key, caller))


def operated(object: Object | None) -> dict[str, str]:
    """Return the values that only operators write: how a machine is reached, and commands that run on it.

    The name serves as the address if no address is set.
    """
    if object is None:
        return {}
    found = {key: value for key, value in object.properties.items() if is_operated(key)}
    # A new name would send builds, with their secrets, to another host.
    return {**found, "name": object.name} if PROVIDED in found else found


def is_operated(key: str) -> bool:
    """Return whether only operators may write properties of this key, on objects of every type."""
    return key in _OPERATED or key.startswith("ansible_")


def redacted(definition: Definition, caller: Caller) -> Definition:
    """Return the definition without the properties that are hidden from the caller."""
    secret = hidden(definition, caller)
    if not secret or caller.operator:
        return definition
    rules = {key: found for key, found in definition.permissions.items() if key not in secret}
    return msgspec.structs.replace(definition, schema=without(definition.schema, secret), permissions=rules)


PROVIDED = "provider"
"""The property of a machine that names its provider; no build gets a machine without it."""
_OPERATED = frozenset({PROVIDED, "prepare", "clean", PROBE, PROBE_INTERVAL, "slot", HOST_KEY})
