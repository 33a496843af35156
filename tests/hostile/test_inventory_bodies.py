"""Test bodies of the inventory's HTTP service that take long to parse."""

from __future__ import annotations

import json

import pytest

from headgate.web.inventory import http
from headgate.web.inventory.identity import Verifying
from tests.integration.inventory.test_http import served
from tests.integration.inventory.test_matrix import issuer, token


async def test_the_body_of_a_stranger_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four megabytes of empty filters would take the parser half a minute, in the process that serves everybody."""
    parsed = list[object]()
    real = http.ParseDict
    monkeypatch.setattr(http, "ParseDict", lambda fields, message: parsed.append(fields) or real(fields, message))
    async with served(Verifying([issuer()])) as ask:
        status, found = await ask("POST", "/v1/objects/search", {"any": [{}] * 50_000})
        assert (status, found["status"]) == (401, "UNAUTHENTICATED")
        assert parsed == []


async def test_a_body_of_a_million_values_is_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who have credentials share the process with others, too."""
    mallory = token(sub="mallory", projects=["blue"])
    async with served(Verifying([issuer()])) as ask:
        monkeypatch.setattr(http, "ParseDict", None)
        body = json.dumps({"any": [{}] * 1_000_000}, separators=(",", ":")).encode()
        assert len(body) < http.REQUEST_SIZE_MAX_BYTES
        status, found = await ask("POST", "/v1/objects/search", body, **mallory)
        assert (status, found["status"]) == (400, "INVALID_ARGUMENT") and "values" in found["detail"]
