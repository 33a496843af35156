"""Generate the reference page of the REST API, including a table of all calls of Zuul's API and their counterparts."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from headgate.rest import Handler, Response, StreamResponse
from headgate.web.app import ROUTES
from headgate.web.description import paths_of

T = "/api/tenant/{tenant}"
"""Prefix of most paths, which the page abbreviates as `T`."""
_GRAPH = T + "/pipeline/{pipeline}/project/{project}/branch/{branch}"
_DONE = "returns when the action is done, or 409 with the reason"
_UNDER_WAY = "also unfinished ones"


class ReferenceCall(NamedTuple):
    """Describe one call of Zuul's API. `how` describes how Headgate's response differs; `absent` means that Headgate
    has no such call."""

    method: str
    path: str
    how: str = ""
    absent: bool = False


CALLS = (
    ReferenceCall("GET", "/api"),
    ReferenceCall("GET", "/api/info"),
    ReferenceCall("GET", "/api/tenants", "also the numbers of projects and items of each tenant"),
    ReferenceCall("GET", "/api/connections"),
    ReferenceCall("GET", "/api/components", "also the load and the limits of each component"),
    ReferenceCall("GET", "/api/authorizations"),
    ReferenceCall("POST", "/api/connection/{name}/payload", "a webhook only tells Headgate what to poll"),
    ReferenceCall("GET", "/openapi.yaml", "describes every response; as JSON also at `/openapi/openapi.json`"),
    ReferenceCall("GET", "/.well-known/openid-configuration", "Headgate issues no tokens to jobs", absent=True),
    ReferenceCall("GET", "/oidc/jwks", "Headgate issues no tokens to jobs", absent=True),
    ReferenceCall("GET", T + "/info", "404 for an unknown tenant"),
    ReferenceCall("GET", T + "/authorizations"),
    ReferenceCall("GET", T + "/status", "with entity tag and compression; times are at most a second old"),
    ReferenceCall("GET", T + "/status/change/{change}", "accepts every form of a change's name"),
    ReferenceCall("GET", T + "/tenant-status"),
    ReferenceCall("GET", T + "/semaphores"),
    ReferenceCall("WEBSOCKET", T + "/console-stream"),
    ReferenceCall("GET", T + "/jobs"),
    ReferenceCall("GET", T + "/job/{job}"),
    ReferenceCall("GET", T + "/projects"),
    ReferenceCall("GET", T + "/project/{project}"),
    ReferenceCall("GET", T + "/pipelines"),
    ReferenceCall("GET", _GRAPH + "/freeze-jobs", "409 with the reason, for a graph that cannot be frozen"),
    ReferenceCall("GET", _GRAPH + "/freeze-job/{job}", "409 with the reason, for a graph that cannot be frozen"),
    ReferenceCall("POST", T + "/project/{project}/freeze-pipeline"),
    ReferenceCall("GET", T + "/config-errors"),
    ReferenceCall("GET", T + "/key/{project}.pub"),
    ReferenceCall("GET", T + "/project-ssh-key/{project}.pub", "projects have no SSH keys: 404"),
    ReferenceCall("GET", T + "/tenant-ssh-key/ssh.pub", "tenants have no SSH keys: 404"),
    ReferenceCall("GET", T + "/badge"),
    ReferenceCall("GET", T + "/builds", _UNDER_WAY),
    ReferenceCall("GET", T + "/build/{uuid}", _UNDER_WAY),
    ReferenceCall("GET", T + "/buildsets", _UNDER_WAY),
    ReferenceCall("GET", T + "/buildset/{uuid}", _UNDER_WAY),
    ReferenceCall("GET", T + "/build-times"),
    ReferenceCall(
        "GET", T + "/system-events", "the last configuration that took effect, and the last requested reconfiguration"
    ),
    ReferenceCall("GET", T + "/labels"),
    ReferenceCall("GET", T + "/flavors"),
    ReferenceCall("GET", T + "/nodes"),
    ReferenceCall("PUT", T + "/nodes/{uuid}"),
    ReferenceCall("GET", T + "/nodeset-requests"),
    ReferenceCall(
        "DELETE", T + "/nodeset-requests/{uuid}", "cancels the waiting build; 409 if it already has machines"
    ),
    ReferenceCall("GET", T + "/providers"),
    ReferenceCall("GET", T + "/images"),
    ReferenceCall("POST", T + "/image/{name}/build"),
    ReferenceCall("DELETE", T + "/image-build-artifact/{id}"),
    ReferenceCall("DELETE", T + "/image-upload/{id}"),
    ReferenceCall("POST", T + "/image-upload/{id}/validate"),
    ReferenceCall("POST", T + "/image-upload/{id}/upload"),
    ReferenceCall("GET", T + "/autohold"),
    ReferenceCall("GET", T + "/autohold/{id}"),
    ReferenceCall("DELETE", T + "/autohold/{id}"),
    ReferenceCall("GET", T + "/project/{project}/autohold"),
    ReferenceCall("POST", T + "/project/{project}/autohold"),
    ReferenceCall("POST", T + "/project/{project}/enqueue", _DONE),
    ReferenceCall("POST", T + "/project/{project}/dequeue", _DONE),
    ReferenceCall("POST", T + "/promote", _DONE),
    ReferenceCall("POST", T + "/state", _DONE),
)


_HEAD = """\
# The API

