"""Test which addresses builds must not reach, even if names of the fleet do not resolve."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from headgate.adapters.blocklist import single
from headgate.adapters.process.network import networks
from headgate.adapters.process.network.networks import NetworkChoice, Networks
from headgate.adapters.process.processes import ProcessKeeper

STORE = single("203.0.113.7").network_address


class Resolver:
    """Resolves the names that it knows."""

    def __init__(self) -> None:
        self.known, self.queries = dict[str, str](), 0

    def answer(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.queries += 1
        if host not in self.known:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.known[host], 0))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made.answer)
    monkeypatch.setattr(networks, "ADDRESSES_KNOWN_S", 0.0)
    return made


@pytest.fixture
def opened() -> Networks:
    return Networks(ProcessKeeper(), NetworkChoice(), lambda: ["store"])


async def test_an_address_stays_denied_while_its_name_cannot_be_resolved(resolver: Resolver, opened: Networks) -> None:
    resolver.known["store"] = str(STORE)
    assert STORE in await opened._denied()
    resolver.known.clear()
    assert STORE in await opened._denied()
    # Builds do not query a resolver that is down.
    assert STORE in await opened._denied() and resolver.queries == 2


async def test_an_unresolved_name_is_reported_once_and_retried(
    resolver: Resolver, opened: Networks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(networks, "RESOLVE_AGAIN_S", 0.0)
    with caplog.at_level(logging.WARNING, "headgate.executor"):
        assert STORE not in await opened._denied()
        assert STORE not in await opened._denied()
    assert [one.getMessage().partition(":")[0] for one in caplog.records] == [
        "The name store of a machine of the fleet cannot be resolved"
    ]
    resolver.known["store"] = str(STORE)
    assert STORE in await opened._denied()
