"""Signatures of requests to AWS: Signature Version 4."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote, urlsplit

S3 = "s3"
"""The only service whose paths are not quoted twice, and whose requests have a digest of the body."""


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """Hold the keys of the caller."""

    access: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    """Session token of temporary keys; empty for permanent ones."""
    until_s: float = float("inf")
    """When the keys expire, in seconds since 1970."""


def signed(
    keys: AwsKeys,
    region: str,
    service: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
    method: str = "POST",
) -> dict[str, str]:
    """Return the headers of a request, signed.  `now` is in UTC; each name in the query of `url` has a value, if only
    an empty one."""
    at, parts, digest = now.strftime("%Y%m%dT%H%M%SZ"), urlsplit(url), hashlib.sha256(body).hexdigest()
    every = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    # Only signed headers are safe from changes on the way, so all are signed.
    every |= {"host": parts.netloc, "x-amz-date": at}
    if service == S3:
        every["x-amz-content-sha256"] = digest
    digest = every.get("x-amz-content-sha256", digest)
    if keys.token:
        every["x-amz-security-token"] = keys.token
    names = ";".join(sorted(every))
    lines = [f"{name}:{every[name]}" for name in sorted(every)]
    # Every service but S3 quotes the path, quoted as it is, once more for the signature.
    path = parts.path if service == S3 else quote(parts.path or "/", safe="/~")
    request = "\n".join([method, path, "&".join(sorted(parts.query.split("&"))), *lines, "", names, digest])
    scope = f"{at[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{keys.secret}".encode()
    for part in (at[:8], region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    credential = f"Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**every, "authorization": f"AWS4-HMAC-SHA256 {credential}"}
