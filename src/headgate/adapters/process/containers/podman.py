"""Forward podman's output, remember why podman failed, and remove layers that it leaves behind."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headgate.adapters.process.processes import Sink

WHY_SIZE_MAX_BYTES = 4_096
_ID = re.compile(r"[0-9a-f]{64}")
_LINK = re.compile(r"[A-Z0-9]{26}")


class PodmanSink:
    """Forward output, and remember the last line that reports an error."""

    def __init__(self, sink: Sink) -> None:
        self._sink, self._rest, self.why = sink, b"", "podman gave no reason"

    def write(self, chunk: bytes) -> None:
        self._sink.write(chunk)
        # Cut before splitting: a registry may send an endless message.
        *lines, self._rest = (self._rest + chunk)[-WHY_SIZE_MAX_BYTES:].split(b"\n")
        for one in lines:
            text = one.decode(errors="replace").strip()
            if text.startswith("Error:"):
                self.why = text.removeprefix("Error:").strip()

    def say(self, text: str) -> None:
        self._sink.say(text)


def take_out_orphans(root: Path, where: Path) -> None:
    """Move layers that no image has, and incomplete images, out of the store at `root` into the directory `where`,
    to be removed. Raise OSError.

    Requires that nothing else uses the store, and that no podman runs on it in the meantime. The files of podman are
    not trusted: a program that exploited a flaw in podman may have written them, and this process is root."""
    of_images, of_layers = root / "overlay-images/images.json", root / "overlay-layers/layers.json"
    every, layers = _listed(of_images), _listed(of_layers)
    # podman records an image before its manifest, so an image without one was interrupted.
    images = [image for image in every if "manifest" in image.get("big-data-names", ())]
    reachable = _reached(images, {layer["id"]: layer.get("parent", "") for layer in layers})
    gone = [layer["id"] for layer in layers if layer["id"] not in reachable]
    # Change the lists before the directories: a crash in between leaves files that no list names, instead of names
    # without files.
    if len(images) < len(every):
        _write(of_images, images)
        for image in every:
            _move(root / "overlay-images" / image["id"], where, unless=image in images)
    if gone:
        _write(of_layers, [layer for layer in layers if layer["id"] in reachable])
    for layer in gone:
        # Each layer has a second, short name in l/, for the options of mount.
        link = root / "overlay" / layer / "link"
        if link.exists():
            (root / "overlay/l" / _fitting(_LINK, link.read_text())).unlink(missing_ok=True)
        _move(link.parent, where)
        (root / f"overlay-layers/{layer}.tar-split.gz").unlink(missing_ok=True)


def _reached(images: Iterable[Mapping[str, Any]], parents: Mapping[str, str]) -> set[str]:
    """Collect the layers of these images."""
    found = set[str]()
    for image in images:
        for layer in (image.get("layer", ""), *image.get("mapped-layers", ())):
            # A layer that was seen before ends the walk, which also handles a cycle of parents.
            while layer and layer not in found:
                found.add(layer)
                layer = parents.get(layer, "")
    return found


def _move(place: Path, where: Path, *, unless: bool = False) -> None:
    if place.is_dir() and not unless:
        place.rename(where / place.name)


def _write(file: Path, content: object) -> None:
    """Replace the content of a file, and keep its owner."""
    # Write a new file and rename it: an interrupted write would leave a store that podman cannot read.
    new, before = file.with_suffix(".new"), file.stat()
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as text:
        json.dump(content, text)
        os.fchown(text.fileno(), before.st_uid, before.st_gid)
    new.rename(file)


def _listed(file: Path) -> list[dict[str, Any]]:
    """Read a list in JSON; return an empty list if the store is still empty."""
    if not file.exists():
        return []
    found: list[dict[str, Any]] = json.loads(file.read_text())
    for one in found:
        _fitting(_ID, one["id"])
    return found


def _fitting(pattern: re.Pattern[str], name: str) -> str:
    """Return the name if it fits the pattern.  Raise OSError otherwise."""
    if not pattern.fullmatch(name):
        raise OSError(f"{name!r} is not a name in a store of images")
    return name
