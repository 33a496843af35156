"""Define the judge of proposed configurations, whose work may take long."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from headgate.config.dynamic import Judgement, LayoutRequest, TenantLayouts

AT_ONCE_MAX_BYTES = 4_000
"""Size limit of new lines that need no judge: they take at most a tenth of a second, whatever they contain."""


class Judge(Protocol):
    async def judged(self, layouts: TenantLayouts, request: LayoutRequest) -> Judgement:
        """Return the judgement of a proposal against `layouts`. A configuration that takes too much time or memory is
        an error of the proposal."""
        ...


class Judging(NamedTuple):
    """Configure how proposals are judged."""

    judge: Judge
    at_once_max_bytes: int = AT_ONCE_MAX_BYTES
    """A proposal of more new lines than this goes to the judge."""
