"""Test that a provider that is slow, or answers nonsense, delays only the requests that need it."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headgate.adapters.identity.provider import FRESH_S, IdentityProvider, ProviderAway
from headgate.testing.clock import DEADLINE_S

from .pretender import GATE, Pretender, pretending

Answers = Callable[[BaseHTTPRequestHandler], None]


def of(found: Pretender) -> tuple[IdentityProvider, list[float]]:
    """Return the provider as a gate has it, and its clock, which stands still."""
    clock = [1_000.0]
    return IdentityProvider(found.issuer, GATE, now_s=lambda: clock[0], patience_s=DEADLINE_S), clock


async def test_a_token_signed_with_a_known_key_never_waits_for_a_provider() -> None:
    with pretending() as found:
        provider, clock = of(found)
        known = await provider.published("k1")
        clock[0] += FRESH_S + 1
        found.going.clear()
        for _ in range(2):
            assert provider.refresh("k1") is None, "its keys are asked for anew, and what is known will do meanwhile"
        waits = provider.refresh("unknown")
        assert waits is not None and not waits.done() and provider.refresh() is None
        assert await provider.published("k1") is known and not waits.done()
        found.going.set()
        waits.result(DEADLINE_S)


@contextmanager
def answering(answers: Answers) -> Iterator[str]:
    """Serve this on this machine."""

    class Answering(BaseHTTPRequestHandler):
        do_GET = answers

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


async def test_a_provider_whose_answer_never_ends_is_given_up() -> None:
    over, drips = threading.Event(), True

    def answers(handler: BaseHTTPRequestHandler) -> None:
        body = json.dumps({"issuer": "another"}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", "200000" if drips else str(len(body)))
        handler.end_headers()
        while drips and not over.wait(0.01):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return
        handler.wfile.write(body)

    with answering(answers) as issuer:
        provider, clock = IdentityProvider(issuer, GATE, patience_s=0.2), [1_000.0]
        provider.now_s = lambda: clock[0]
        try:
            waits = provider.refresh()
            assert waits is not None
            waits.result(DEADLINE_S)
            drips, provider.patience_s = False, DEADLINE_S
            clock[0] += FRESH_S
            with pytest.raises(ProviderAway, match="'another'"):
                await provider.published()
        finally:
            over.set()


@pytest.mark.long
async def test_invalid_answers_of_a_provider_are_reported_with_the_reason() -> None:
    packed = gzip.compress(gzip.compress(b'{"keys": [' + b" " * 10_000_000 + b"]}"))

    def answers(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip, gzip")
        handler.send_header("Content-Length", str(len(packed)))
        handler.end_headers()
        handler.wfile.write(packed)

    with answering(answers) as issuer, pytest.raises(ProviderAway, match="compressed"):
        await IdentityProvider(issuer, GATE, patience_s=DEADLINE_S).published()
    with pretending() as found:
        document = json.loads(found.answer("/.well-known/openid-configuration"))
        for place in ("https://x/\x01", "https://\ud800/", f"https://{'a' * 70_000}/", "http://10.0.0.1/", 7):
            for name in ("jwks_uri", "token_endpoint", "issuer"):
                found.answers["/.well-known/openid-configuration"] = json.dumps({**document, name: place}).encode()
                provider, _ = of(found)
                with pytest.raises(ProviderAway) as away:
                    await provider.published()
                assert name.partition("_")[0] in str(away.value) or "cannot be reached" in str(away.value)
                assert len(str(away.value)) < 500
        found.answers.clear()
        found.keys = [{**found.keys[0], "kid": "odd", "alg": ["RS256"]}, {"kty": {}}, 7, *found.keys]  # type: ignore[list-item]
        provider, _ = of(found)
        assert list((await provider.published()).keys) == ["k1"], "the others are used"
