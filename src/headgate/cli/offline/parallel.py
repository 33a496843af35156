"""Apply a function to many things in parallel, in as many processes as there are processors."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

from headgate.base.errors import UserError

T = TypeVar("T")
R = TypeVar("R")

WORTH_A_PROCESS = 40
"""Number of things that make another process worth its cost."""
PROCESSES_MAX = 16


def spread(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """Return the results of `work` for all things, in order. `work` may run in forks of this process, so it can read
    this process's memory but not change it."""
    count = min(PROCESSES_MAX, os.cpu_count() or 1, len(things) // WORTH_A_PROCESS)
    if count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [work(thing) for thing in things]
    # Fork, not spawn: children then share large layouts without copying them.
    context = multiprocessing.get_context("fork")
    lines: list[Connection[object, object]] = []
    processes = []
    for number in range(count):
        receiving, sending = context.Pipe(duplex=False)
        # Give each child every n-th thing: neighbours, such as the graphs of one project, cost about the same, so all
        # children take equally long.
        process = context.Process(target=_share, args=(work, things[number::count], sending), daemon=True)
        process.start()
        # Close the parent's copy: while it is open, the parent would see no end of file if the child dies.
        sending.close()
        lines.append(receiving)
        processes.append(process)
    done: list[list[R]] = []
    try:
        # Reading in order costs nothing: a child whose pipe is full has already computed everything.
        for line in lines:
            done.append(_received(line))
    finally:
        for process in processes:
            # On success, the children are done; after an error or an interrupt, nobody needs their results.
            process.kill()
            process.join()
    return [done[index % count][index // count] for index in range(len(things))]


def _share(work: Callable[[T], R], things: Sequence[T], sending: Connection[object, object]) -> None:
    """Send the results of `work` for these things. Ignore interrupts: the parent process handles them, and kills this
    one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):  # the parent no longer waits
        try:
            sending.send([work(thing) for thing in things])
        except UserError as error:
            sending.send(error)


def _received(line: Connection[object, object]) -> list[R]:
    """Return the results that a child process sent. Raise UserError."""
    try:
        found = line.recv()
    except EOFError as error:
        raise UserError("a worker process died before its work was done; see its output above") from error
    if isinstance(found, UserError):
        raise found
    assert isinstance(found, list), "what _share sends"
    return found
