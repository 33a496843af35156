"""Signatures of requests to AWS: Signature Version 4, of POST requests without a query."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urlsplit


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """Hold the keys of the caller."""

    access: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    """Of keys that are lent for a while."""
    until_s: float = float("inf")
    """When they end, in seconds since 1970."""


def signed(
    keys: AwsKeys, region: str, service: str, url: str, headers: Mapping[str, str], body: bytes, now: datetime
) -> dict[str, str]:
    """Return the headers of a POST request, signed.  `now` is in UTC."""
    at, parts = now.strftime("%Y%m%dT%H%M%SZ"), urlsplit(url)
    every = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    every |= {"host": parts.netloc, "x-amz-date": at}
    if keys.token:
        every["x-amz-security-token"] = keys.token
    names = ";".join(sorted(every))
    lines = [f"{name}:{every[name]}" for name in sorted(every)]
    path = quote(parts.path or "/", safe="/~")
    request = "\n".join(["POST", path, "", *lines, "", names, hashlib.sha256(body).hexdigest()])
    scope = f"{at[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{keys.secret}".encode()
    for part in (at[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**every, "authorization": f"AWS4-HMAC-SHA256 {credential}"}
