"""Define who judges what a proposed configuration amounts to, where that may take long."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headgate.config.dynamic import Judgement, LayoutRequest, TenantLayouts

AT_ONCE_MAX_BYTES = 4_000
"""Of new lines, judged within a tenth of a second whatever they say."""


class Judge(Protocol):
    async def judged(self, layouts: TenantLayouts, asked: LayoutRequest) -> Judgement:
        """Return what `layouts` say about a proposal. A configuration that takes too long or too much memory is an
        error of the proposal."""
        ...


class Judging(NamedTuple):
    """Configure how proposals are judged."""

    judge: Judge
    at_once_max_bytes: int = AT_ONCE_MAX_BYTES
    """A proposal of more new lines than this goes to the judge."""
