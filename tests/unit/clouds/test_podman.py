"""Test errors in a connection to podman, and that numbers of machines share neither addresses nor users."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.podman import guest
from headgate.adapters.nodes.clouds.podman.driver import CONTAINER, NETWORK, Podman, connect
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.adapters.process.containers.store import NUMBERS
from headgate.base.errors import UserError
from headgate.ports.clouds import NODE_TAG, SYSTEM_TAG, LaunchFailed, MachineSpec, Resource


@pytest.mark.parametrize(
    ("user", "section", "wrong"),
    [
        (0, {"authorized_keys": "none"}, "none: cannot be read: No such file"),
        (0, {"authorized_keys": "keys", "deny": "10.0.0.0/40"}, "deny: .*10.0.0.0/40"),
        (1000, {"authorized_keys": "keys"}, "this launcher must run as root"),
    ],
)
def test_a_connection_that_cannot_be_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, section: dict[str, str], wrong: str
) -> None:
    (tmp_path / "keys").write_text("ssh-ed25519 AAAA\n")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(UserError, match=wrong):
        connect(CloudDriverOptions("machines", section, tmp_path))


def test_machines_share_neither_addresses_nor_users_with_each_other_or_with_jobs_in_containers() -> None:
    every = [guest.subnet(number) for number in range(guest.COUNT)]
    assert all(one.broadcast_address + 1 == two.network_address for one, two in pairwise(every))
    assert all(one.subnet_of(guest.MACHINES) for one in every)
    spans = [(int(guest.users(n).split(":")[1]), int(guest.users(n).split(":")[2])) for n in range(guest.COUNT)]
    assert all(first + count == after for (first, count), (after, _) in pairwise(spans))
    assert spans[0][0] >= NUMBERS.first + NUMBERS.count and sum(spans[-1]) < 2**31


PODMAN = """#!/bin/sh
case "$1 $2" in
"ps -a") echo '[{"Names": ["headgate-n1"], "Labels": {"zuul_system_id": "s", "zuul_node_uuid": "n1"}}]' ;;
"network ls") echo '[]' ;;
*) echo "$WHY" >&2; exit 2 ;;
esac
"""
"""Imitate a podman that has one container and refuses everything else."""


@pytest.fixture
def refusing(tmp_path: Path) -> Podman:
    """Provide a driver whose podman refuses."""
    (tmp_path / "podman").write_text(PODMAN)
    (tmp_path / "podman").chmod(0o755)
    return Podman([str(tmp_path / "podman")], b"")


async def test_a_failed_removal_by_podman_is_reported_with_the_reason(
    refusing: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHY", "Error: container is in an invalid state")
    for kind in (CONTAINER, NETWORK):
        with pytest.raises(LaunchFailed, match=r"podman cannot remove headgate-n1: .*in an invalid state"):
            await refusing.delete({}, Resource("headgate-n1", kind, {}, {}))
    wanted = MachineSpec("n1", {}, {}, {}, {}, {SYSTEM_TAG: "s", NODE_TAG: "n1"})
    with pytest.raises(LaunchFailed, match="in an invalid state"):
        await refusing.remove(wanted, {})


@pytest.mark.parametrize(
    "why",
    [
        "Error: unable to find network with name or ID headgate-n1: network not found",
        "Error: no such container headgate-n1",
        "Error: removing container 99 root filesystem: 1 error occurred: * unlinkat /s/shm: device or resource busy",
    ],
)
async def test_deleting_a_missing_or_busy_resource_does_not_fail(
    refusing: Podman, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setenv("WHY", why)
    for kind in (CONTAINER, NETWORK):
        await refusing.delete({}, Resource("headgate-n1", kind, {}, {}))
