"""Determine the index entries of an object."""

from __future__ import annotations

from functools import lru_cache

from headgate.inventory.filters import PostingFilter
from headgate.inventory.model import Object
from headgate.map.inventory.places import InventoryMap, Marker, PropertyValue, Uuid
from headgate.map.tree import Address, escape, unescape


def name(places: InventoryMap, object: Object, per_project: bool) -> Address[Uuid]:
    """Return the place of the object's name. Names are unique in a partition or a project, depending on the type, and
    searches return objects in the order of these paths."""
    of_type = places.partitions.tree(object.partition).objects.by_type(object.type)
    names = of_type.by_project(object.project).by_name if per_project else of_type.by_name
    return names(object.name).record


def indexes(places: InventoryMap, object: Object, per_project: bool) -> dict[str, bytes]:
    """Map the path of every index entry of the object to its value. The first entry is the name's."""
    tree = places.partitions.tree(object.partition)
    found = {name(places, object, per_project).path: Uuid(object.uuid).to_wire()}
    marker = Marker().to_wire()
    for key, value in object.properties.items():
        found[_valued(places, object.partition, object.type, key, value).object(object.uuid).path] = marker
    for tag in object.tags:
        found[tree.tags.tag(tag).object(object.uuid).path] = marker
    return found


@lru_cache(maxsize=4_096)
def _valued(places: InventoryMap, partition: str, type: str, key: str, value: str) -> PropertyValue:
    """Return the directory of the objects that have a property with this value."""
    return places.partitions.tree(partition).properties.by_type(type).key(key).value(value)


def marker(places: InventoryMap, object: Object, posting: PostingFilter) -> str | None:
    """Return the object's entry in a posting list of its partition and type; None: the object is not in the list."""
    tree = places.partitions.tree(object.partition)
    if posting.kind == "tag":
        return tree.tags.tag(posting.key).object(object.uuid).path if posting.key in object.tags else None
    value = object.properties.get(posting.key)
    if value is None:
        return None
    return tree.properties.by_type(object.type).key(posting.key).value(value).object(object.uuid).path


def listed(places: InventoryMap, partition: str, type: str, posting: PostingFilter) -> str:
    """Return the directory of a posting list; a list by tag contains objects of every type."""
    tree = places.partitions.tree(partition)
    if posting.kind == "tag":
        return tree.tags.tag(posting.key).path
    key = tree.properties.by_type(type).key(posting.key)
    return key.path if posting.kind == "key" or posting.prefix else key.value(posting.value).path


def names_of(places: InventoryMap, partition: str, type: str, project: str | None) -> str:
    """Return the directory of the names of a type; with a project, of the names that are unique in the project."""
    of_type = places.partitions.tree(partition).objects.by_type(type)
    return of_type.path if project is None else of_type.by_project(project).by_name.path


def last(path: str) -> str:
    """Return the last component of a path."""
    return unescape(path.rpartition("/")[2])


def component(text: str, *, prefix: bool = False) -> str:
    """Escape a string as a path component; with `prefix`, as the common prefix of all components that begin with it."""
    if not prefix:
        return escape(text)
    # Dots are escaped only if the component is `.` or `..`, so they have no common escaped prefix.
    return "" if text in (".", "..") else escape(f"{text}x")[:-1]
