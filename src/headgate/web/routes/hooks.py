"""Receive and verify webhook deliveries of forges, and store them as hints of what to read from the forge."""

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
"""Size above which a delivery counts as large, and the limit on large ones that are read concurrently: a sender stays
unverified until the body is complete, which may take a minute.
"""


class DeliveryBodies:
    """Read the bodies of deliveries, only a few large ones at a time."""

    def __init__(self) -> None:
        self._large = 0

    async def read(self, request: HttpRequest) -> bytes:
        """Return the body of a delivery.  Raise 413, and 503 if it is large and too many large ones are being read."""
        body, large = bytearray(), False
        try:
            async for chunk in request.stream():
                body += chunk
                # Measured while it arrives and not by the header, as a chunked body states no length.
                if len(body) > SMALL_BYTES and not large:
                    if self._large >= LARGE_MAX:
                        raise HTTPException(
                            "other large deliveries are being read; deliver it again later", status_code=503
                        )
                    large, self._large = True, self._large + 1
            return bytes(body)
        finally:
            # `large` is 1 only if this delivery was counted above.
            self._large -= large


@post("/api/connection/{name:str}/payload", status_code=200, body_max_bytes=BODY_MAX_BYTES)
async def payload(site: Site, bodies: DeliveryBodies, request: HttpRequest, name: str) -> dict[str, Any]:
    """Accept a delivery of a forge's webhook, signed as that forge does, or of a git server's hook. Its content is not
    trusted: it only makes Headgate query the forge soon. A repeated delivery has no further effect.
    """
    hears = site.context.hears(name)
    if hears is None:
        raise NotFoundException(f"there is no connection {name!r} that accepts deliveries")
    try:
        # Signatures cover the raw bytes, so they are verified before anything is parsed.
        found = await verified(hears, request.headers.items(), await bodies.read(request))
    except Misdelivered as wrong:
        log.warning("refused a delivery to the connection %s: %s", name, wrong)
        raise HTTPException(str(wrong), status_code=wrong.status) from wrong
    if isinstance(found, Ignored):
        return {"ignored": found.why}
    try:
        if not await store_hint(site.context, name, found):
            raise HTTPException("too many deliveries are waiting; deliver it again later", status_code=503)
    except StoreError as error:
        raise HTTPException("the store cannot be reached at the moment; deliver it again", status_code=503) from error
    return {"hint": {"project": found.project, "number": found.number, "ref": found.ref}}


async def verified(hears: Hears, headers: Iterable[tuple[str, str]], body: bytes) -> Hint | Ignored:
    """Return the content of a verified delivery.  Raise Misdelivered."""
    named = {key.lower(): value for key, value in headers}
    found = hears.webhook(named, body)
    # The key that verifies a delivery may have to be fetched from the forge first. This is tried only once, as
    # strangers could make Headgate fetch it over and over.
    if isinstance(found, Unsure):
        await found.ask()
        found = hears.webhook(named, body)
    if isinstance(found, Unsure):
        raise Misdelivered("the delivery cannot be verified at the moment; deliver it again later", 503)
    return found


ROUTES = (payload,)
