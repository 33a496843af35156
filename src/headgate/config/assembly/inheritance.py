"""Compute the complete settings of each provider, with everything that it inherits, for the launcher."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from headgate.config.assembly.providers import PARTS, attached, is_misspoken
from headgate.config.definitions import LayoutDefinitions
from headgate.config.files.checks import as_list, deep_plain
from headgate.config.keys.nodes import NODE_DRIVERS
from headgate.config.machines import STATIC, FlatImage, FlatLabel, FlatProvider
from headgate.config.parse import Stanza

SECTIONS_MAX = 100
"""Longest chain of sections from which a provider inherits."""
_NOT_OURS = {"name", "section", "parent", "abstract", "connection", "description", "images", "flavors", "labels"}
"""Keys of sections and providers that are not passed to the driver."""
_OF_LAUNCHER = {
    "launch-timeout", "launch-attempts", "resource-limits", "image-defaults", "flavor-defaults", "label-defaults"
}  # fmt: skip
_OF_LOGIN = {
    "username", "connection-type", "connection-port", "python-path", "shell-type", "retain-count", "max-retain-count",
    "rebuild-age",
}  # fmt: skip
"""Keys of an image that do not affect its upload."""
_DESCRIPTIVE = {"description", "final", "allow-override"}
"""Keys of an image, flavor or label that do not affect a machine."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    "image": {"python-path": "auto", "tags": {}},
    "flavor": {"public-ipv4": False, "public-ipv6": False},
    "label": {
        "boot-timeout": 300,
        "max-ready-age": 0,
        "max-age": 0,
        "min-retention-time": 0,
        "slots": 1,
        "reuse": False,
        "aliases": [],
        "tags": {},
        "host-key-checking": True,
    },
}
_LENT = ("volume-size", "volume-type", "iops", "throughput", "userdata")
"""Keys that a label takes from its flavor, or else from its image."""


def canonical(stanza: Stanza) -> str:
    """Return the canonical name of a provider, image, flavor or label: its project, URL-quoted, and its own name."""
    # A quoted project contains no slash, so the first slash ends it.
    return f"{quote(stanza.source.project, safe='')}/{stanza.name}"


def flattened(layout: LayoutDefinitions) -> tuple[FlatProvider, ...]:
    """Return the tenant's providers, sorted by name, without providers with errors and undefined parts; the layout's
    errors report these."""
    named = sorted(layout.singles["provider"].items())
    found = (_provider(layout, stanza) for _, stanza in named)
    return tuple(one for one in found if one is not None)


def unreadable(layout: LayoutDefinitions) -> frozenset[str]:
    """Return the canonical names of the providers that are ignored because their driver cannot read their settings."""
    paths = ((stanza, _path(layout, stanza)) for stanza in layout.singles["provider"].values())
    return frozenset(canonical(one) for one, path in paths if path and is_misspoken(path, _driver(layout, path)))


def _connection(path: Sequence[Stanza]) -> str:
    return next((str(s.body["connection"]) for s in path if "connection" in s.body), "")


def _driver(layout: LayoutDefinitions, path: Sequence[Stanza]) -> str:
    """Return the driver of the connection that a path sets, or an empty string if the tenant has no such connection."""
    connection = _connection(path)
    return layout.tenant.driver(connection) if connection in layout.tenant.connections else ""


def _provider(layout: LayoutDefinitions, provider: Stanza) -> FlatProvider | None:
    path = _path(layout, provider)
    connection, driver = _connection(path or ()), _driver(layout, path or ())
    if path is None or not driver or is_misspoken(path, driver):
        return None
    settings: dict[str, Any] = {}
    for stanza in path:
        settings = _merged(settings, {k: v for k, v in deep_plain(stanza.body).items() if k not in _NOT_OURS})
    parts = {kind: dict(_parts(layout, path, key, kind)) for key, kind in PARTS.items()}
    hosts = tuple(settings.pop("nodes", None) or ()) if driver == STATIC else ()
    driver_settings = {key: value for key, value in settings.items() if key not in _OF_LAUNCHER}
    return FlatProvider(
        name=canonical(provider),
        connection=connection,
        driver=driver,
        labels=tuple(_labels(layout, parts, driver, [connection, driver_settings], hosts)),
        settings=driver_settings,
        limits={
            kind: float(most) for kind, most in (settings.get("resource-limits") or {}).items() if most is not None
        },
        launch_attempts=settings.get("launch-attempts") or 3,
        launch_timeout_s=settings.get("launch-timeout") or 0,
        images=tuple(_images(layout, parts["image"], driver, driver_settings)),
        hosts=hosts,
        # Only listed machines are permitted by project.
        projects=tuple(sorted({one.source.project for one in path})) if hosts else (),
    )


def _path(layout: LayoutDefinitions, provider: Stanza) -> list[Stanza] | None:
    """Return the sections from the root down, followed by the provider. Return None if the chain is circular or longer
    than SECTIONS_MAX, or if a section is missing."""
    path, above = [provider], provider.body.get("section")
    while isinstance(above, str):
        found = layout.singles["section"].get(above)
        if found is None or found in path or len(path) > SECTIONS_MAX:
            return None
        path.append(found)
        above = found.body.get("parent")
    return path[::-1]


