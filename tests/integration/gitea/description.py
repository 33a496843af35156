"""Check requests and answers of the stand-in and its clients against Gitea's own description.

`rest.json` is made by `scripts/gitea-description` from a client that was generated from Gitea's own description.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

from headgate.testing.forges.github.server import FakeGitHubExchange

OMITTED = {301, 307, 401, 403, 404, 405, 409, 422, 423, 429, 500}
"""Refusals without a form in the description."""
GOOD = {"GET": {200}, "POST": {200, 201}, "PATCH": {200, 201}, "DELETE": {204}}


@cache
def _rest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(__file__).parent / "rest.json").read_text())
    return found


@cache
def _validator(name: str, part: str) -> jsonschema_rs.Draft202012Validator:
    schema = {"$defs": _rest()["$defs"], "allOf": [_rest()["calls"][name][part]]}
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True)


def judge(exchange: FakeGitHubExchange) -> None:
    """Raise AssertionError if Gitea does not accept such a request, or gives no such answer."""
    name = f"{exchange.method} {exchange.template}"
    call = _rest()["calls"][name]
    unknown = set(exchange.query) - set(call["query"])
    assert not unknown, f"query parameters that Gitea does not know: {unknown}"
    if exchange.request is not None:
        assert call["request"] is not None, "a body where none is taken"
        _check(_validator(name, "request"), "request", exchange.request)
    if exchange.status in OMITTED:
        return
    assert exchange.status in GOOD[exchange.method], f"Gitea never answers {exchange.status}"
    if call["answer"] is None:
        assert exchange.answer is None, "it has no body"
    else:
        _check(_validator(name, "answer"), f"answer {exchange.status}", exchange.answer)


def _check(validator: jsonschema_rs.Draft202012Validator, what: str, value: Any) -> None:
    for error in validator.iter_errors(value):
        at = "/".join(str(one) for one in error.instance_path)
        raise AssertionError(f"{what}: at {at or 'the top'}: {error.message[-900:]}")
