"""Test the description of the API for repeated requests."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headgate.rest import Handler, WebApplication
from headgate.web import description
from headgate.web.access import Access
from headgate.web.app import ROUTES
from headgate.web.process import Vitals
from headgate.web.routes.changes import RecentCosts
from headgate.web.routes.hooks import DeliveryBodies
from headgate.web.site import Site
from headgate.web.viewers.audience import Documents


@pytest.mark.heavy
async def test_the_description_is_made_once_however_often_it_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests of this process may have asked for it before.
    description.as_json.cache_clear()
    description.as_yaml.cache_clear()
    made, described = list[int](), description.described

    def counted(handlers: tuple[Handler, ...]) -> dict[str, Any]:
        made.append(len(handlers))
        return described(handlers)

    monkeypatch.setattr(description, "described", counted)
    kinds = (Site, Vitals, Access, Documents, RecentCosts, DeliveryBodies)
    transport = httpx.ASGITransport(WebApplication(ROUTES, [object.__new__(kind) for kind in kinds]))
    async with httpx.AsyncClient(transport=transport, base_url="http://headgate.example") as client:
        for path in ("/openapi", "/openapi/openapi.json", "/openapi/openapi.yaml", "/openapi.yaml"):
            first = await client.get(path)
            assert first.status_code == 200 and "/api/tenants" in first.text
            assert (await client.get(path)).content == first.content
    assert len(made) == 1, "nobody keeps a gate busy with it"
