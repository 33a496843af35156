"""Test the command line against the service: commands of a person, and their results."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.main import group
from tests.integration.inventory.test_compatibility import service

COMPUTE = """
property_definitions:
  location.site: {schema: {type: string}, required: true}
  location.rack_position: {schema: {type: integer, minimum: 1}}
  secret: {permissions: [{permission: ""}, {role: admin, permission: rw}]}
"""


class Shell:
    """`await shell("partition list")`: run a command, check its exit status, and return its output."""

    def __init__(self, address: str, root: Path) -> None:
        """`root`: the directory of the service, with its token."""
        host, _, port = address.partition(":")
        self._environment = {
            "RUNM_HOST": host, "RUNM_PORT": port, "RUNM_USER": "alice", "RUNM_PROJECT": "proj0",
            "RUNM_PARTITION": "part0", "NO_COLOR": "1",
            "HEADGATE_TOKEN": (root / "state" / "token").read_text().strip(),
        }  # fmt: skip

    async def __call__(self, *words: str, stdin: str = "", status: int = 0, **environment: str) -> str:
        given = words[0].split() if len(words) == 1 else list(words)
        env = {**self._environment, **environment}
        result = await asyncio.to_thread(CliRunner().invoke, group, ["inventory", *given], stdin, env)
        error = result.exception if isinstance(result.exception, UserError) else ""
        assert result.exit_code == status, f"{result.output}{result.exception!r}"
        return f"{result.output}{error}".strip()


def node(number: int) -> str:
    return f"""
partition: part0
provider_type: runm.compute
name: node{number}
tags: [compute]
properties:
  location.site: site{number % 2}
  location.rack_position: {number}
