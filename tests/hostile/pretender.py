"""Provide an OpenID provider that answers whatever a test chooses."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KEY, OTHER_KEY = (rsa.generate_private_key(65_537, 2_048) for _ in range(2))
PEM = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
GATE = "gate"
"""The client registration of the gate under test."""


def jwk(key: rsa.RSAPrivateKey, kid: str) -> dict[str, Any]:
    """Return the public key, as a provider publishes it."""
    return {**jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}


@dataclass
class Pretender:
    """`answers`: path -> answer there, in place of the usual one."""

    issuer: str = ""
    nonce: str = ""
    keys: list[dict[str, Any]] = field(default_factory=lambda: [jwk(KEY, "k1")])
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    going: threading.Event = field(default_factory=threading.Event)
    """While it is not set, requests get no answer."""

    def valid_claims(self, **more: Any) -> dict[str, Any]:
        """Return the claims of a valid token, and `more`."""
        now = int(time.time())
        good = {"iss": self.issuer, "aud": GATE, "sub": "ann", "iat": now, "exp": now + 600, "nonce": self.nonce}
        return {**good, "groups": ["ops"], **more}

    def token(self, key: Any = KEY, algorithm: str = "RS256", kid: str = "k1", **more: Any) -> str:
        return jwt.encode(self.valid_claims(**more), key, algorithm, {"kid": kid})

    def answer(self, path: str) -> bytes:
        """Return its answer, as JSON or not."""
        if path in self.answers:
            return self.answers[path]
        here = {
            "/.well-known/openid-configuration": {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/auth",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
                "userinfo_endpoint": f"{self.issuer}/me",
            },
            "/jwks": {"keys": self.keys},
            "/token": {"id_token": self.token(**self.claims), "access_token": "x", "token_type": "Bearer"},
            "/me": {"sub": "ann", **self.userinfo},
        }
        return json.dumps(here[path]).encode()


@contextmanager
def pretending() -> Iterator[Pretender]:
    """Run one on this machine."""
    found = Pretender()
    found.going.set()

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found.requested.append(self.path)
            found.going.wait()
            body = found.answer(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.daemon_threads = True
    found.issuer = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.going.set()
        server.shutdown()
        server.server_close()
