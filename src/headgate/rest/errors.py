"""Exceptions that become responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any


class HTTPException(Exception):
    """Report that a request is refused. `detail` is for people."""

    status_code = 500

    def __init__(
        self,
        detail: str = "",
        *,
        status_code: int = 0,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | Sequence[Mapping[str, str]] | None = None,  # JSON
    ) -> None:
        """Take further members of the answer, or the errors of each part of the request, as `extra`."""
        self.status_code = status_code or self.status_code
        self.detail = detail or HTTPStatus(self.status_code).phrase
        self.headers, self.extra = headers, extra
        super().__init__(f"{self.status_code}: {self.detail}")


class NotFoundException(HTTPException):
    """Report that there is nothing at an address."""

    status_code = 404
