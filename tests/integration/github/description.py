"""Check calls, webhooks and GraphQL of the stand-in and its clients against GitHub's own description.

`rest.json` and `schema.graphql` are pruned by `scripts/github-description` from the packages that GitHub publishes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
from graphql import GraphQLSchema, build_schema, execute_sync, parse, validate
from graphql.pyutils import Path as At

from headgate.testing.forges.github.server import FakeGitHubExchange

_HERE = Path(__file__).parent
OMITTED = {301, 304, 401, 403, 404, 422, 429}
"""Answers that are allowed although the description of a call does not name them: authentication, limits, renamed
repositories."""


@cache
def _rest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_HERE / "rest.json").read_text())
    return found


@cache
def _schema() -> GraphQLSchema:
    return build_schema((_HERE / "schema.graphql").read_text())


@cache
def _validator(kind: str, name: str, part: str, status: str = "") -> jsonschema_rs.Draft202012Validator:
    description = _rest()[kind][name]
    description = {
        "": description,
        "request": description.get("request"),
        "answers": description.get("answers", {}).get(status),
    }[part]
    schema = {"$defs": _rest()["$defs"], "allOf": [description]}
    return jsonschema_rs.Draft202012Validator(schema, validate_formats=True)


def _names(schema: Any) -> set[str] | None:
    """Return the properties that a schema knows; None: any."""
    while "$ref" in schema:
        schema = _rest()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    found = set(schema.get("properties", ()))
    for one in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        more = _names(one)
        if more is None:
            return None
        found |= more
    return found if found or schema.get("type") != "object" else None


def _check(validator: jsonschema_rs.Draft202012Validator, what: str, value: Any) -> None:
    for error in validator.iter_errors(value):
        at = "/".join(str(one) for one in error.instance_path)
        raise AssertionError(f"{what}: at {at or 'the top'}: {error.message[-900:]}")


def judge(exchange: FakeGitHubExchange) -> None:
    """Raise AssertionError if GitHub does not accept such a request, or gives no such answer."""
    if exchange.template == "graphql":
        _judge_graphql(exchange)
        return
    name = f"{exchange.method} {exchange.template}"
    call = _rest()["calls"][name]
    unknown = set(exchange.query) - set(call["query"])
    assert not unknown, f"query parameters that GitHub does not know: {unknown}"
    if exchange.status < 400 and exchange.request is not None:
        assert call.get("request") is not None, "a body where none is taken"
        _check(_validator("calls", name, "request"), "request", exchange.request)
        known = _names(call["request"])
        if known is not None and isinstance(exchange.request, dict):
            assert set(exchange.request) <= known, f"members that GitHub ignores: {set(exchange.request) - known}"
    status = str(exchange.status)
    if status not in call["answers"]:
        assert exchange.status in OMITTED, f"GitHub never answers {status}"
    elif call["answers"][status] is None:
        assert exchange.answer is None, f"{status} has no body"
    else:
        _check(_validator("calls", name, "answers", status), f"answer {status}", _with_forks(exchange.answer))


def _with_forks(answer: Any) -> Any:
    """Return an answer with a placeholder for deleted forks: GitHub answers null, which its description does not
    allow."""
    if isinstance(answer, list):
        return [_with_forks(one) for one in answer]
    if isinstance(answer, dict) and isinstance(answer.get("head"), dict) and answer["head"].get("repo", 0) is None:
        return {**answer, "head": {**answer["head"], "repo": answer["base"]["repo"]}}
    return answer


def _judge_graphql(exchange: FakeGitHubExchange) -> None:
    document = parse(exchange.text)
    errors = validate(_schema(), document)
    assert not errors, f"GraphQL: {errors[0]}"
    data = (exchange.answer or {}).get("data")
    if not data or None in data.values():
        return

    def field(source: Any, info: Any, **_: Any) -> Any:
        path: At = info.path
        return source[path.key]

    def type_of(source: Any, *_: Any) -> str:
        return str(source["__typename"])

    done = execute_sync(
        _schema(), document, data, variable_values=exchange.request, field_resolver=field, type_resolver=type_of
    )
    assert not done.errors, f"GraphQL answers what its schema does not have: {done.errors[0]}"
    assert done.data == data


def judge_hook(event: str, action: str | None, payload: dict[str, Any]) -> None:
    """Raise AssertionError if GitHub delivers no such payload."""
    name = "-".join((event, *([action] if action else []))).replace("_", "-")
    assert name in _rest()["webhooks"], f"GitHub never delivers {name}"
    if "pull_request" in payload:
        payload = {**payload, "pull_request": _with_forks(payload["pull_request"])}
    _check(_validator("webhooks", name, ""), f"webhook {name}", payload)


def calls() -> dict[str, Any]:
    """Return the description of each call."""
    found: dict[str, Any] = _rest()["calls"]
    return found
