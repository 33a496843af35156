"""Run tasks side by side: an error stops only the task that raises it, which is started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from headgate.base.ids import derived
from headgate.base.tasks import run_until
from headgate.map.tree import Undecodable
from headgate.services.context import Context
from headgate.services.quarantine.quarantine import TRIES_MAX, Quarantine, transient
from headgate.store.store import GuardLost, Session
from headgate.store.types import SessionLost, StoreError, Unavailable

log = logging.getLogger("headgate.quarantine")

PAUSE_FIRST_S, PAUSE_MAX_S = 0.2, 60.0
WELL_S = 10.0
"""Time after which a part that failed and was restarted counts as healthy."""

Run = Callable[[Session], Coroutine[Any, Any, None]]


async def tended(context: Context, what: str, run: Run, session: Session, tenant: str = "") -> None:
    """Run a work until it ends; when it raises an error, start it again after a growing pause, so that its defect, or a
    damaged record that it needs, affects nothing else. Raise SessionLost, GuardLost or Unavailable.

    After a few tries it is in the quarantine for as long as it does not go well; retried there, it is begun at once.
    """
    await _SupervisedWork(context, what, run, tenant).run(session)


class _SupervisedWork:
    def __init__(self, context: Context, what: str, run: Run, tenant: str) -> None:
        self._context, self._what, self._run, self._tenant = context, what, run, tenant
        self._quarantine, self._id = Quarantine(context), derived("work", what)

    async def run(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        tries, pause_s = 0, PAUSE_FIRST_S
        while True:
            began_s = loop.time()
            try:
                # Only a work that is in the quarantine has something to be taken out of.
                if self._shown:
                    await run_until(asyncio.Event(), self._run(session), self._well())
                else:
                    await self._run(session)
                return
            # These concern the whole component, not this work: it has to join again.
            except (SessionLost, GuardLost, Unavailable):
                raise
            except Exception as error:
                # It went well for a while, so this is a new problem.
                if loop.time() - began_s >= WELL_S:
                    tries, pause_s = 0, PAUSE_FIRST_S
                tries += 1
                self._tell(error, pause_s)
                # A damaged record does not mend itself, so people hear of it at once.
                if tries >= TRIES_MAX or isinstance(error, Undecodable):
                    await self._show(error, tries)
                await self._pause(pause_s, error.path if isinstance(error, Undecodable) else "")
                pause_s = min(3 * pause_s, PAUSE_MAX_S)

    @property
    def _path(self) -> str:
        return self._quarantine.path(self._id)

    @property
    def _shown(self) -> bool:
        return self._context.mirror.get(self._path) is not None

    def _tell(self, error: Exception, pause_s: float) -> None:
        if isinstance(error, Undecodable):
            log.error("%s is stopped: %s; repair or remove it", self._what, error)
        elif transient(error):
            log.warning("%s is begun again in %.1f s: %s", self._what, pause_s, error)
        else:
            log.error("%s is stopped, and starts again in %.1f s", self._what, pause_s, exc_info=error)

    async def _show(self, error: Exception, tries: int) -> None:
        ops = self._quarantine.put(self._id, "work", self._what, error, self._tenant, tries=tries)
        try:
            await self._context.store.commit([], ops)
        except (SessionLost, Unavailable):
            raise
        except StoreError as refused:
            log.error("%s: that it stands still cannot be written down: %s", self._what, refused)

    async def _pause(self, pause_s: float, damaged: str) -> None:
        """Wait until the pause is over, or until somebody retries the work or repairs the damaged record."""
        mirror, loop = self._context.mirror, asyncio.get_running_loop()
        until_s, shown, was = loop.time() + pause_s, self._shown, mirror.get(damaged)
        with mirror.part(self._path, *([damaged] if damaged else [])) as part:
            while (left_s := until_s - loop.time()) > 0 and mirror.get(damaged) == was:
                if shown and not self._shown:
                    return
                shown = self._shown
                await part.moved_within(left_s, part.moves)

    async def _well(self) -> None:
        await asyncio.sleep(WELL_S)
        await self._quarantine.forget(self._id)
