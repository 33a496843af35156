"""Declare the records of the gate's values by their types.

A value is declared once, in `gate.state.model`. Its record refers by key to the contained values that have a place of
their own, and contains all other fields unchanged. A field that is added to a value is therefore stored without
further declarations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from headgate.config.model import FrozenGraph
from headgate.gate.state.model import BuildSet, Item, Queue, State

V = TypeVar("V", bound=msgspec.Struct)

_Field = tuple[str, Any] | tuple[str, Any, Any]  # as msgspec.defstruct accepts it


class Form(Generic[V]):
    """Describe how the values of one type are stored in records.

    - `key`: the field that names the place, and is not stored in the record.
    - `named`: field -> the key of the contained value, which has a place of its own.
    - `apart`: fields that, unless empty, are stored next to the record, each in a place of its own.
    - `below`: fields whose values are found below the place.
    - `spread`: the field whose own fields are stored in the record; if the first of these is None, the field is None.
    """

    def __init__(
        self,
        of: type[V],
        *,
        key: str = "",
        named: Mapping[str, str] | None = None,
        apart: Sequence[str] = (),
        below: Sequence[str] = (),
        spread: tuple[str, Form[Any]] | None = None,
    ) -> None:
        self.of, self._named, self._apart, self._spread = of, named or {}, tuple(apart), spread
        others = {key, *self._named, *apart, *below, *([spread[0]] if spread else [])}
        self._plain = tuple(name for name in of.__struct_fields__ if name not in others)
        self.type: type[Any] = msgspec.defstruct(  # with the fields of the value
            of.__name__, list(self._fields()), frozen=True, omit_defaults=True, kw_only=True, module=__name__
        )
        self.type.__doc__ = of.__doc__

    def _fields(self) -> Iterator[_Field]:
        every = {one.name: one for one in fields(self.of)}
        for name in self._named:
            # Only keys are stored, so that a change of an item does not rewrite its queue's record.
            yield (name, tuple[str, ...], ()) if get_origin(every[name].type) is tuple else (name, str, "")
        yield from (_same(every[name]) for name in self._plain)
        if self._apart:
            # None means that an older version wrote the record, without this field.
            yield "apart", tuple[str, ...] | None, None
        if self._spread is not None:
            (name, type, *_), *rest = self._spread[1]._fields()
            yield name, type | None, None
            yield from rest

    def record(self, value: V) -> Any:
        """Return the record to write for a value."""
        return self.type(**self._members(value))

    def _members(self, value: V) -> dict[str, Any]:
        found = {name: getattr(value, name) for name in self._plain}
        for name, key in self._named.items():
            held = getattr(value, name)
            if isinstance(held, tuple):
                found[name] = tuple(getattr(one, key) for one in held)
            else:
                found[name] = getattr(held, key) if held is not None else ""
        if self._apart:
            found["apart"] = tuple(name for name in self._apart if getattr(value, name))
        if self._spread is not None and (part := getattr(value, self._spread[0])) is not None:
            found |= self._spread[1]._members(part)
        return found

    def value(self, record: Any, **rest: Any) -> V:
        """Return the value of a record. `rest` has the fields that the record refers to by key only."""
        return self.of(**{name: getattr(record, name) for name in self._plain}, **rest)


def _same(field: FieldInfo) -> _Field:
    # The stored name must not change when the field is renamed in the code.
    key = field.encode_name
    if field.default is not msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(name=key, default=field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return field.name, field.type, msgspec.field(name=key, default_factory=field.default_factory)
    return field.name, field.type, msgspec.field(name=key)


PIPELINE = Form(State, named={"queues": "id"})
QUEUE = Form(Queue, key="id", named={"items": "id"})
ITEM = Form(Item, key="id", named={"buildset": "id"}, below=("earlier",))
GRAPH = Form(FrozenGraph, named={"jobs": "id", "reporters": "id"})
BUILDSET = Form(BuildSet, key="id", apart=("state", "proposed"), below=("builds",), spread=("graph", GRAPH))