The API is JSON over HTTP, with the same shapes as Zuul's API for everything that both have. `/openapi/openapi.json` and
`/openapi.yaml` contain the same description for programs. Times are UTC. Errors are
`{"error": "…", "description": "…"}`: a code for programs and a message for people. A client that accepts `text/html`,
or both JSON and plain text like Zuul's dashboard, gets the message in the first `<p>` of a page. Status 503 means that
the store or the history is unreachable. With `Retry-After`, status 503, and 422 for a tenant's configuration, mean that
the server is still loading the data it needs: nothing was done, and a retry will soon succeed. Headgate's own commands
retry automatically.

A HEAD request gets the response of GET without a body. Every response has an entity tag (a matching `If-None-Match`
gets 304), and is compressed with gzip if the client accepts that.

Reading needs no token, unless the tenant requires one (`access-rules`, or `role-mappings` with `anonymous-read-access:
false`). Requests for actions need `Content-Type: application/json` and a bearer token: the operator's (`[web]
token_file`), or a JSON web token of an `[auth NAME]` whose claims match a rule of the tenant with the required
permission (`role-mappings`, or `admin-rules`). The response arrives when the action is done; 409 contains the reason
why a pipeline could not perform it.
"""


_DIFFERENT = """\
## What differs from Zuul's API

Clients of Zuul's API work unchanged. These are the differences:

- An unknown path gets 404, a wrong method 405, and an unknown filter 400 with the most similar known one. Zuul returns
  a page for the first two, and 404 for the third.
- 401 and 403 have a body, like all errors. An unknown tenant gets 404 at `info`, too.
- Responses have entity tags and must be revalidated (`no-cache`); Zuul lets clients cache some responses for a while.
- Enqueue, dequeue and promote return when they are done, or 409 with the reason.
- A change in a repository without a forge is named by its topic, so `change` of a ref is a string. Its patchset is a
  commit. You can name a change everywhere as `NAME` or `BRANCH/NAME`, each optionally with `,PATCHSET`.
- Lists of builds and buildsets begin with unfinished ones, which have no result.
- `limit` is at most 1,000, and a value may contain at most three `*`.
- `voting`, `held`, `final` and `complete` are 1, 0, true or false, in upper or lower case; other values get 400.
- A graph that cannot be frozen gets 409.
- Pages of other servers may read, but not change anything: otherwise a page with a stolen token could use it through
  the browser of somebody inside the network. `[web] dashboards` names origins that may write with a bearer token.
- Artifacts and uploads of images are visible to the tenant that built them, and to tenants whose providers have them;
  only the former can act on them. A requested build that no pipeline runs gets 409.
- `nodes` are machines that Headgate created, which you can hold and delete, and machines of the inventory that builds
  use, which you cannot change through the API (409). Projects and tenants have no SSH keys (404).
- `system-events` are the last configuration that took effect, and the time of the last requested reconfiguration.
- `user_id` and `parameters` of a buildset are null: see `actions` for who did what.
- Rows are sorted by end time, latest first; with `idx_min` or `idx_max` they are sorted by `_id`, so that a client
  that continues after the last row misses none. The `_id` of an unfinished build or buildset is the time in
  milliseconds.
- The status lists empty queues, too, with their windows; the name of a queue for each branch ends with its `branch`.
  `waiting_status` describes what the item waits for, and how long.
- An autohold may omit `reason` and `node_hold_expiration`; `count` is at least 1.
"""


_FIELD = re.compile(r'^    (\w+): [^\n]*\n((?:    """(?:[^"]|"(?!""))*"""\n)?)', re.MULTILINE)
"""Matches a field of a class, and the docstring below it."""


def page() -> str:
    """Return the text of the page."""
    lines = [_HEAD]
    shapes: dict[str, type[msgspec.Struct]] = {}
    groups: dict[str, list[Handler]] = {}
    for route in ROUTES:
        if route.include_in_schema:
            # Group routes by module; the module's docstring becomes the heading.
            groups.setdefault(inspect.getdoc(inspect.getmodule(route.fn)) or "", []).append(route)
    for title, routes in groups.items():
        lines += [f"## {title.splitlines()[0].rstrip('.')}", ""]
        for route in routes:
            lines += [*_route(route, shapes), ""]
    lines += [
        *_calls_table(),
        "",
        _DIFFERENT,
        "## Shapes",
        "",
        "Zuul's API does not have fields that are marked *Headgate only*.",
        "",
    ]
    for name in sorted(shapes):
        lines += [*_shape(shapes[name]), ""]
    return "\n".join(lines)


def _calls_table() -> Iterator[str]:
    """Yield the section with every call of Zuul's API and its counterpart."""
    yield "## Every call of Zuul's API"
    yield ""
    yield f"`T` is `{T}`. For machines and images, see also the next section. With `[web] tenant`, the calls"
    yield "of that tenant also work without `/tenant/{tenant}`, and its pages without `/t/{tenant}`;"
    yield "`/api/info` then names the tenant, so that clients use only this one."
    yield ""
    yield "| call | in Headgate |"
    yield "|---|---|"
    for call in CALLS:
        how = f"no: {call.how}" if call.absent else f"yes; {call.how}" if call.how else "yes"
        yield f"| {call.method} `{call.path.replace(T, 'T')}` | {how} |"


def _route(route: Handler, shapes: dict[str, type[msgspec.Struct]]) -> Iterator[str]:
    methods = sorted(route.methods) or ["websocket"]
    yield f"### `{', '.join(methods)} {', '.join(paths_of(route))}`"
    yield ""
    yield " ".join((inspect.getdoc(route.fn) or "").split())
    yield ""
    if former := route.opt.get("former"):
        yield f"- Deprecated: the same at {', '.join(f'`{path}`' for path in former)}."
    hints = get_type_hints(route.fn, include_extras=True)
    if permission := route.opt.get("permission"):
        yield f"- Permission: {permission}."
    bodies = dict.fromkeys(route.opt.get("body", {"": hints.get("data")}).values())
    if body := " or ".join(filter(None, (_collected(one, shapes) for one in bodies))):
        yield f"- Body: {body}."
    if methods != ["websocket"]:
        yield f"- Response: {_answer(route, hints.get('return'), shapes)}."


def _answer(
    route: Handler,
    hint: Any,  # any annotation
    shapes: dict[str, type[msgspec.Struct]],
) -> str:
    if route.opt.get("answers") == ("text/event-stream",):
        return "server-sent events"
    if {StreamResponse}.intersection((hint, *get_args(hint))):
        return "text"
    if get_origin(hint) is Response:
        (hint,) = get_args(hint)
    return {str: "text", bytes: "text"}.get(hint) or _collected(hint, shapes) or "JSON"


def _collected(hint: Any, shapes: dict[str, type[msgspec.Struct]]) -> str:  # any annotation
    """Return a description of a type, or "" if there is nothing to describe; add the shapes in it to `shapes`."""
    if hint is None or hint is type(None):
        return ""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        if hint.__name__ not in shapes:
            shapes[hint.__name__] = hint
            for kind in get_type_hints(hint).values():
                _collected(kind, shapes)
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    origin, args = get_origin(hint), get_args(hint)
    if origin is typing.Annotated:
        return _collected(args[0], shapes)
    if origin in (list, tuple):
        return f"list of {_collected(args[0], shapes) or 'JSON'}"
    if origin is dict:
        inner = _collected(args[1], shapes) if args[1] is not Any else ""
        return f"mapping of names to {inner}" if inner else "JSON"
    if origin is typing.Literal:
        return " \\| ".join(f"`{word}`" for word in args)
    if args:
        return " or ".join(word for arg in args if (word := _collected(arg, shapes)))
    return {"str": "text", "int": "number", "float": "number", "bool": "true or false"}.get(hint.__name__, "")


def _shape(shape: type[msgspec.Struct]) -> Iterator[str]:
    yield f"### {shape.__name__}"
    yield ""
    if doc := inspect.cleandoc(vars(shape).get("__doc__") or ""):  # its own docstring, not an inherited one
        yield " ".join(doc.split())
        yield ""
    yield "| name | what | |"
    yield "|---|---|---|"
    hints, docs = get_type_hints(shape), _docs(shape)
    for field in msgspec.structs.fields(shape):
        what = _collected(hints[field.name], {}) or "JSON"
        yield f"| `{field.encode_name}` | {what} | {docs.get(field.name, '').replace('|', chr(92) + '|')} |"


def _docs(shape: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstrings of the documented fields, including inherited ones."""
    kinds = [
        kind for kind in reversed(shape.__mro__) if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
    ]
    found = [one for kind in kinds for one in _FIELD.findall(inspect.getsource(kind))]
    # Python does not store docstrings of fields, so read them from the source.
    return {name: " ".join(text.strip().strip('"').split()) for name, text in found if text}
