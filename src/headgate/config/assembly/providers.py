"""Find conflicts in sections and providers after inheritance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

from msgspec.structs import replace

from headgate.base.hints import HintedText, nearest
from headgate.config.files.checks import entries, show
from headgate.config.files.document import Table
from headgate.config.files.source import MEANING, NO_EFFECT, UNKNOWN_WORD, Wrong
from headgate.config.keys import nodes
from headgate.config.keys.forms import misspoken
from headgate.config.keys.objects import PROVIDER, SECTION
from headgate.config.model import ConfigError
from headgate.config.parse import Stanza

PARTS = {"images": "image", "flavors": "flavor", "labels": "label"}
"""Key of a section or provider -> kind of stanza that it attaches."""
Known = Callable[[str, str], Stanza | None]
"""Function that returns the definition of (kind, name), or None."""


class AttachedPart(NamedTuple):
    """Hold an image, flavor or label as one stanza attaches it."""

    stanza: Stanza
    name: str
    settings: Table
    line: int

    def error(self, text: str | HintedText, key: str = "") -> ConfigError:
        return self.stanza.source.error(MEANING, text, self.settings.at(key) or self.line)


def attached(stanza: Stanza, key: str) -> Iterator[AttachedPart]:
    """Yield the parts that the stanza itself attaches under `key`."""
    for entry, line in entries(stanza.body.get(key), stanza.body.at(key)):
        if isinstance(entry, str):
            yield AttachedPart(stanza, entry, Table(line), line)
        elif isinstance(entry.get("name"), str):
            yield AttachedPart(stanza, entry["name"], entry, line)


def misfits(path: Sequence[Stanza], known: Known, driver: Callable[[str], str]) -> Iterator[ConfigError]:
    """Yield the errors of the first stanza of `path`; the others are the sections from which it inherits, nearest
    first."""
    yield from _connections(path)
    yield from _words(path, driver)
    for key, kind in PARTS.items():
        for part in attached(path[0], key):
            yield from _redefined(part, key, kind, path[1:])
    yield from _counts(path, known)
    if path[0].kind == "provider":
        yield from _unattached(path, known)
        yield from _not_uploaded(path, known, driver)
        yield from _listed_twice(path)


def _connections(path: Sequence[Stanza]) -> Iterator[ConfigError]:
    setters = [stanza for stanza in path if "connection" in stanza.body]
    if len(setters) > 1:
        text = f"both {setters[0].name} and {setters[1].name}, which it inherits from, set the connection"
        yield path[0].error(MEANING, text, "connection")


def _words(path: Sequence[Stanza], driver: Callable[[str], str]) -> Iterator[ConfigError]:
    """Yield errors for keys and values of the first stanza of `path` that its driver does not know. A section without a
    connection has no driver, so its errors are yielded for the stanza that inherits from it and sets the connection."""
    connection = next((stanza.body["connection"] for stanza in path if "connection" in stanza.body), "")
    name = driver(connection) if isinstance(connection, str) and connection else ""
    if not name:
        return
    first, known = path[0], nodes.NODE_DRIVERS.get(name, nodes.ANY_NODES)
    for wrong in (*_unknown_keys(first, first.kind, name), *_misspoken(first, known)):
        yield first.source.error_from(wrong)
    for stanza in path[1:] if "connection" in first.body else ():
        for wrong in (*_unknown_keys(stanza, first.kind, name), *_misspoken(stanza, known)):
            text = f"{wrong.text}; it is inherited from {stanza.name}"
            yield first.source.error(wrong.name, text, first.body.at("connection"), wrong.severity)


def _unknown_keys(stanza: Stanza, kind: str, driver: str) -> Iterator[Wrong]:
    """Yield an error or a warning for each key of the section or provider itself that its driver does not know."""
    known = nodes.NODE_DRIVERS.get(driver, nodes.ANY_NODES)
    good = {*(PROVIDER if stanza.kind == "provider" else SECTION), *known.own}
    for key in stanza.body if known.complete else ():
        if key not in good:
            text, line = HintedText(f"a {kind} of {driver} has no key {key!r}", nearest(key, good)), stanza.body.at(key)
            yield Wrong(text, line) if known.refuses else Wrong(text, line, UNKNOWN_WORD, "warning")


def _misspoken(stanza: Stanza, known: nodes.NodeDriver) -> Iterator[Wrong]:
    """Yield the errors in the driver's keys of a stanza and of the parts that it attaches."""
    body = stanza.body
    # `_unknown_keys` reports unknown keys of the stanza itself.
    yield from misspoken(body, known.own, f"the {stanza.kind} {stanza.name}", complete=False)
    for key, keys in known.attached:
        kind = PARTS[key]
        for entry, line in entries(body.get(key), body.at(key)):
            if isinstance(entry, Table):
                lacks = not isinstance(entry.get("name"), str)
                what = f"{kind} without a name" if lacks else f"{kind} {entry['name']}"
                yield from [Wrong(f"one of the {key} has no name", line)] if lacks else []
                yield from misspoken(entry, keys, f"the {what}", complete=known.complete)
        if (defaults := body.get(f"{kind}-defaults")) is not None and isinstance(defaults, Table):
            yield from misspoken(defaults, keys, f"{kind}-defaults of {stanza.name}", complete=known.complete)


