"""Provide threads that work while the task that started them is cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from headgate.testing.clock import DEADLINE_S

TURNS = 20
"""Turns of the loop; a cancelled task that waits for nothing needs fewer."""


class Slow:
    """Use a descriptor in a thread after the task is cancelled."""

    def __init__(self) -> None:
        self._begun, self._go = threading.Event(), threading.Event()
        self._file, self._same = -1, False

    def use(self, file: int) -> bytes:
        self._file, before = file, os.fstat(file)
        self._begun.set()
        self._go.wait(DEADLINE_S)
        try:
            self._same = os.path.samestat(before, os.fstat(file))
        except OSError:
            self._same = False
        return b""

    async def cancelled(self, task: asyncio.Future[Any]) -> None:
        """Cancel the task during the use. Check that its descriptor is open until the end of the use and closed
        afterwards."""
        await asyncio.to_thread(self._begun.wait, DEADLINE_S)
        task.cancel()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        self._go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        # A task that did not wait for its thread leaves it running.
        await asyncio.to_thread(lambda: None)
        assert self._same
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(self._file)
