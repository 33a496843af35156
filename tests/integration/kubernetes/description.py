"""Check calls of the modelled cluster, its driver and kubectl against Kubernetes' own description.

`rest.json` is made by `scripts/kubernetes-description` from what Kubernetes publishes with its sources.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

from headgate.testing.servers.kubernetes.server import FakeKubernetesExchange


@cache
def _rest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "rest.json").read_text())
    return found


@cache
def _validator(name: str, part: str) -> jsonschema_rs.Draft202012Validator:
    schema = _rest()["refused"] if part == "refused" else _rest()["calls"][name][part]
    return _compiled(schema)


@cache
def _answer(name: str, status: str) -> jsonschema_rs.Draft202012Validator:
    return _compiled(_rest()["calls"][name]["answers"][status])


def _compiled(schema: Any) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({"$defs": _rest()["$defs"], "allOf": [schema]}, validate_formats=True)


def judge(exchange: FakeKubernetesExchange) -> None:
    """Raise AssertionError if Kubernetes does not accept such a request, or gives no such answer."""
    name = f"{exchange.method} {exchange.template}"
    call = _rest()["calls"].get(name)
    assert call is not None, "there is no such call"
    unknown = set(exchange.query) - set(call["query"])
    assert not unknown, f"query parameters that Kubernetes does not know: {unknown}"
    if exchange.request is not None:
        assert call["request"] is not None, "a body where none is taken"
        _check(_validator(name, "request"), "request", _without_null(exchange.request))
    if exchange.status >= 400:
        _check(_validator(name, "refused"), f"answer {exchange.status}", exchange.answer)
        return
    assert str(exchange.status) in call["answers"], f"Kubernetes never answers {exchange.status}"
    _check(_answer(name, str(exchange.status)), f"answer {exchange.status}", exchange.answer)


def _without_null(schema: Any) -> Any:
    """Kubernetes treats null as absent."""
    if isinstance(schema, dict):
        return {key: _without_null(value) for key, value in schema.items() if value is not None}
    return [_without_null(one) for one in schema] if isinstance(schema, list) else schema


def _check(validator: jsonschema_rs.Draft202012Validator, what: str, value: Any) -> None:
    for error in validator.iter_errors(value):
        at = "/".join(str(one) for one in error.instance_path)
        raise AssertionError(f"{what}: at {at or 'the top'}: {error.message[-900:]}")
