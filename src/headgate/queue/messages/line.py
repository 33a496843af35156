"""Writes that wait for the database: those of one application in order, and the applications in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headgate.queue.messages.database import Database
from headgate.queue.messages.posts import MessagePost
from headgate.queue.messages.records import PartitionFull

WAITING_MAX = 10_000
"""Limit on the writes that wait, of all applications."""
EACH_MAX = 1_000
"""Limit on the writes of one application that wait."""
EACH_MAX_CHARS = 64_000_000
"""Limit on the characters of bodies that one application has waiting."""
GROUP_MAX = 200
"""Limit on the writes that are made durable together; fewer when they are large."""
GROUP_MAX_MESSAGES = 10_000
GROUP_MAX_CHARS = 16_000_000
AGAIN_S = 1.0


class Overloaded(OSError):
    """Report that the database receives more than it can handle; try again later."""


@dataclass(slots=True, eq=False)
class Write:
    """Hold one write, and the caller that waits for it."""

    work: MessagePost | Callable[[Database], Any]  # any answer that its caller expects
    done: asyncio.Future[Any]
    alone: bool = False
    """Whether the write needs a transaction of its own."""

    @property
    def messages(self) -> int:
        """Return how many messages are posted."""
        return len(self.work.drafts) if isinstance(self.work, MessagePost) else 1

    @property
    def chars(self) -> int:
        """Return the number of characters in their bodies."""
        return sum(len(draft.body) for draft in self.work.drafts) if isinstance(self.work, MessagePost) else 0


class GroupLine:
    """Group writes so that no application waits for more than one group of the others."""

    def __init__(self) -> None:
        self._of: dict[str, deque[Write]] = {}
        """Application -> its writes that wait; the first application is the next in turn."""
        self._chars: dict[str, int] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, app: str, write: Write) -> None:
        """Append a write to the application's line. Raise Overloaded, or PartitionFull if the application has too
        much waiting."""
        if self._count >= WAITING_MAX:
            raise Overloaded(f"{WAITING_MAX} writes wait already")
        waiting, chars = self._of.get(app, ()), self._chars.get(app, 0)
        # Upkeep has no application and is limited only by WAITING_MAX. A single write of any size is accepted if
        # nothing of its application waits; otherwise it could never be written.
        if app and (len(waiting) >= EACH_MAX or (waiting and chars + write.chars > EACH_MAX_CHARS)):
            raise PartitionFull(f"{len(waiting)} requests of application {app} wait already", AGAIN_S)
        self._of.setdefault(app, deque()).append(write)
        self._chars[app] = chars + write.chars
        self._count += 1

    def group(self) -> list[Write]:
        """Return the next group: one write of each application in turn, as long as there is room."""
        found, messages, chars = list[Write](), 0, 0
        while self._of and len(found) < GROUP_MAX:
            app, waiting = next(iter(self._of.items()))
            one = waiting[0]
            # The first write of a group is always taken, however large: it would fit into no later group either.
            full = messages + one.messages > GROUP_MAX_MESSAGES or chars + one.chars > GROUP_MAX_CHARS
            if found and (full or one.alone):
                break
            found.append(waiting.popleft())
            messages, chars = messages + one.messages, chars + one.chars
            self._chars[app] -= one.chars
            self._count -= 1
            # Dictionaries keep the order of insertion: removed and added again, the application is behind all others.
            del self._of[app]
            if waiting:
                self._of[app] = waiting
            else:
                del self._chars[app]
            if one.alone:
                break
        return found
