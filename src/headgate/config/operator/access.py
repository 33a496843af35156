"""Define who may do what: rules about the claims of a token, and roles that bundle permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.config.operator.model import AuthorizationRule

BUILT_IN_ROLES = ("admin", "read")
"""Roles with all permissions, and with permission to read only."""
UID_CLAIM = "zuul_uid"
"""Placeholder for the claim that names the user."""
_MISSING = object()


def holds(rule: AuthorizationRule, claims: Mapping[str, Any], tenant: str = "", uid: str = "sub") -> bool:
    """Return whether the claims fulfil the rule for `tenant`. `uid` is the name of the claim that names the user."""
    return any(
        all(_claim(_found(claims, uid if name == UID_CLAIM else name), wanted, tenant) for name, wanted in one.items())
        for one in rule.conditions
    )


def _found(claims: Mapping[str, Any], name: str) -> Any:
    """Return the claim of this name or, if there is none, the value at this dotted path; `_MISSING` if there is
    neither."""
    # The whole name comes first: names of claims may be URLs, which contain dots.
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _claim(value: Any, wanted: Any, tenant: str) -> bool:
    if value is _MISSING:
        return False
    if isinstance(wanted, Mapping):
        return isinstance(value, Mapping) and all(
            _claim(value.get(key, _MISSING), one, tenant) for key, one in wanted.items()
        )
    if isinstance(wanted, str):
        wanted = wanted.replace("{tenant.name}", tenant)
    # In Python, `1 == True`: without the types, a claim of another kind would fulfil the rule.
    values = value if isinstance(value, list) else [value]
    return any(type(one) is type(wanted) and one == wanted for one in values)
