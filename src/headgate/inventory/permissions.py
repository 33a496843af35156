"""Who may see and change which properties."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headgate.inventory.model import READ, WRITE, Caller, Definition, Object, Permission


def mask(rules: tuple[Permission, ...], caller: Caller) -> int | None:
    """What the most specific rules that concern the caller allow together; None when there is none.

    Project and role are more specific than a project, that than a role, that than everybody.
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
    """Without a rule that concerns the caller: yes."""
    return _may(definition, key, caller, READ)


def may_write(definition: Definition | None, key: str, caller: Caller) -> bool:
    """As `may_read`; whether the object itself may be changed is for its owner to say."""
    return _may(definition, key, caller, WRITE)


def _may(definition: Definition | None, key: str, caller: Caller, bit: int) -> bool:
    rules = definition.permissions.get(key) if definition else None
    allowed = mask(rules, caller) if rules else None
    return allowed is None or bool(allowed & bit)


def visible(object: Object, definition: Definition | None, caller: Caller) -> Object:
    """The object as the caller may see it; filters look at nothing else."""
    if definition is None or not definition.permissions:
        return object
    hidden = {key for key in definition.permissions if not may_read(definition, key, caller)}
    if not hidden & object.properties.keys():
        return object
    return msgspec.structs.replace(
        object, properties={key: value for key, value in object.properties.items() if key not in hidden}
    )


def unwritable(
    before: Mapping[str, str], after: Mapping[str, str], definition: Definition | None, caller: Caller
) -> list[str]:
    """Properties that differ although the caller may not change them."""
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return sorted(key for key in changed if not may_write(definition, key, caller))
