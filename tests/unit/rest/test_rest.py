"""Test functions over HTTP: their arguments, and the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.rest import (
    Cookie,
    FromQuery,
    HTTPException,
    HttpRequest,
    JSONBody,
    NotFoundException,
    QueryValues,
    Redirect,
    Response,
    ServerSentEvents,
    StreamResponse,
    WebApplication,
    WebSocket,
    delete,
    get,
    post,
    put,
    websocket,
)
from headgate.web.answers import HANDLERS

BODY_MAX = 1_000


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    level: Literal["low", "high"] = "low"


class Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    count: int = 1
    parts: tuple[Part, ...] = ()
    metadata: dict[str, int] = {}


class Common(msgspec.Struct):
    word: str


class Another(Common):
    """The objects are not shared."""


@get("/one/{name:str}")
async def one(common: Common, request: HttpRequest, name: str) -> list[str]:
    return [common.word, request.method, name, request.query.get("q", "")]


@get(["/rest", "/rest/{rest:path}"], media_type="text/plain")
async def rest(rest: str = "none") -> str:
    return rest


@get("/offset")
async def offset(offset: FromQuery[int] = 0) -> int:
    return offset


@post("/wanted/{name:str}")
async def wanted(name: str, data: JSONBody[Wanted]) -> Wanted:
    return data


@put("/raw")
async def raw(request: HttpRequest) -> int:
    return len(await request.body())


@put("/larger", body_max_bytes=2 * BODY_MAX)
async def larger(request: HttpRequest) -> int:
    return len(await request.body())


@delete("/gone")
async def gone() -> None:
    pass


@get("/nothing")
async def nothing() -> None:
    pass


@get("/refused/{how:str}")
async def refused(how: str) -> None:
    if how == "not-found":
        raise NotFoundException("there is none")
    if how == "fault":
        raise ValueError("a fault")
    raise HTTPException("not now", status_code=503, headers={"Retry-After": "1"})


@get("/whole/{kind:str}")
async def respond(kind: str) -> Response[Any]:
    answers: dict[str, Response[Any]] = {
        "not-modified": Response(None, status_code=304, headers={"ETag": '"a"'}),
        "own": Response(b"x", media_type="image/svg+xml", headers={"X-Shared": "own"}),
        "text": Response("é", media_type="text/html"),
        "away": Redirect("/t/ü x?a=b#c", cookies=[Cookie("here", "a b", 60, True), Cookie("gone", "", 0, False)]),
    }
    return answers[kind]


HTTP = (one, rest, offset, wanted, raw, larger, gone, nothing, refused, respond)


def application(*handlers: Any, **more: Any) -> WebApplication:
    shared = [Common("shared")]
    return WebApplication(handlers or HTTP, shared, headers={"X-Shared": "*"}, body_max_bytes=BODY_MAX, **more)


class Answered(msgspec.Struct):
    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""


async def answer_to(
    app: WebApplication,
    method: str,
    path: str,
    *pieces: bytes,
    query: bytes = b"",
    headers: Sequence[tuple[str, str]] = (),
) -> Answered:
    """Send a request piece by piece, like a server. The client stays until the answer."""
    waiting, ended, found = list(pieces) or [b""], asyncio.Event(), Answered()

    async def receive() -> dict[str, Any]:
        if not waiting:
            await ended.wait()
            return {"type": "http.disconnect"}
        piece = waiting.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.status = message["status"]
            found.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
        else:
            found.body += message.get("body", b"")
            if not message.get("more_body"):
                ended.set()

    named = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    await app({"type": "http", "method": method, "path": path, "query_string": query, "headers": named}, receive, send)
    return found


async def test_a_function_receives_the_parameters_that_its_signature_names() -> None:
    app = application()
    answer = await answer_to(app, "GET", "//one/a b/", query=b"q=1&q=2")
    assert msgspec.json.decode(answer.body) == ["shared", "GET", "a b", "1"]
    assert (await answer_to(app, "GET", "/rest")).body == b"none"
    assert (await answer_to(app, "GET", "/rest/a//b/")).body == b"/a/b"
    assert (await answer_to(app, "GET", "/offset")).body == b"0"
    assert (await answer_to(app, "GET", "/offset", query=b"offset=-5")).body == b"-5"
    made = await answer_to(app, "POST", "/wanted/x", b'{"name": ', b'"a", "count": "3"}')
    assert (made.status, msgspec.json.decode(made.body)["count"]) == (201, 3)


WRONG = (
    (b"", "data: a JSON body is required"),
    (b"null", "data: Expected `object`, got `null`"),
    (b"{}", "data: Object missing required field `name`"),
    (b'{"name": 1}', "name: Expected `str`, got `int`"),
    (b'{"name": "a", "more": 1}', "data: Object contains unknown field `more`"),
    (b'{"name": "a", "parts": [{}, {"level": "top"}]}', "parts[1].level: Invalid enum value 'top'"),
    (b'{"name": "a", "metadata": {"x": "y"}}', "metadata[...]: Expected `int`, got `str`"),
)


@pytest.mark.parametrize(("body", "why"), WRONG)
async def test_an_error_names_the_invalid_part_of_a_body(body: bytes, why: str) -> None:
    answer = await answer_to(application(answers=HANDLERS), "POST", "/wanted/x", body, query=b"a=b")
    text = f"Validation failed for POST /wanted/x?a=b; {why}"
    assert (answer.status, msgspec.json.decode(answer.body)) == (400, {"error": "Bad Request", "description": text})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "Input data was truncated"),
        (b"{} x", "JSON is malformed: trailing characters"),
        (b'{"name": "\xff"}', "the request is not valid Unicode"),
        (b"[" * 900_000, "the request is nested too deeply"),
        (b'{"name":' * 100_000, "the request is nested too deeply"),
    ],
)
async def test_a_body_that_is_no_json_is_refused(body: bytes, why: str) -> None:
    app = WebApplication(HTTP, [Common("")], answers=HANDLERS)
    answer = await answer_to(app, "POST", "/wanted/x", body)
    assert answer.status == 400 and msgspec.json.decode(answer.body)["description"].startswith(why)


async def test_a_wrong_number_in_the_query_is_named() -> None:
    answer = await answer_to(application(answers=HANDLERS), "GET", "/offset", query=b"offset=x")
    assert msgspec.json.decode(answer.body)["description"].endswith("; offset: Expected `int`, got `str`")


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_is_bounded_with_and_without_a_declared_length(announced: bool) -> None:
    app = application()
    for path, most in (("/raw", BODY_MAX), ("/larger", 2 * BODY_MAX)):
        for size, status in ((most, 200), (most + 1, 413)):
            body = b"x" * size
            headers = [("content-length", str(size))] if announced else []
            answer = await answer_to(app, "PUT", path, body[: size // 2], body[size // 2 :], headers=headers)
            assert answer.status == status, (path, size)


async def test_a_length_beyond_the_bounds_is_refused_before_anything_is_read() -> None:
    app, read = application(), list[str]()

    async def receive() -> Any:
        read.append("x")

    async def send(message: Any) -> None:
        assert message.get("status", 413) == 413

    headers = [(b"content-length", b"9" * 4_000)]
    scope = {"type": "http", "method": "PUT", "path": "/raw", "headers": headers}
    await app(scope, receive, send)
    assert not read
    assert (await answer_to(app, "PUT", "/raw", headers=[("content-length", "-5")])).status == 400


async def test_unknown_addresses_and_methods() -> None:
    app = application()
    assert (await answer_to(app, "GET", "/none")).status == 404
    assert (await answer_to(app, "GET", "/one")).status == 404
    assert (await answer_to(app, "GET", "/one/a/b")).status == 404
    wrong = await answer_to(app, "PATCH", "/raw")
    assert (wrong.status, wrong.headers["allow"]) == (405, "OPTIONS, PUT")
    answer = await answer_to(app, "OPTIONS", "/raw")
    assert (answer.status, answer.body, answer.headers) == (204, b"", {"allow": "OPTIONS, PUT", "x-shared": "*"})
    assert (await answer_to(app, "GET", "/offset", headers=[("host", "a b")])).status == 400


async def test_exceptions_are_answered_and_logged() -> None:
    messages = list[str]()

    async def note(error: Exception, scope: Any) -> None:
        messages.append(f"{type(error).__name__} {scope['path_params']}")

    app = application(refused=note)
    found = [await answer_to(app, "GET", f"/refused/{how}") for how in ("not-found", "later", "fault")]
    assert [one.status for one in found] == [404, 503, 500]
    assert found[0].body == b'{"status_code":404,"detail":"there is none"}'
    assert found[1].headers["retry-after"] == "1"
    assert b"a fault" not in found[2].body
    kinds = (("NotFoundException", "not-found"), ("HTTPException", "later"), ("ValueError", "fault"))
    assert messages == [f"{kind} {{'how': '{how}'}}" for kind, how in kinds]


async def test_a_guard_runs_before_a_body_is_read() -> None:
    async def never(connection: Any, handler: Any) -> None:
        raise HTTPException(f"not {handler.name}", status_code=403)

    assert (await answer_to(application(guard=never), "POST", "/wanted/x", b"{")).status == 403


async def test_the_form_of_an_answer_depends_on_the_return_value() -> None:
    app = application()
    assert (await answer_to(app, "GET", "/nothing")).body == b"null"
    none = await answer_to(app, "DELETE", "/gone")
    assert (none.status, none.body, none.headers) == (204, b"", {"x-shared": "*"})
    same = await answer_to(app, "GET", "/whole/not-modified")
    assert (same.status, same.body, same.headers) == (304, b"", {"etag": '"a"', "x-shared": "*"})
    own = await answer_to(app, "GET", "/whole/own")
    assert own.headers == {"content-type": "image/svg+xml", "content-length": "1", "x-shared": "own"}
    text = await answer_to(app, "GET", "/whole/text")
    assert (text.body, text.headers["content-type"]) == ("é".encode(), "text/html; charset=utf-8")


async def test_a_redirection_says_where_and_sets_cookies_that_no_script_sees() -> None:
    sent = list[tuple[bytes, bytes]]()

    async def send(message: Any) -> None:
        sent.extend(message.get("headers", ()))

    scope = {"type": "http", "method": "GET", "path": "/whole/away", "headers": []}
    await application()(scope, lambda: asyncio.sleep(0), send)
    assert (b"location", b"/t/%C3%BC%20x?a=b#c") in sent
    first, second = (value.decode() for name, value in sent if name == b"set-cookie")
    assert first == 'here="a b"; HttpOnly; Max-Age=60; Path=/; SameSite=lax; Secure'
    assert second == 'gone=""; HttpOnly; Max-Age=0; Path=/; SameSite=lax'


async def test_events_are_written_as_browsers_read_them() -> None:
    async def events() -> AsyncIterator[dict[str, str]]:
        yield {"event": "message", "id": "7", "data": "a\nb\r\nc\u2028d"}
        yield {"event": "ping", "data": ""}

    @get("/events")
    async def stream() -> ServerSentEvents:
        return ServerSentEvents(events())

    answer = await answer_to(application(stream), "GET", "/events")
    first = "id: 7\r\nevent: message\r\ndata: a\r\ndata: b\r\ndata: c\u2028d\r\n\r\n"
    assert answer.body.decode() == f"{first}event: ping\r\ndata: \r\n\r\n"
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("busy", [True, False])
async def test_a_stream_is_closed_once_its_client_disconnects(events: bool, busy: bool) -> None:
    """Whether it waits for data to send, or for a client that does not read."""
    begun, closed = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[Any]:
        try:
            while True:
                yield {"data": "x"} if events else b"x"
                if not busy:
                    await asyncio.Event().wait()
        finally:
            closed.set()

    @get("/stream")
    async def stream() -> StreamResponse:
        return ServerSentEvents(pieces()) if events else StreamResponse(pieces())

    async def receive() -> dict[str, Any]:
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            begun.set()
            if busy:
                await asyncio.Event().wait()

    await application(stream)({"type": "http", "method": "GET", "path": "/stream", "headers": []}, receive, send)
    assert closed.is_set()


async def test_a_client_that_goes_while_its_body_is_read_is_not_answered() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    await application()({"type": "http", "method": "PUT", "path": "/raw", "headers": []}, receive, send)


@websocket("/socket/{name:str}")
async def echo(socket: WebSocket, name: str) -> None:
    if name == "no":
        raise HTTPException("not here", status_code=403)
    await socket.accept()
    while True:
        await socket.send_text(await socket.receive_text())


async def followed(path: str, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    waiting, sent = [{"type": "websocket.connect"}, *messages, {"type": "websocket.disconnect"}], list[dict[str, Any]]()

    async def receive() -> Any:
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await application(*HTTP, echo)({"type": "websocket", "path": path, "headers": []}, receive, send)
    return sent


async def test_a_websocket_receives_text_and_bytes_until_it_is_closed() -> None:
    messages = [{"type": "websocket.receive", "text": "a"}, {"type": "websocket.receive", "bytes": b"b\xff"}]
    assert [one.get("text") for one in await followed("/socket/x", *messages)] == [None, "a", "b\ufffd"]


@pytest.mark.parametrize(
    ("path", "code"), [("/none", 4404), ("/raw", 4404), ("/socket/no", 4403), ("/socket/x/y", 4404)]
)
async def test_a_websocket_that_is_refused_is_closed_with_the_status(path: str, code: int) -> None:
    (closed,) = await followed(path)
    assert (closed["type"], closed["code"]) == ("websocket.close", code)


async def test_an_address_of_websockets_answers_no_method() -> None:
    answer = await answer_to(application(echo), "GET", "/socket/x")
    assert (answer.status, answer.headers["allow"]) == (405, "OPTIONS")


def test_a_parameter_that_no_request_can_supply_is_refused_when_the_application_is_created() -> None:
    async def unknown(word: str) -> None:
        pass

    async def sometimes(name: str) -> None:
        pass

    async def another(common: Another) -> None:
        pass

    for path, fn in (
        ("/a", unknown),
        ("/a", another),
        (["/a", "/a/{name:str}"], sometimes),
        ("/a/{other:str}", sometimes),
    ):
        with pytest.raises(TypeError, match="neither a request nor the shared objects supply the parameter"):
            application(get(path)(fn))


PAIRS = st.lists(st.tuples(st.sampled_from(("a", "b", "ü&=", "")), st.text(max_size=5)))


@given(PAIRS)
def test_a_query_has_each_value_in_its_order_and_the_first_alone_by_name(pairs: list[tuple[str, str]]) -> None:
    pairs = [(name, value.encode(errors="replace").decode()) for name, value in pairs]
    query = QueryValues(urlencode(pairs).encode())
    for name in {name for name, _ in pairs}:
        values = [value for known, value in pairs if known == name]
        assert (query.all(name), query[name]) == (values, values[0])
    assert list(query) == list(dict.fromkeys(name for name, _ in pairs))
    assert query.all("none") == [] and "none" not in query


@given(
    st.sampled_from(("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "X")),
    st.lists(st.sampled_from(("one", "rest", "wanted", "raw", "offset", "", "..", "\x00", "ü", "{name:str}"))),
    st.binary(max_size=60) | st.sampled_from([body for body, _ in WRONG]),
    st.binary(max_size=20),
)
def test_nothing_that_is_sent_is_a_fault_of_ours(method: str, words: list[str], body: bytes, query: bytes) -> None:
    answer = asyncio.run(answer_to(application(answers=HANDLERS), method, f"/{'/'.join(words)}", body, query=query))
    assert answer.status in (200, 201, 204, 400, 404, 405)
