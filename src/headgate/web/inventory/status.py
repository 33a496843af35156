"""Every way a request can end, as a status of gRPC."""

from __future__ import annotations

import logging
from typing import NamedTuple

from google.protobuf.message import DecodeError
from grpc import StatusCode

from headgate.inventory.names import Invalid
from headgate.map.tree import Undecodable
from headgate.services.inventory import errors
from headgate.store.types import Conflict, Corrupt, StoreError, TooLarge, Unavailable

log = logging.getLogger("headgate.inventory")

DETAIL_SIZE_MAX_CHARS = 1_000
"""Limit on the length of a status text, which travels in small headers."""


class RpcStatus(NamedTuple):
    code: StatusCode
    detail: str


_CODES: tuple[tuple[type[Exception], StatusCode], ...] = (
    (Invalid, StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, StatusCode.NOT_FOUND),
    (errors.AlreadyExists, StatusCode.ALREADY_EXISTS),
    (errors.PermissionDenied, StatusCode.PERMISSION_DENIED),
    (errors.Unauthenticated, StatusCode.UNAUTHENTICATED),
    (errors.Stale, StatusCode.ABORTED),
    (errors.Unmet, StatusCode.FAILED_PRECONDITION),
    (errors.Broad, StatusCode.RESOURCE_EXHAUSTED),
    (errors.MomentExpired, StatusCode.OUT_OF_RANGE),
    (DecodeError, StatusCode.INVALID_ARGUMENT),
    (TooLarge, StatusCode.INVALID_ARGUMENT),
    (Conflict, StatusCode.ABORTED),
    (Unavailable, StatusCode.UNAVAILABLE),
    (Corrupt, StatusCode.DATA_LOSS),
    (Undecodable, StatusCode.DATA_LOSS),
    (StoreError, StatusCode.UNAVAILABLE),
    (TimeoutError, StatusCode.DEADLINE_EXCEEDED),
)


def status(error: Exception) -> RpcStatus:
    """Return the status of an error. An unexpected error is INTERNAL, and is logged."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return RpcStatus(code, _short(str(error) or code.value[1]))
    log.error("a request failed in a way nobody foresaw", exc_info=error)
    return RpcStatus(StatusCode.INTERNAL, _short(f"this should not happen: {type(error).__name__}; the log says more"))


def _short(text: str) -> str:
    text = text.replace("\x00", "\\0")
    return text if len(text) <= DETAIL_SIZE_MAX_CHARS else f"{text[: DETAIL_SIZE_MAX_CHARS - 1]}…"
