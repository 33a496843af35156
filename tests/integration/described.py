"""Run Schemathesis against a description of ours: every request must get a documented answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS

EXAMPLES = 5
"""Requests of each operation for each set of known values; every caller sends each."""
CHECKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
Known = Mapping[str, Sequence[Any]]
"""Name of a parameter, or of a value in a body -> the values to use, some of which exist."""


@dataclass(slots=True)
class Caller:
    """Send generated requests from a separate thread, because the generator has no event loop."""

    client: httpx.AsyncClient
    loop: asyncio.AbstractEventLoop
    root: str = "http://headgate.example"
    statuses: dict[str, set[int]] = field(default_factory=dict)
    """Method and path -> statuses of the answers."""
    open: set[str] = field(default_factory=set)
    """Methods and paths that succeeded for a caller without headers."""
    wrong: dict[str, str] = field(default_factory=dict)
    """Method and path -> request and answer that the description does not allow."""

    async def ask_all(
        self, description: Any, known: Known, callers: Sequence[Mapping[str, str]], left_out: tuple[str, ...] = ()
    ) -> None:
        """Call every operation whose path does not end with one of `left_out`, with the headers of each caller.
        Deletes come last, the longest path first, so that the other calls find the objects."""
        for operation in await asyncio.to_thread(_operations, description, known):
            if not operation.path.endswith(left_out):
                await asyncio.to_thread(self._ask, operation, callers)

    def report(self) -> str:
        """Return each wrong answer in a paragraph."""
        return "\n\n".join(f"{name}: {what}" for name, what in self.wrong.items())

    def succeeded(self) -> set[str]:
        """Return the methods and paths that succeeded at least once."""
        return {name for name, seen in self.statuses.items() if seen & {200, 201, 204}}

    def _ask(self, operation: Any, callers: Sequence[Mapping[str, str]]) -> None:
        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def one(case: Any) -> None:
            for headers in callers:
                self._once(f"{operation.method} {operation.path}", case, headers)

        one()

    def _once(self, name: str, case: Any, headers: Mapping[str, str]) -> None:
        sent = case.as_transport_kwargs(base_url=self.root)
        sent = {**sent, "headers": {**sent["headers"], **headers}}
        sent.pop("cookies", None)
        if isinstance(sent.get("data"), str | bytes):
            sent["content"] = sent.pop("data")
        method, url = sent.pop("method"), sent.pop("url")
        sending = self.client.request(method, url, **sent)
        answer = asyncio.run_coroutine_threadsafe(sending, self.loop).result()
        self.statuses.setdefault(name, set()).add(answer.status_code)
        if not headers and answer.is_success:
            self.open.add(name)
        try:
            case.validate_response(answer, checks=[CHECKS.get_one(name) for name in CHECKED])
        except BaseExceptionGroup as found:
            shown = {key: value for key, value in sent.items() if key != "headers"}
            why = "; ".join(str(one) for one in found.exceptions)
            self.wrong[name] = f"{url} {shown}: {answer.status_code} {answer.text[:500]}: {why}"


def _operations(description: Any, known: Known) -> list[Any]:
    """Return the operations with known parameters, deletes last."""
    described = deepcopy(description)
    for item in described["paths"].values():
        shared = item.get("parameters", [])
        for operation in (one for name, one in item.items() if name != "parameters"):
            for one in (*shared, *operation.get("parameters", [])):
                if one["name"] in known:
                    one["schema"] = {"enum": list(known[one["name"]])}
    _know_bodies(described, known)
    operations = [found.ok() for found in schemathesis.openapi.from_dict(described).get_all_operations()]
    return sorted(operations, key=lambda one: (one.method == "delete", -len(one.path)))


def _know_bodies(described: Any, known: Known) -> None:
    """Use known values for members of objects in bodies."""
    shapes = described.get("components", {}).get("schemas", {})
    for item in described["paths"].values():
        for operation in (one for name, one in item.items() if name != "parameters"):
            for content in operation.get("requestBody", {}).get("content", {}).values():
                form = content["schema"]
                form = shapes[form["$ref"].rpartition("/")[2]] if "$ref" in form else form
                for name in known.keys() & form.get("properties", {}).keys():
                    form["properties"][name] = {"enum": list(known[name])}