def is_misspoken(path: Sequence[Stanza], driver: str) -> bool:
    """Return whether a setting of a provider, its own or inherited, has a form that its driver cannot read."""
    known = nodes.NODE_DRIVERS.get(driver, nodes.ANY_NODES)
    return any(wrong.severity == "error" for stanza in path for wrong in _misspoken(stanza, known))


def _redefined(part: AttachedPart, key: str, kind: str, above: Sequence[Stanza]) -> Iterator[ConfigError]:
    for stanza in above:
        for other in attached(stanza, key):
            closed = other.settings.get("final") is True and other.settings.get("allow-override") is not True
            if other.name == part.name and closed:
                text = f"the {kind} {part.name} is final in the section {stanza.name}"
                yield part.error(f"{text}; {part.stanza.name} may not redefine it")
                return


# --- limits of retained image builds


def retained_counts(stanza: Stanza) -> Iterator[ConfigError]:
    """Yield an error if an image stanza sets a retain-count above its own max-retain-count."""
    yield from _too_many(
        AttachedPart(stanza, stanza.name, stanza.body, stanza.line), stanza.body.get("max-retain-count")
    )


def _counts(path: Sequence[Stanza], known: Known) -> Iterator[ConfigError]:
    for part in attached(path[0], "images"):
        wrong = list(_no_counts(part))
        yield from wrong
        # Values that are not numbers cannot be compared with the limits.
        if wrong:
            continue
        above = _most_above(part.name, path[1:], known)
        own = part.settings.get("max-retain-count")
        if own is not None and above is not None and own > above:
            text = f"max-retain-count of the image {part.name}, {own}, exceeds the inherited limit, {above}"
            yield part.error(text, "max-retain-count")
        else:
            yield from _too_many(part, above if own is None else own)


def _no_counts(part: AttachedPart) -> Iterator[ConfigError]:
    for key in ("retain-count", "max-retain-count"):
        value = part.settings.get(key)
        if value is not None and not _is_count(value):
            text = f"{key} of the image {part.name} must be a whole number of at least 0, not {show(value)}"
            yield part.error(text, key)


def _most_above(name: str, above: Sequence[Stanza], known: Known) -> int | None:
    """Return the smallest max-retain-count that the image and the sections above set, or None if none of them sets
    one."""
    image = known("image", name)
    limits: list[Any] = [image.body.get("max-retain-count")] if image is not None else []
    limits += [
        p.settings.get("max-retain-count") for stanza in above for p in attached(stanza, "images") if p.name == name
    ]
    # Going down, a limit may only become smaller.
    return min((value for value in limits if _is_count(value)), default=None)


def _too_many(part: AttachedPart, most: int | None) -> Iterator[ConfigError]:
    count = part.settings.get("retain-count")
    if count is not None and most is not None and count > most:
        text = f"retain-count of the image {part.name}, {count}, exceeds max-retain-count, {most}"
        yield part.error(text, "retain-count")


def _is_count(value: Any) -> TypeGuard[int]:
    # In Python, bool is a subclass of int.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- parts of a provider


def _not_uploaded(path: Sequence[Stanza], known: Known, driver: Callable[[str], str]) -> Iterator[ConfigError]:
    """Yield an error or a warning for each image that jobs build and that the provider cannot accept."""
    connection = next((stanza.body["connection"] for stanza in path if "connection" in stanza.body), "")
    name = driver(connection) if isinstance(connection, str) and connection else ""
    for image, part in _by_name(path, "images").items():
        defined = known("image", image)
        if defined is None or defined.body.get("type") != "zuul":
            continue
        built = f"the image {image} is built by jobs (type zuul)"
        if name in nodes.NO_UPLOADS:
            yield _at(part, path[0], f"{built}, and {nodes.NO_UPLOADS[name]}")
        elif name == "aws" and (lacking := _not_imported(path, part, defined)):
            text = f"{built}, and {lacking}; this provider cannot create machines from it"
            yield replace(_at(part, path[0], text), name=NO_EFFECT, severity="warning")


