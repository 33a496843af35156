"""A store whose answers get lost when a test says so."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.store.types import At, Backend, Entry, Op, Unavailable
from headgate.testing.wrappedbackend import WrappedBackend


class UnsureBackend(WrappedBackend):
    """Fail the next commit with Unavailable, before or after it took effect."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.next_commit: str = "answers"
        """answers | lost (never arrives) | unanswered (arrives and takes effect, but the caller gets no answer)"""

    async def commit(self, checks: Sequence[At], ops: Sequence[Op]) -> Sequence[Entry | None]:
        fate, self.next_commit = self.next_commit, "answers"
        if fate == "lost":
            raise Unavailable("the connection broke before the commit was sent")
        written = await self.inner.commit(checks, ops)
        if fate == "unanswered":
            raise Unavailable("the connection broke before the answer came")
        return written
