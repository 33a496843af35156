"""Provide a driver of machines of a new kind: a shed with benches, each of which has a file with its user.

Like every driver, it keeps no state itself: the files are the machines, with their tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.base.errors import UserError
from headgate.ports.clouds import NODE_TAG, Amounts, Cloud, LaunchFailed, MachineSpec, Made, OverQuota, Resource, State

BENCHES = 2


class Shed:
    """Keep machines in files of one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _benches(self) -> dict[str, dict[str, str]]:
        return {file.stem: msgspec.json.decode(file.read_bytes()) for file in sorted(self._root.glob("*.bench"))}

    async def uses(self, wanted: MachineSpec) -> Amounts:
        return {"benches": 1}

    async def advance(self, wanted: MachineSpec, state: State) -> Made:
        benches = self._benches()
        own = next((id for id, tags in benches.items() if tags[NODE_TAG] == wanted.node), None)
        if own is None and state:
            raise LaunchFailed("its bench was cleared")
        if own is None:
            own = next((str(n) for n in range(BENCHES) if str(n) not in benches), None)
            if own is None:
                raise OverQuota("benches")
            (self._root / f"{own}.bench").write_bytes(msgspec.json.encode(dict(wanted.tags)))
        tool = str(wanted.label.get("tool", "hammer"))
        host = {"ansible_host": f"bench-{own}", "ansible_connection": "ssh", "tool": tool}
        return Made(own, {"bench": own}, host)

    async def remove(self, wanted: MachineSpec, state: State) -> bool:
        for id, tags in self._benches().items():
            if tags[NODE_TAG] == wanted.node:
                (self._root / f"{id}.bench").unlink()
        return True

    async def resources(self, provider: Mapping[str, Any]) -> list[Resource]:
        return [Resource(id, "bench", tags, {"benches": 1}) for id, tags in self._benches().items()]

    async def delete(self, provider: Mapping[str, Any], resource: Resource) -> None:
        (self._root / f"{resource.id}.bench").unlink(missing_ok=True)

    async def limits(self, provider: Mapping[str, Any]) -> Amounts:
        return {"benches": BENCHES}

    async def close(self) -> None:
        return None


def connect(given: CloudDriverOptions) -> Cloud:
    root = given.directory / given.options["place"]
    if not root.is_dir():
        raise UserError(f"place: {root} is not a directory: make it, or name another")
    return Shed(root)
