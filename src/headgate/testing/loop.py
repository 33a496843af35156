"""An event loop whose clock jumps to the next timer: hours pass in milliseconds, and always the same way."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


LOOK_EVERY = 16


class _Selector(selectors.SelectSelector):
    """Never waits: a wait is a jump of the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._looks = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Files are looked at now and then: nothing here waits for one."""
        if timeout:
            self.now_s += timeout
        self._looks += 1
        return super().select(0) if self._looks % LOOK_EVERY == 0 else []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
