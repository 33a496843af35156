"""Generate the reference page of the REST API, with each call of the reference's API and its counterpart."""

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
"""Beginning of most paths, which the page writes as `T`."""
_GRAPH = T + "/pipeline/{pipeline}/project/{project}/branch/{branch}"
_DONE = "answered once it is done, or with 409 and why not"
_UNDER_WAY = "also those under way"


class ReferenceCall(NamedTuple):
    """Describe one call of Zuul's API. `how` says how Headgate's answer differs; `absent` means that there is no
    such call here."""

    method: str
    path: str
    how: str = ""
    absent: bool = False


CALLS = (
    ReferenceCall("GET", "/api"),
    ReferenceCall("GET", "/api/info"),
    ReferenceCall("GET", "/api/tenants", "also how many projects and items a tenant has"),
    ReferenceCall("GET", "/api/connections"),
    ReferenceCall("GET", "/api/components", "also what each has to do, and may"),
    ReferenceCall("GET", "/api/authorizations"),
    ReferenceCall("POST", "/api/connection/{name}/payload", "a delivery is a hint where to look"),
    ReferenceCall("GET", "/openapi.yaml", "describes every answer; also as JSON at `/openapi/openapi.json`"),
    ReferenceCall(
        "GET", "/.well-known/openid-configuration", "jobs are given no tokens, so nobody issues them", absent=True
    ),
    ReferenceCall("GET", "/oidc/jwks", "as above", absent=True),
    ReferenceCall("GET", T + "/info", "404 for a tenant that is none"),
    ReferenceCall("GET", T + "/authorizations"),
    ReferenceCall("GET", T + "/status", "entity tag, compression; times are at most a second old"),
    ReferenceCall("GET", T + "/status/change/{change}", "a change in any spelling"),
    ReferenceCall("GET", T + "/tenant-status"),
    ReferenceCall("GET", T + "/semaphores"),
    ReferenceCall("WEBSOCKET", T + "/console-stream"),
    ReferenceCall("GET", T + "/jobs"),
    ReferenceCall("GET", T + "/job/{job}"),
    ReferenceCall("GET", T + "/projects"),
    ReferenceCall("GET", T + "/project/{project}"),
    ReferenceCall("GET", T + "/pipelines"),
    ReferenceCall("GET", _GRAPH + "/freeze-jobs", "409 and why, for a graph that cannot be frozen"),
    ReferenceCall("GET", _GRAPH + "/freeze-job/{job}", "409, as above"),
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
        "GET", T + "/system-events", "the last configuration that came into force, and the last that was asked for"
    ),
    ReferenceCall("GET", T + "/labels"),
    ReferenceCall("GET", T + "/flavors"),
    ReferenceCall("GET", T + "/nodes"),
    ReferenceCall("PUT", T + "/nodes/{uuid}"),
    ReferenceCall("GET", T + "/nodeset-requests"),
    ReferenceCall(
        "DELETE", T + "/nodeset-requests/{uuid}", "the build that waits is canceled; 409 once it has machines"
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

Over HTTP, in JSON, in the shapes of Zuul's API where it has what Headgate has; `/openapi/openapi.json` says the same
for programs, as does `/openapi.yaml`. Times are UTC. Errors are `{"error": "…", "description": "…"}`, a word for
programs and a text for people; whoever accepts `text/html`, or names both JSON and plain text as the reference's
dashboard does, gets the text in the first `<p>` of a page. 503 means that the store or the history cannot be reached
just now; with `Retry-After`, that what is needed is still being read, as does 422 of a tenant's configuration: nothing
was done, and whoever asks again, as commands do by themselves, is soon answered.

HEAD is answered as GET without a body. Every answer has an entity tag (`If-None-Match` is answered 304), and is
compressed with gzip for whoever takes it.

Reading needs no token, unless the tenant says so (`access-rules`, or `role-mappings` with `anonymous-read-access:
false`). Whoever asks for something to be done sends `Content-Type: application/json` and a bearer token: the
operator's (`[web] token_file`), or a JSON web token of an `[auth NAME]`, whose claims must fulfil a rule of the tenant
that has the permission (`role-mappings`, or `admin-rules`). Answers come when it is done: 409 says why
a pipeline could not.
"""


_DIFFERENT = """\
## What differs from Zuul's API

Clients of Zuul's API work unchanged. What they may notice:

- An unknown path is 404, and a wrong method 405; unknown filters are 400 with the nearest known one. In the reference
  the first two are answered with a page, and the third with 404.
- 401 and 403 have a body, as every error has. A tenant that nobody knows is 404 also at `info`.
- Answers have entity tags and are not to be kept (`no-cache`), where the reference lets some be kept for a while.
- Enqueue, dequeue and promote answer once it is done, or with 409 and the reason why not.
- A change of a repository without a forge is called by its topic: then `change` of a ref is text. Its patchset is a
  commit. Wherever a change is named, `NAME`, `BRANCH/NAME`, and either with `,PATCHSET` are understood.
- Builds and buildsets that are under way are told with those that ended, first, without a result.
- `limit` is at most 1,000, and a value has at most three `*`.
- `voting`, `held`, `final` and `complete` are 1, 0, true or false in any case; anything else is 400.
- A graph that cannot be frozen is 409.
- Pages of other servers may read, and change nothing: a page that got hold of a token could use it through the browser
  of somebody inside. `[web] dashboards` names the origins that may write with a bearer token.
- Artifacts and uploads of images are shown to the tenant that built them, and to those whose providers have them; only
  the former acts on them. A build that no pipeline takes up is 409.
- `nodes` are machines that are made, which may be held and taken away, and those of the inventory that builds have,
  which nobody else changes (409). There are no SSH keys of projects and tenants (404).
- `system-events` are the last configuration that came into force, and when somebody had it read anew.
- `user_id` and `parameters` of a buildset are null: `actions` tell who did what.
- Rows come latest first by when they ended; with `idx_min` or `idx_max` by `_id`, so that who goes on from the last row
  misses none. `_id` of what is under way is the time, in milliseconds.
- The status lists queues that are empty, too, with their windows; the name of a queue that each branch has ends with
  its `branch`. `waiting_status` says in words what is waited for, and since when.
- An autohold may leave out `reason` and `node_hold_expiration`; `count` is at least 1.
"""


_FIELD = re.compile(r'^    (\w+): [^\n]*\n((?:    """(?:[^"]|"(?!""))*"""\n)?)', re.MULTILINE)
"""Matches a field of a class, and the text below it."""


def page() -> str:
    """Return the text of the page."""
    lines = [_HEAD]
    shapes: dict[str, type[msgspec.Struct]] = {}
    groups: dict[str, list[Handler]] = {}
    for route in ROUTES:
        if route.include_in_schema:
            # Routes are grouped by the docstring of their module, which is the heading.
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
        "What is marked *Headgate only* is not in Zuul's API.",
        "",
    ]
    for name in sorted(shapes):
        lines += [*_shape(shapes[name]), ""]
    return "\n".join(lines)


def _calls_table() -> Iterator[str]:
    """Yield the section with every call of Zuul's API and its counterpart."""
    yield "## Every call of Zuul's API"
    yield ""
    yield f"`T` is `{T}`. What is said of machines and images stands below. With `[web] tenant`, calls of"
    yield "that tenant are also there without `/tenant/{tenant}`, and its pages without `/t/{tenant}`; then `/api/info`"
    yield "names the tenant, so that clients use no other."
    yield ""
    yield "| call | here |"
    yield "|---|---|"
    for call in CALLS:
        how = f"not there: {call.how}" if call.absent else f"served; {call.how}" if call.how else "served"
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
        yield f"- Answer: {_answer(route, hints.get('return'), shapes)}."


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
    """Return a type in words, or "" if it says nothing in particular; add the shapes it mentions to `shapes`."""
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
    """Map each documented field to the text below it; inherited fields are included."""
    kinds = [
        kind for kind in reversed(shape.__mro__) if issubclass(kind, msgspec.Struct) and kind is not msgspec.Struct
    ]
    found = [one for kind in kinds for one in _FIELD.findall(inspect.getsource(kind))]
    # msgspec keeps no texts of fields, so they are read from the source.
    return {name: " ".join(text.strip().strip('"').split()) for name, text in found if text}
