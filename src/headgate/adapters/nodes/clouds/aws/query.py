"""Sign requests to AWS, encode arguments as forms, decode XML responses, and translate errors to those of the port."""

from __future__ import annotations

import hashlib
import hmac
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from headgate.adapters.nodes.clouds.http import CloudResponse, one_line, patience_s
from headgate.ports.clouds import CloudUnavailable, LaunchFailed, OverQuota

S3 = "s3"
"""Only service whose paths are not quoted twice, and whose requests have a digest of the body."""
THROTTLED = frozenset(
    [
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestThrottlingException",
        "TooManyRequestsException",
        "SlowDown",
        "BandwidthLimitExceeded",
        "ThrottlingError",
        "PriorRequestNotComplete",
        "TransactionInProgressException",
    ]
)
BUSY = frozenset(
    [
        "InternalError",
        "InternalFailure",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Unavailable",
        "RequestTimeout",
        "RequestTimeoutException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "ClientInternalError",
    ]
)
EXPIRED = frozenset(
    (
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
    )
)
"""Codes that mean that temporary keys have expired: the request is repeated with new ones."""
FULL = frozenset(
    [
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacityOnHost",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientAddressCapacity",
        "SpotMaxPriceTooLow",
        "InsufficientVolumeCapacity",
        "MaxSpotInstanceCountExceeded",
        "MaxSpotFleetRequestCountExceeded",
        "MaxIOPSLimitExceeded",
    ]
)
"""Codes that mean that there is no capacity now, as do all codes that end with `LimitExceeded`."""

Arguments = Mapping[str, Any]
"""Name -> string, number, flag, list or nested arguments; None is left out."""
AwsItem = Mapping[str, Any]
"""Part of a response: name -> string, list or nested parts."""


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """Hold the keys of the caller."""

    access: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)
    """Session token of temporary keys; empty for permanent ones."""
    until_s: float = float("inf")
    """Time at which the keys expire, in seconds since 1970."""


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
    """Return the headers of a request, with a signature.  `now` is in UTC; each name in the query of `url` must have a
    value, even if it is empty."""
    at, parts, digest = now.strftime("%Y%m%dT%H%M%SZ"), urlsplit(url), hashlib.sha256(body).hexdigest()
    every = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    # All headers are signed, because the signature protects only signed ones from changes on the way.
    every |= {"host": parts.netloc, "x-amz-date": at}
    if service == S3:
        every["x-amz-content-sha256"] = digest
    digest = every.get("x-amz-content-sha256", digest)
    if keys.token:
        every["x-amz-security-token"] = keys.token
    names = ";".join(sorted(every))
    lines = [f"{name}:{every[name]}" for name in sorted(every)]
    # For the signature, every service except S3 quotes the quoted path once more.
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


class AwsRefused(LaunchFailed):
    """Report that AWS rejects a request."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class AwsKeysExpired(CloudUnavailable):
    """Report that the keys have expired."""


def form(action: str, version: str, arguments: Arguments) -> bytes:
    """Return the body of a call."""
    pairs = [("Action", action), ("Version", version), *_flat("", arguments)]
    return urlencode(pairs).encode()


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    match value:
        case None:
            return
        # Before `case _`, because AWS expects `true`, not `True`. `str` comes before `Sequence`, which it also is.
        case bool():
            yield name, str(value).lower()
        case Mapping():
            for key, inner in value.items():
                yield from _flat(f"{name}.{key}" if name else key, inner)
        case str():
            yield name, value
        case Sequence():
            for number, inner in enumerate(value, 1):
                yield from _flat(f"{name}.{number}", inner)
        case _:
            yield name, str(value)


def read(answer: CloudResponse, whose: str = "AWS") -> dict[str, Any]:
    """Return the content of a response. Raise AwsRefused, OverQuota, CloudUnavailable."""
    tree = _tree(document(answer, whose))
    return tree if isinstance(tree, dict) else {}


def document(answer: CloudResponse, whose: str) -> ElementTree.Element:
    """Return the XML of a response. Raise AwsRefused, OverQuota, CloudUnavailable."""
    # Zero bytes mean UTF-16, in which the parser would find a document type that this search misses.
    if b"<!DOCTYPE" in answer.body or b"\0" in answer.body:
        raise CloudUnavailable(f"{whose} returned XML with a document type, or in an unexpected encoding")
    try:
        root = ElementTree.fromstring(answer.body) if answer.body else None  # noqa: S314 - without a document type there are no entities that grow
    except ElementTree.ParseError as error:
        if answer.status < 300:
            raise CloudUnavailable(f"{whose} returned an incomplete response: {error}") from error
        root = None
    if answer.status < 300 and root is not None and name_of(root) != "Error":  # S3 may fail after the status 200
        return root
    code, text = _error(root)
    raise problem(answer.status, code, text, answer.headers, whose)


def problem(status: int, code: str, text: str, headers: Mapping[str, str], whose: str = "AWS") -> Exception:
    """Return the port's error for an error of AWS: AwsRefused, AwsKeysExpired, OverQuota, CloudUnavailable."""
    words = one_line(f"{whose} says {code}: {text}" if code else f"{whose} returned status {status}")
    short = code.rpartition(".")[2]
    # Before BUSY, which also contains RequestExpired: a wrong clock looks like expired keys.
    if code in EXPIRED:
        return AwsKeysExpired(words)
    # Before `LimitExceeded`: RequestLimitExceeded concerns the rate of requests, not capacity.
    if code in THROTTLED:
        return CloudUnavailable(words, patience_s(headers))
    if short in FULL or short.endswith("LimitExceeded"):
        return OverQuota(words)
    if status in (429, 503):
        return CloudUnavailable(words, patience_s(headers))
    # A response without a code of AWS comes from something in between, such as a proxy, so it is unknown whether the
    # request was performed.
    if code in BUSY or status >= 500 or status < 400 or not code:
        return CloudUnavailable(words)
    return AwsRefused(code, words)


def _error(root: ElementTree.Element | None) -> tuple[str, str]:
    """Return code and message from the element `Error`, which services nest differently."""
    if root is None:
        return "", ""
    for found in root.iter():
        if name_of(found) == "Error":
            inner = {name_of(one): one.text or "" for one in found}
            return inner.get("Code", ""), inner.get("Message", "")
    return "", ""


def name_of(element: ElementTree.Element) -> str:
    """Return the tag of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _tree(element: ElementTree.Element) -> Any:
    children = list(element)
    if not children:
        return (element.text or "").strip()
    # EC2 names the members of a list `item`, STS names them `member`.
    if all(name_of(child) in ("item", "member") for child in children):
        return [_tree(child) for child in children]
    return {name_of(child): _tree(child) for child in children}


def listed(value: Any) -> list[Any]:
    """Return a list from a response; AWS omits an empty list."""
    return value if isinstance(value, list) else []


def tags_of(item: AwsItem) -> dict[str, str]:
    """Return the tags of an EC2 resource."""
    return {tag["key"]: tag.get("value", "") for tag in listed(item.get("tagSet"))}