def _not_imported(path: Sequence[Stanza], part: AttachedPart, defined: Stanza) -> str:
    """Return why AWS cannot import the file that jobs build, or an empty string if it can, or need not."""
    defaults = [stanza.body.get("image-defaults") for stanza in path]
    layers = [layer for layer in (part.settings, defined.body, *defaults) if isinstance(layer, Mapping)]

    def setting(key: str) -> Any:
        return next((layer[key] for layer in layers if layer.get(key) is not None), None)

    # An image that already exists in AWS needs no import.
    if setting("image-id") or setting("image-filters"):
        return ""
    method, format = setting("import-method") or "snapshot", setting("image-format") or "raw"
    taken = nodes.AWS_IMPORTS.get(method) if isinstance(method, str) else None
    if taken is None or format not in nodes.AWS_FORMATS:
        return ""  # reported with the key itself
    if format not in taken:
        return f"AWS cannot import the format {format} with the method {method}; it accepts {', '.join(taken)}"
    stores = [stanza.body.get("object-storage") for stanza in path]
    # Only this method needs no bucket: it writes the blocks of a snapshot.
    if method != "ebs-direct" and not any(isinstance(one, Mapping) and one.get("bucket-name") for one in stores):
        return "AWS imports it from a bucket: set object-storage: {bucket-name: NAME} in the provider or its section"
    return ""


def _unattached(path: Sequence[Stanza], known: Known) -> Iterator[ConfigError]:
    provider = path[0]
    found = {key: _by_name(path, key) for key in PARTS}
    for label, part in found["labels"].items():
        defined = known("label", label)
        for key, kind in (("images", "image"), ("flavors", "flavor")):
            name = part.settings.get(kind, defined.body.get(kind) if defined is not None else None)
            if isinstance(name, str) and name not in found[key]:
                text = f"the label {label} needs the {kind} {name}, which is not attached to the provider"
                yield _at(part, provider, f"{text} {provider.name}")
    for stanza in path:
        for node, line in entries(stanza.body.get("nodes"), stanza.body.at("nodes")):
            wanted = node.get("label") if isinstance(node, Table) else None
            if isinstance(wanted, str) and wanted not in found["labels"]:
                text = f"the node {node.get('name')} has the label {wanted}, which is not attached to the provider"
                yield _at(AttachedPart(stanza, wanted, node, line), provider, f"{text} {provider.name}")


def _listed_twice(path: Sequence[Stanza]) -> Iterator[ConfigError]:
    """Yield an error for each machine that is listed twice, and for the first one that exceeds LISTED_MAX slots."""
    seen, slots = set[tuple[Any, ...]](), 0
    for stanza in path:
        for node, line in entries(stanza.body.get("nodes"), stanza.body.at("nodes")):
            if not isinstance(node, Table) or not isinstance(node.get("name"), str):
                continue
            # One host may be several machines, which differ in port or user.
            same = (node["name"], node.get("host"), node.get("connection-port"), node.get("username"))
            one = AttachedPart(stanza, node["name"], node, line)
            if same in seen:
                yield _at(one, path[0], f"the node {node['name']} is listed twice, with the same port and user")
            seen.add(same)
            slots += node["slots"] if _is_count(node.get("slots")) else _label_slots(path, node.get("label"))
            if slots > nodes.LISTED_MAX:
                yield _at(
                    one, path[0], f"the nodes of the provider {path[0].name} have more than {nodes.LISTED_MAX} slots"
                )
                return


def _label_slots(path: Sequence[Stanza], label: object) -> int:
    """Return the slots of a machine that sets none itself: those that the nearest stanza attaches to its label."""
    values = (
        part.settings.get("slots") for stanza in path for part in attached(stanza, "labels") if part.name == label
    )
    return next((value for value in values if _is_count(value)), 1)


def _by_name(path: Sequence[Stanza], key: str) -> dict[str, AttachedPart]:
    """Return the parts that are attached under `key` to the first stanza of `path`, by name. The nearest part of a name
    takes precedence."""
    return {part.name: part for stanza in reversed(path) for part in attached(stanza, key)}


def _at(part: AttachedPart, provider: Stanza, text: str) -> ConfigError:
    """Return an error at the part if the provider itself attaches it, or at the beginning of the provider if it
    inherits the part."""
    return part.error(text) if part.stanza is provider else provider.error(MEANING, text)
