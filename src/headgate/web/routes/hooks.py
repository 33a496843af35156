"""Receive deliveries of forges: they are verified here, and serve only as hints where to look."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from headgate.ports.forge import Hears, Hint, Ignored, Misdelivered, Unsure
from headgate.rest import HTTPException, HttpRequest, NotFoundException, post
from headgate.services.forgework import store_hint
from headgate.store.types import StoreError
from headgate.web.site import Site

log = logging.getLogger("headgate.web")

BODY_MAX_BYTES = 25_000_000
"""Size limit of a delivery: the largest that any forge sends."""
SMALL_BYTES, LARGE_MAX = 256_000, 4
"""Size above which deliveries count as large, and the number of large ones that are read at a time: their sender is
unverified until all has arrived, which may take a minute.
"""


@post("/api/connection/{name:str}/payload", status_code=200, body_max_bytes=BODY_MAX_BYTES)
async def payload(site: Site, request: HttpRequest, name: str) -> dict[str, Any]:
    """Accept a delivery of a forge's webhook, signed in the manner of that forge, or of a git server's hook. Its
    content is not trusted; Headgate looks at the forge soon. A repeated delivery has no further effect.
    """
    hears = site.context.hears(name)
    if hears is None:
        raise NotFoundException(f"there is no connection {name!r} that takes deliveries")
    try:
        # Signatures cover the raw bytes, so they are verified before anything is parsed.
        found = await verified(hears, request.headers.items(), await _read(site, request))
    except Misdelivered as wrong:
        log.warning("a delivery to the connection %s is refused: %s", name, wrong)
        raise HTTPException(str(wrong), status_code=wrong.status) from wrong
    if isinstance(found, Ignored):
        return {"ignored": found.why}
    try:
        if not await store_hint(site.context, name, found):
            raise HTTPException("too many deliveries wait to be looked at; deliver it again later", status_code=503)
    except StoreError as error:
        raise HTTPException("the store cannot be reached just now; deliver it again", status_code=503) from error
    return {"hint": {"project": found.project, "number": found.number, "ref": found.ref}}


async def _read(site: Site, request: HttpRequest) -> bytes:
    """Return the body of a delivery.  Raise 413, 503 when it is large and enough of those are being read."""
    body, large = bytearray(), False
    try:
        async for chunk in request.stream():
            body += chunk
            # Measured as it arrives and not by the header: a chunked body states no length.
            if len(body) > SMALL_BYTES and not large:
                if site.large_deliveries >= LARGE_MAX:
                    raise HTTPException(
                        "other large deliveries are being read; deliver it again later", status_code=503
                    )
                large, site.large_deliveries = True, site.large_deliveries + 1
        return bytes(body)
    finally:
        # `large` counts as 1, and only for a delivery that was counted.
        site.large_deliveries -= large


async def verified(hears: Hears, headers: Iterable[tuple[str, str]], body: bytes) -> Hint | Ignored:
    """Return what a delivery says, once its forge was asked for what it is verified with.  Raise Misdelivered."""
    named = {key.lower(): value for key, value in headers}
    found = hears.webhook(named, body)
    # What verifies a delivery may have to be fetched first; a second doubt is not asked about again.
    if isinstance(found, Unsure):
        await found.ask()
        found = hears.webhook(named, body)
    if isinstance(found, Unsure):
        raise Misdelivered("it cannot be verified just now; deliver it again later", 503)
    return found


ROUTES = (payload,)
