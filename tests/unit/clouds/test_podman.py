"""What a connection to podman says that is wrong; numbers of machines share neither addresses nor users."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from headgate.adapters.nodes.clouds.podman import places
from headgate.adapters.nodes.clouds.podman.driver import connect
from headgate.adapters.nodes.clouds.registry import CloudDriverOptions
from headgate.adapters.process.containers.store import NUMBERS
from headgate.base.errors import UserError


@pytest.mark.parametrize(
    ("user", "said", "wrong"),
    [
        (0, {"authorized_keys": "none"}, "none: cannot be read: No such file"),
        (0, {"authorized_keys": "keys", "deny": "10.0.0.0/40"}, "deny: .*10.0.0.0/40"),
        (1000, {"authorized_keys": "keys"}, "only root has containers that are machines"),
    ],
)
def test_a_connection_that_cannot_be_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, said: dict[str, str], wrong: str
) -> None:
    (tmp_path / "keys").write_text("ssh-ed25519 AAAA\n")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(UserError, match=wrong):
        connect(CloudDriverOptions("machines", said, tmp_path))


def test_machines_share_neither_addresses_nor_users_with_each_other_or_with_jobs_in_containers() -> None:
    every = [places.subnet(number) for number in range(places.COUNT)]
    assert all(one.broadcast_address + 1 == two.network_address for one, two in pairwise(every))
    assert all(one.subnet_of(places.MACHINES) for one in every)
    spans = [(int(places.users(n).split(":")[1]), int(places.users(n).split(":")[2])) for n in range(places.COUNT)]
    assert all(first + count == after for (first, count), (after, _) in pairwise(spans))
    assert spans[0][0] >= NUMBERS.first + NUMBERS.count and sum(spans[-1]) < 2**31
