"""Test that a program's lease ends with its block, although the service is away at that moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from headgate.inventory.wire import inventory_pb2 as pb
from headgate.stock import Stock, StockRefused, client

AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED)


class Refusal(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "so it is"


class Channel:
    """Imitate a connection to the service that grants a lease and first fails to end it in these ways."""

    def __init__(self, *refusals: grpc.StatusCode) -> None:
        self._refusals, self.ended = list(refusals), False

    def unary_unary(self, method: str, *of: object) -> Callable[..., Any]:
        return self._end if method.endswith("/EndLease") else self._give

    def _give(self, request: object, **how: object) -> pb.Lease:
        return pb.Lease(id="1", state=pb.Lease.HELD)

    def _end(self, request: pb.LeaseRequest, **how: object) -> pb.Lease:
        if self._refusals:
            raise Refusal(self._refusals.pop(0))
        self.ended = request.id == "1"
        return pb.Lease(id="1", state=pb.Lease.ENDED)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOK_INTERVAL_S", 0.0)


def test_ending_a_lease_is_repeated_until_the_service_is_available_again() -> None:
    channel = Channel(*AWAY)
    with Stock(channel).lease("tag:gpu"):
        assert not channel.ended
    assert channel.ended


def test_an_expired_lease_need_not_be_ended() -> None:
    with Stock(Channel(*AWAY, grpc.StatusCode.NOT_FOUND)).lease("tag:gpu"):
        pass


def test_an_error_within_the_block_is_raised_with_a_note_that_the_lease_is_still_held() -> None:
    with pytest.raises(KeyError) as failed, Stock(Channel(*[grpc.StatusCode.UNAUTHENTICATED] * 9)).lease("tag:gpu"):
        raise KeyError("own")
    assert "lease 1 could not be returned" in str(failed.value.__notes__)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED])
def test_a_failed_return_of_a_lease_is_reported(code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "END_S", 0.0)
    with pytest.raises(StockRefused, match=code.name), Stock(Channel(*[code] * 9)).lease("tag:gpu"):
        pass
