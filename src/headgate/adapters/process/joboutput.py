"""Write `job-output.json`, which tells programs what each playbook of a build did, and list the stored files."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from headgate.adapters.keys.clear import Censor
from headgate.adapters.process.workspace import Stage
from headgate.adapters.work.directory import Directory, Strange

NAME, MANIFEST, INVENTORY = "job-output.json", "zuul-manifest.json", "zuul-info/inventory.yaml"
EVENTS_VARIABLE = "HEADGATE_EVENTS"
"""Variable with the path of the file to which a playbook's callback plugin writes its events, one JSON object on each
line."""
EVENTS = "events"
EVENTS_SIZE_MAX_BYTES = 10_000_000
"""Size of one playbook's events."""
OUTPUT_SIZE_MAX_BYTES = 50_000_000
LISTED_MAX = 50_000
DEPTH_MAX = 40
_STATS = ("ok", "changed", "failures", "unreachable", "skipped", "rescued", "ignored")


class JobOutput:
    """Write the output of one build; `path` is among its stored logs, and `censor` removes secrets."""

    def __init__(self, path: Path, censor: Callable[[Any], Any]) -> None:
        """Write the file, without any playbook yet.  Raise OSError."""
        self._path, self._censor = path, censor
        self._texts = list[bytes]()
        self._write()

    def add(self, stage: Stage, phase_variables: Mapping[str, Any], secrets: Iterable[str]) -> list[str]:
        """Add a playbook's events, without its `secrets`; `phase_variables` describe its phase. Return messages about
        missing parts. Raise OSError."""
        book = stage.book
        found: dict[str, Any] = {
            "branch": book.branch,
            "index": str(phase_variables.get("zuul_execution_phase_index", "")),
            "phase": phase_variables.get("zuul_execution_phase", ""),
            "playbook": f"{book.project}/{book.path}",
            "trusted": book.trusted,
            "plays": [],
            "stats": {},
        }
        try:
            with Directory.at(stage.output_dir) as place:
                # The playbook writes this file, and could replace it with a pipe or a link.
                text = place.read(EVENTS, EVENTS_SIZE_MAX_BYTES) or b""
            _take(found, _events(text[:EVENTS_SIZE_MAX_BYTES]))
            own = Censor()
            own.learn(secrets)
            # Always remove the playbook's own secrets: a job may show them in its log, but this file is for programs.
            encoded = msgspec.json.encode(self._censor(own.value(found)))
        except (Strange, RecursionError) as error:
            return [f"{NAME} lacks the output of {book.path}: {error}"]
        if sum(map(len, self._texts)) + len(encoded) > OUTPUT_SIZE_MAX_BYTES:
            return [f"{NAME} lacks the output of {book.path}: it would exceed {OUTPUT_SIZE_MAX_BYTES} bytes"]
        self._texts.append(encoded)
        self._write()
        return []

    def _write(self) -> None:
        self._path.write_bytes(b"[" + b",\n".join(self._texts) + b"]\n")


def _events(text: bytes) -> Iterator[dict[str, Any]]:
    """Yield the readable events; the last line may be incomplete."""
    for line in text.split(b"\n"):
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except (ValueError, RecursionError):
            continue


def _take(found: dict[str, Any], events: Iterator[Mapping[str, Any]]) -> None:
    """Add events to `found`: a task belongs to the last play, and a result to the last task with its id."""
    play: dict[str, Any] | None = None
    tasks = dict[str, dict[str, Any]]()
    for event in events:
        at = str(event.get("at", ""))
        match event:
            case {"play": {"id": str(id), "name": str(name)}}:
                play = {"play": _begun(id, name, at), "tasks": []}
                found["plays"].append(play)
            case {"task": {"id": str(id), "name": str(name)}} if play is not None:
                tasks[id] = {"task": _begun(id, name, at), "hosts": {}, **_role(event["task"])}
                play["tasks"].append(tasks[id])
            case {"of": str(id), "host": str(host), "result": dict(result)} if play is not None and id in tasks:
                tasks[id]["hosts"][host] = result
                tasks[id]["task"]["duration"]["end"] = play["play"]["duration"]["end"] = at
            case {"stats": dict(stats)}:
                found["stats"] = {host: _counts(counts) for host, counts in stats.items() if isinstance(counts, dict)}


def _begun(id: str, name: str, at: str) -> dict[str, Any]:
    return {"id": id, "name": name, "duration": {"start": at, "end": at}}


def _role(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the role of a task, if it has one. JSON."""
    match task.get("role"):
        case {"id": str(id), "name": str(name), "path": str(path)}:
            return {"role": {"id": id, "name": name, "path": path}}
    return {}


def _counts(counts: Mapping[str, Any]) -> dict[str, int]:
    return {name: counts[name] for name in _STATS if isinstance(counts.get(name), int)}


def write_inventory(logs: Path, inventory: Mapping[str, Any], censored: Callable[[Any], Any]) -> None:
    """Write the machines' variables, as playbooks got them, without secrets, unless the job wrote the file itself. The
    format is JSON, which is also YAML. Requires that nobody writes to `logs` any longer. Raise OSError."""
    place = logs / INVENTORY
    shown = censored(msgspec.json.decode(msgspec.json.encode(inventory)))
    with suppress(FileExistsError, NotADirectoryError):  # the job created something with this name
        place.parent.mkdir(exist_ok=True)
        with open(place, "xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(shown), indent=1))


def write_manifest(logs: Path) -> None:
    """List the files in `logs`, unless the job wrote the list itself. Requires that nobody writes to `logs` any longer.
    Raise OSError."""
    if (logs / MANIFEST).exists():
        return
    # All levels of the tree share one budget.
    left = iter(range(LISTED_MAX))
    tree = _listed(logs, left, DEPTH_MAX)
    (logs / MANIFEST).write_bytes(msgspec.json.encode({"tree": tree, "index_links": False}))


def _listed(place: Path, left: Iterator[int], depth: int) -> list[dict[str, Any]]:
    """List directories, then files, each by name, without links. JSON."""
    found = list[dict[str, Any]]()
    with os.scandir(place) as entries:
        names = sorted(
            islice(entries, LISTED_MAX), key=lambda entry: (not entry.is_dir(follow_symlinks=False), entry.name)
        )
    for entry in names:
        if entry.is_symlink() or entry.name == MANIFEST or next(left, None) is None:
            continue
        about = entry.stat(follow_symlinks=False)
        record: dict[str, Any] = {"name": entry.name, "last_modified": int(about.st_mtime)}
        if entry.is_dir(follow_symlinks=False):
            inner = _listed(Path(entry.path), left, depth - 1) if depth else []
            found.append({**record, "mimetype": "application/directory", "children": inner})
        else:
            kind, encoding = mimetypes.guess_type(entry.name)
            found.append({**record, "mimetype": kind or "text/plain", "encoding": encoding, "size": about.st_size})
    return found