"""


@pytest.mark.long
async def test_an_inventory_can_be_managed_by_typing(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'inventory.sqlite'}"
    async with service(tmp_path, "--store", store, identity="verify") as address:
        shell = Shell(address, tmp_path)
        for wrong in ("", "guessed"):
            output = await shell("partition list", status=16, HEADGATE_TOKEN=wrong)
            assert "bearer token" in output or "not a token" in output
        assert len(await shell("partition create", stdin="name: part0\n")) == 32
        assert "part0" in await shell("partition list -f pa*")
        await shell("provider definition set -t runm.compute", stdin=COMPUTE)
        assert "location.rack_position" in await shell("provider definition get -t runm.compute")
        uuids = [await shell("provider create", stdin=node(n)) for n in (1, 2, 3)]
        missing = node(4).replace("  location.site: site0\n", "")
        assert "location.site" in await shell("provider create", stdin=missing, status=3)
        wrong = node(4).replace("rack_position: 4", "rack_position: 0")
        assert "rack_position" in await shell("provider create", stdin=wrong, status=3)
        secret = node(4).replace("properties:", "properties:\n  secret: x")
        assert "may not set secret" in await shell("provider create", stdin=secret, status=7)
        assert "exists" in await shell("provider create", stdin=node(1), status=6)
        found = json.loads(await shell("--json", "provider", "list", "-f", "location.site=site1 type=runm.comp*"))
        assert [one["name"] for one in found] == ["node1", "node3"]
        several = await shell("provider", "list", "-f", "location.rack_position=2", "-f", "name=node3")
        assert "node2" in several and "node3" in several and "node1" not in several
        few = await shell("provider list --limit 2")
        assert "node2" in few and "node3" not in few and "More providers match; only 2 are shown (--limit)." in few
        assert "More providers" not in await shell("provider list --limit 3")
        assert await shell("provider", "set", "node2", "note=two words", "+odd", "%compute") == uuids[1]
        assert "two words" in await shell("provider", "list", "-f", "'note=two words' tag:odd !tag:compute")
        history = await shell("provider history node2")
        assert "created" in history and "updated" in history and "alice" in history
        assert uuids[2] in await shell(f"object get {uuids[2].upper()}")
        assert "created runm.provider" in await shell("watch --count 1 --revision 1")
        assert await shell("provider delete node3") == uuids[2]
        assert "no runm.provider node3" in await shell("provider get node3", status=5)
        assert "session has no project" in await shell("provider list", status=9, RUNM_PROJECT="")
        assert "RUNM_PARTITION  part0" in await shell("helpenv")
        assert await Shell(address, tmp_path)("fsck", "--store", store) == "0 findings", "beside who serves it"
        refused = await Shell(address, tmp_path)("fsck", "--store", store, "--repair", status=1)
        assert "stop it to repair; without --repair, this works while it runs" in refused
    assert await Shell(address, tmp_path)("fsck", "--store", store) == "0 findings"
    assert "is the service running there" in await Shell(address, tmp_path)("provider list", status=14)


@pytest.mark.long
async def test_many_are_imported_and_exported(tmp_path: Path) -> None:
    """Import a file of some hundred rows with some bad ones, again, changed, and into another partition."""
    lines = ["name,rack,tags"] + [f"m{n:03},{n % 7},fast" for n in range(250)]
    lines[101], lines[201] = ",7,", f"m{'x' * 300},1,"
    (tmp_path / "broken.csv").write_text("\n".join(lines))
    lines[101] = "m100,7,"
    (tmp_path / "machines.csv").write_text("\n".join(lines))
    store = f"sqlite:///{tmp_path / 'inventory.sqlite'}"
    async with service(tmp_path, "--store", store, identity="verify") as address:
        shell = Shell(address, tmp_path)
        for name in ("part0", "part1"):
            await shell("partition", "create", stdin=f"name: {name}")
        read = ("import", "-t", "runm.machine", "-f")
        assert "broken.csv:102: name must be set" in await shell(*read, str(tmp_path / "broken.csv"), status=1)
        output = await shell(*read, str(tmp_path / "machines.csv"), status=1)
        assert "249 created, 0 updated, 0 unchanged, 1 refused" in output
        assert "machines.csv:202: name has 301 bytes; at most 255 are allowed" in output
        again = await shell(*read, str(tmp_path / "machines.csv"), status=1)
        assert "0 created, 0 updated, 249 unchanged, 1 refused" in again
        lines[1], lines[201] = "m000,9,fast new", "m200,1,"
        (tmp_path / "machines.csv").write_text("\n".join(lines))
        refused = await shell(*read, str(tmp_path / "machines.csv"), status=1)
        assert "1 created, 0 updated, 248 unchanged, 1 refused" in refused and "m000 exists and differs" in refused
        changed = await shell(*read, str(tmp_path / "machines.csv"), "--update")
        assert "0 created, 1 updated, 249 unchanged, 0 refused" in changed
        for format in ("csv", "json", "yaml"):
            file = str(tmp_path / f"copy.{format}")
            await shell("export", "--filter", "rack=3", "-o", file, "--no-uuid", "--format", format)
            there = {"RUNM_PARTITION": "part1"}
            expected = "36 created" if format == "csv" else "0 created, 0 updated, 36 unchanged"
            assert expected in await shell("import", "-f", file, **there)
        assert len((await shell("object", "list", "--json", RUNM_PARTITION="part1")).split('"name"')) == 37


@pytest.mark.long
async def test_machines_are_leased_by_typing(tmp_path: Path) -> None:
    """Two people lease a machine with a gpu and parts of another; there is a quota, and a machine fails."""
    store = f"sqlite:///{tmp_path / 'inventory.sqlite'}"
    async with service(tmp_path, "--store", store, identity="verify") as address:
        shell = Shell(address, tmp_path)
        bob = {"RUNM_USER": "bob"}
        await shell("partition", "create", stdin="name: part0")
        await shell("machine", "create", stdin="{name: m1, properties: {memory: '64'}, tags: [gpu]}")
        uuid = await shell("machine", "create", stdin="{name: m2, properties: {memory: '64'}}")
        first = await shell("lease", "ask", "--for", "2h", "-f", "tag:gpu", "--note", "training")
        assert "m1" in await shell("lease", "get", first) and "held" in await shell("lease", "get", first)
        second = json.loads(await shell("lease", "ask", "--for", "30m", "-f", "tag:gpu", "--json", **bob))
        assert second["state"] == "WAITING"
        listed = await shell("lease list")
        assert "training" in listed and "0 ahead" in listed and "bob" in listed
        assert "1 request was ahead" in await shell(
            "lease", "ask", "--for", "1h", "-f", "tag:gpu", "--wait", "1s", status=1
        )
        assert "others wait for m1" in await shell("lease", "extend", first, "--for", "3h", status=9)
        assert await shell("lease", "end", first) == first
        assert "held" in await shell("lease", "get", second["id"], **bob)
        assert "until 2" in await shell("lease", "extend", second["id"], "--for", "1d", **bob)
        parts = ["lease", "ask", "--for", "1h", "-f", "memory>=32", "-a"]
        for amount, status in (("memory=40", 0), ("memory=65", 9), ("memory=lots", 3), ("memory", 1)):
            await shell(*parts, amount, status=status)
        waits = json.loads(await shell(*parts, "memory=30", "--json"))
        assert waits["state"] == "WAITING"
        roles = {"RUNM_ROLES": "admin"}
        assert "not a duration" in await shell("lease", "ask", "--for", "2 hours", status=2)
        await shell(
            "quota", "set", "each", "--for-user", "*", "--most", "9", "--hours", "40", "--window-hours", "168", **roles
        )
        assert "40 in 168 h" in await shell("quota list")
        assert "this lease can never be granted" in await shell("lease", "ask", "--for", "3d", status=9)
        for _ in range(3):
            await shell("health", "failed", uuid, "no answer", **roles)
        assert "unhealthy since 20" in await shell("health", "list", **roles)
        await shell("health", "well", uuid, **roles)
        await shell("quota", "delete", "each", **roles)
        assert "no quota" in await shell("quota", "delete", "each", status=5, **roles)
    assert await Shell(address, tmp_path)("fsck", "--store", store) == "0 findings"
