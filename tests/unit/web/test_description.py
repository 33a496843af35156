"""The description of the API, for whoever asks for it again and again."""

from __future__ import annotations

from typing import Any

import pytest
from litestar import Litestar
from litestar.openapi.config import OpenAPIConfig
from litestar.testing import TestClient

from headgate.web import description
from headgate.web.app import ROUTES


def test_it_is_made_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, completed = list[Litestar](), description.completed

    def counted(schema: dict[str, Any], app: Litestar) -> dict[str, Any]:
        made.append(app)
        return completed(schema, app)

    monkeypatch.setattr(description, "completed", counted)
    plugins = [description.CompleteJson(path="/openapi.json"), description.CompleteYaml(path="/openapi.yaml")]
    config = OpenAPIConfig(title="x", version="1", path="/openapi", render_plugins=plugins)
    with TestClient(Litestar([*ROUTES], openapi_config=config, logging_config=None)) as client:
        for path in ("/openapi/openapi.json", "/openapi/openapi.yaml", "/openapi.yaml"):
            first = client.get(path)
            assert first.status_code == 200 and "/api/tenants" in first.text
            assert client.get(path).content == first.content
    assert len(made) == 2, "nobody keeps a gate busy with it"