def _merged(above: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings of settings: nested mappings are merged, lists are concatenated, and other values of `below`
    replace those of `above`. A null value counts as absent."""
    found = dict(above)
    for key, value in below.items():
        known = found.get(key)
        if isinstance(known, Mapping) and isinstance(value, Mapping):
            found[key] = _merged(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            found[key] = [*known, *value]
        elif value is not None:
            found[key] = value
    return found


def _parts(
    layout: LayoutDefinitions, path: Sequence[Stanza], key: str, kind: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the complete settings of every image, flavor or label (`kind`). The settings combine, from the
    lowest to the highest precedence, the built-in defaults, the defaults of the sections, the definition, and the
    nearest entry."""
    defaults, entries = dict[str, Any](), dict[str, tuple[dict[str, Any], dict[str, Any] | None]]()
    for stanza in path:
        defaults = _merged(defaults, deep_plain(stanza.body.get(f"{kind}-defaults")) or {})
        for part in attached(stanza, key):
            settings = {k: v for k, v in deep_plain(part.settings).items() if v is not None}
            # A nearer entry replaces the whole entry of the same name. A final one sees only the defaults down to its
            # own level.
            entries[part.name] = settings, dict(defaults) if settings.get("final") is True else None
    for name, (settings, seen) in entries.items():
        own = layout.singles[kind].get(name)
        if own is None:
            continue
        defined = {k: v for k, v in deep_plain(own.body).items() if v is not None}
        layers = [_DEFAULTS[kind], defaults if seen is None else seen, defined, settings]
        # Tags are merged, whereas any other value replaces that of a lower layer.
        tags = [layer["tags"] for layer in layers if isinstance(layer.get("tags"), Mapping)]
        filled = {k: v for layer in layers for k, v in layer.items() if k not in _DESCRIPTIVE}
        yield name, {**filled, "name": name, "tags": {k: v for one in tags for k, v in one.items()}}


def _images(
    layout: LayoutDefinitions, images: Mapping[str, dict[str, Any]], driver: str, settings: Mapping[str, Any]
) -> Iterator[FlatImage]:
    """Yield the images that jobs build, if the driver accepts uploaded images. `settings` are those of the provider."""
    known = NODE_DRIVERS.get(driver)
    for name, image in sorted(images.items()):
        stanza = layout.singles["image"][name]
        source = layout.tenant.find(stanza.source.project)
        if stanza.body.get("type") != "zuul" or known is None or not known.formats or source is None:
            continue
        if image.get("image-id") or image.get("image-filters"):
            continue  # it already exists in the cloud
        sent = {key: value for key, value in image.items() if key not in _OF_LOGIN}
        yield FlatImage(
            name=name,
            canonical=canonical(stanza),
            project=stanza.source.project,
            connection=source.connection,
            branch=stanza.source.branch,
            format=image.get("image-format") or known.formats[0],
            image=sent,
            # Other settings of the provider do not affect the upload, so providers that differ in them share it.
            digest=_digest([canonical(stanza), sent, settings.get("region"), settings.get("object-storage")]),
            # 0 is a valid value, so `or` would be wrong.
            retain=2 if image.get("retain-count") is None else image["retain-count"],
            rebuild_age_s=image.get("rebuild-age") or 0,
        )


def _labels(
    layout: LayoutDefinitions,
    parts: Mapping[str, Mapping[str, dict[str, Any]]],
    driver: str,
    context: Any,
    hosts: Sequence[Mapping[str, Any]],
) -> Iterator[FlatLabel]:
    """Yield the labels of a provider. `context` holds everything else that distinguishes its machines from those of
    another provider, and `hosts` are its static machines."""
    for name, label in sorted(parts["label"].items()):
        image, flavor = parts["image"].get(label.get("image", "")), parts["flavor"].get(label.get("flavor", ""))
        if image is None or flavor is None:
            continue
        shell = "kubectl" if driver == "kubernetes" else "ssh"
        image = {"connection-type": shell, **image}
        # A pod is reached through the cluster's API, so it has no port.
        if image["connection-type"] != "kubectl":
            image = {"connection-port": 5986 if image["connection-type"] == "winrm" else 22, **image}
        # The last one takes precedence: the flavor before the image and, below, the label before both.
        lent = {key: one[key] for one in (image, flavor) for key in _LENT if key in one}
        label = {**lent, **label, "aliases": as_list(label["aliases"])}
        # `min-ready` and `max-nodes` are settings of the label itself; an entry that attaches it cannot set them.
        own = layout.singles["label"][name].body
        host_aliases = {alias for host in hosts if host.get("label") == name for alias in as_list(host.get("aliases"))}
        # Leave out the numbers of machines: changing them must not make existing machines outdated.
        made = {key: value for key, value in label.items() if key not in ("min-ready", "max-nodes")}
        yield FlatLabel(
            name=name,
            label=made,
            image=image,
            flavor=flavor,
            min_ready=own.get("min-ready") or 0,
            max_nodes=-1 if (most := own.get("max-nodes")) is None else most,
            digest=_digest([made, image, flavor, context]),
            also=tuple(sorted(host_aliases)),
        )


def _digest(value: Any) -> str:
    # Encode deterministically: if digests differed between processes, machines would be replaced.
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:16]
