"""Bound the work of checking an object against a JSON Schema: what a schema says once may be checked millions of times.

A reference checks another part of the schema again, so twenty definitions of two references each are a million checks.
Some keywords also make the validator check the same parts repeatedly, once more for each level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.inventory.names import Invalid

WORK_MAX = 100_000
"""Limit on the parts of a schema that the check of one object may visit."""
_AGAIN = {"oneOf": 2, "unevaluatedProperties": 4, "unevaluatedItems": 4}
"""Keyword -> how often a validator may check the other parts of the same schema."""
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")
"""References whose targets depend on what is checked."""

Json = Any


def bound(document: Json) -> None:
    """Raise Invalid for a schema whose check may take more than WORK_MAX steps, or has no end."""
    expansion = _Expansion(document)
    try:
        work = expansion.work(document)
    except RecursionError as error:
        raise Invalid("the schema is nested too deeply, or its references are") from error
    if expansion.references and (moved := expansion.moved):
        raise Invalid(f"the schema has references and a part with an {moved} of its own; name parts by `#/$defs/NAME`")
    if work > WORK_MAX:
        raise Invalid(f"the check of one object takes about {work:.2g} steps; at most {WORK_MAX} are allowed")


class _Expansion:
    """Count the steps of each part of a schema, with the parts that it refers to."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self._known: dict[int, int] = {}
        """Identity of a part -> its steps; 0: it is being counted."""
        self.references = 0
        self.moved = ""
        """Keyword by which a part has an address of its own, so that `#` means that part inside it."""

    def work(self, part: Json) -> int:
        """Return the steps of a part. Raise Invalid if it leads back to itself."""
        if not isinstance(part, dict | list):
            return 0
        if id(part) in self._known:
            if not self._known[id(part)]:
                raise Invalid("a $ref leads back to a part that contains it; objects are not nested, so none may")
            return self._known[id(part)]
        self._known[id(part)] = 0
        inner = part.values() if isinstance(part, dict) else part
        # Data such as an `enum` counts like a schema: the number is an upper bound.
        work = sum(map(self.work, inner))
        if isinstance(part, dict):
            work = (work + self._referred(part)) * max((n for key, n in _AGAIN.items() if key in part), default=1)
        # A number of thousands of digits would itself take long to compute.
        self._known[id(part)] = min(work + 1, 10**30)
        return self._known[id(part)]

    def _referred(self, part: Mapping[str, Json]) -> int:
        """Return the steps of the part that this one refers to."""
        if part is not self._document:
            self.moved = self.moved or next((key for key in ("$id", "id") if isinstance(part.get(key), str)), "")
        if found := next((key for key in _ELSEWHERE if isinstance(part.get(key), str)), ""):
            raise Invalid(f"the schema has a {found}; use $ref")
        reference = part.get("$ref")
        if not isinstance(reference, str):
            return 0
        self.references += 1
        return self.work(self._target(reference))

    def _target(self, reference: str) -> Json:
        """Return the part that a reference names. Raise Invalid."""
        if reference != "#" and not reference.startswith("#/"):
            raise Invalid(f"{reference} is not part of the schema, and nothing is fetched; refer to `#/$defs/NAME`")
        found = self._document
        for step in reference.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isascii() and key.isdecimal() and int(key[:9]) < len(found):
                found = found[int(key[:9])]
            elif isinstance(found, dict) and key in found and "%" not in key:
                found = found[key]
            else:
                raise Invalid(f"{reference} names no part of the schema")
        return found
