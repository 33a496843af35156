"""Do the same work on many things, in as many processes as there are processors."""

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
"""Number of things for which another process is worth its cost."""
PROCESSES_MAX = 16


def spread(work: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """Return the results of `work` for all things, in order. It sees this process's memory as it was and cannot
    change it."""
    count = min(PROCESSES_MAX, os.cpu_count() or 1, len(things) // WORTH_A_PROCESS)
    if count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return [work(thing) for thing in things]
    # Fork, not spawn: the layouts of large tenants are large, and children share them without a copy.
    context = multiprocessing.get_context("fork")
    lines: list[Connection[object, object]] = []
    processes = []
    for number in range(count):
        receiving, sending = context.Pipe(duplex=False)
        # Every n-th thing: neighbours, such as the graphs of one project, cost alike, so that the shares take equally
        # long.
        process = context.Process(target=_share, args=(work, things[number::count], sending), daemon=True)
        process.start()
        # The child has its own copy; as long as this one is open, the death of the child is no end of file.
        sending.close()
        lines.append(receiving)
        processes.append(process)
    done: list[list[R]] = []
    try:
        # In order: a later child blocks on a full pipe until its turn, and computes nothing more anyway.
        for line in lines:
            done.append(_received(line))
    finally:
        for process in processes:
            # On success they have nothing left to do; after an error or an interrupt they work for nobody.
            process.kill()
            process.join()
    return [done[index % count][index // count] for index in range(len(things))]


def _share(work: Callable[[T], R], things: Sequence[T], sending: Connection[object, object]) -> None:
    """Send the results of `work` for these things. Ignore interrupts: the parent process handles them, and ends
    this one."""
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
        raise UserError("a process that was helping has ended before its work was done; see its message") from error
    if isinstance(found, UserError):
        raise found
    assert isinstance(found, list), "what _share sends"
    return found
