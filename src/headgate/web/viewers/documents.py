"""The status of a tenant as one document: made once for all who ask within a second, in each form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headgate.web.manners import compressed
from headgate.web.status import timed
from headgate.web.viewers.audience import Shown

AGE_MAX_MS = 1_000
"""Age of the times in a document, at most."""


@dataclass(slots=True)
class ViewerDocument:
    """Hold a document; `made_ms` is by the clock of its times."""

    tag: str
    made_ms: int
    text: bytes
    packing: asyncio.Future[bytes] | None = None


@dataclass(slots=True)
class Documents:
    """Keep the latest document of each tenant."""

    now_ms: Callable[[], int]
    _latest: dict[str, ViewerDocument] = field(default_factory=dict)

    async def of(self, tenant: str, shown: Shown, *, gzip: bool) -> bytes:
        """Return the document of a state."""
        now_ms, found = self.now_ms(), self._latest.get(tenant)
        # A clock that was set back makes the age negative: such a document is made again, too.
        if found is None or found.tag != shown.encoded.tag or not 0 <= now_ms - found.made_ms < AGE_MAX_MS:
            text = msgspec.json.encode(timed(shown.status, now_ms))
            found = self._latest[tenant] = ViewerDocument(shown.encoded.tag, now_ms, text)
        if not gzip:
            return found.text
        if found.packing is None:
            found.packing = asyncio.ensure_future(compressed(found.text))
        # Others wait for the same compression: a client that disconnects must not cancel it for them.
        return await asyncio.shield(found.packing)
