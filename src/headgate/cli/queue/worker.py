"""Implement `headgate worker`: run jobs on the messages of queues."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import click

from headgate import __version__
from headgate.base.errors import UserError
from headgate.base.files import check_file, reason
from headgate.base.tasks import run_until
from headgate.cli.logs import set_up
from headgate.cli.queue.operator import token_of, trust_of
from headgate.cli.queue.workerfile import DEFAULT, OLD_FAILURES, WorkerFile, read_worker_file
from headgate.cli.queue.workeroptions import SERVER
from headgate.cli.store.urls import open_with_warnings
from headgate.cli.terminal.say import say
from headgate.queue.messages.client import MessageClient
from headgate.queue.messages.holders import DEFAULT_GROUP
from headgate.queue.workers.calls import JobCaller, JobExit, Stuck
from headgate.queue.workers.processor import BlockingClient, MessageProcessor, log_failure
from headgate.queue.workers.storeless import LeaseSettings, LeaseWorker
from headgate.queue.workers.worker import QueueWorker, Worker, create_worker_app
from headgate.queueing.policy import Failure
from headgate.store.sqlite import Locked
from headgate.store.store import Store
from headgate.store.types import Backend
from headgate.web.server import serve

NAME_MAX = 200
STUCK_STATUS = 75
"""Exit status that requests a restart from the supervisor."""


@click.command()
@click.option("-c", "--config", metavar="FILE", default=DEFAULT, show_default=True, help="The settings file.")
@click.option("--verbose", is_flag=True, help="Print more details.")
@click.version_option(__version__, "-v", "--version", prog_name="headgate worker")
def command(config: str, verbose: bool) -> None:
    """Process the messages of queues, in order, together with the other workers of the application.

    On SIGTERM or SIGINT, the worker finishes running jobs, and releases its partitions. A second signal stops it
    immediately."""
    set_up(level="debug" if verbose else "info")
    path = Path(config).absolute()
    if not path.exists():
        raise UserError(f"{path}: no such settings file; name the settings file of the worker with -c FILE")
    file = read_worker_file(path)
    if not file.job and not any(job for _, job, _ in file.queues):
        say(f"{file.path}: [qdo-worker] sets no job, so there is nothing to do")
        return
    if file.memory_max_mb:
        limit_bytes = file.memory_max_mb * 1_000_000
        # Limit the address space: a greedy job then gets a MemoryError, instead of the system killing the process.
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
    if file.ca_bundle:
        try:
            check_file(file.ca_bundle)
        except OSError as error:
            raise UserError(f"{file.path}: ca_bundle cannot be read: {reason(error)}") from error
        # Jobs call other services with their own libraries; requests and OpenSSL read these variables.
        os.environ["REQUESTS_CA_BUNDLE"] = os.environ["SSL_CERT_FILE"] = file.ca_bundle
    try:
        asyncio.run(run(file))
    except JobExit as end:
        sys.exit(end.status)
    except Stuck as stuck:
        say(f"headgate worker: {stuck}", err=True)
        os._exit(STUCK_STATUS)  # threads that never end would keep the process alive


async def run(file: WorkerFile) -> None:
    """Run until a signal arrives, or until a job requests the end. Raise UserError, JobExit or Stuck."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(worker_of(file))

        def on_signal() -> None:
            if stop.is_set():
                logging.getLogger("headgate.queueing").warning("second signal: abandoning running jobs")
                worker.abort.set()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        host, _, port = file.listen.rpartition(":")
        ended = asyncio.Event()
        bound: asyncio.Future[str] = loop.create_future()

        def listening(port: int) -> None:
            url = f"http://{host or '127.0.0.1'}:{port}"
            print(f"Processing queues of {file.app_name}; {url}/health says how it goes", flush=True)
            bound.set_result(url)

        async def work() -> None:
            # Join only once the URL is known: commands find the worker by the URL in its record.
            await worker.run(stop, await bound)
            ended.set()

        app = create_worker_app(worker, file.key, "" if file.key else token_of(file))
        web = serve(app, host or "127.0.0.1", int(port), ended, listening, "[qdo-worker] listen")
        await run_until(ended, work(), web)


@asynccontextmanager
async def worker_of(file: WorkerFile) -> AsyncIterator[Worker]:
    """Open a worker that is ready to run. Raise UserError."""
    routes = file.routes()
    caller = JobCaller(file.concurrency, file.threads)
    async with AsyncExitStack() as stack:
        # The stack unwinds in reverse order: the jobs' context exits while the client and the store are still open, and
        # threads end last.
        stack.callback(caller.close)
        token = "" if file.key else token_of(file)
        source = await stack.enter_async_context(MessageClient.open(file.urls, file.key, token, trust_of(file)))
        host = "-".join(filter(None, (socket.getfqdn(), str(os.getpid()), file.name)))
        if file.leases:
            context = await stack.enter_async_context(_context(file))
            group, only = file.group or DEFAULT_GROUP, file.choice.only
            leasing = LeaseSettings(group, only, file.concurrency, file.session_s, file.pace)
            # Truncate at the front: process id and name, at the end, distinguish workers of one host.
            yield LeaseWorker(source, routes, caller, context, host[-NAME_MAX:], leasing)
            return
        backend = await _opened(file)
        stack.push_async_callback(backend.close)
        context = await stack.enter_async_context(_context(file))
        processor = MessageProcessor(
            source,
            routes,
            caller,
            context,
            lambda: int(time.time() * 1000),
            _failure(file),
            BlockingClient(source, asyncio.get_running_loop()),
            group=file.group,
            pace=file.pace,
        )
        yield QueueWorker(processor, Store(backend), file.app, host, file.choice, ttl_s=file.session_s)


async def _opened(file: WorkerFile) -> Backend:
    """Open the store. Raise UserError, with advice if another process has locked the store."""
    try:
        return await open_with_warnings(file.store_url)
    except UserError as error:
        if isinstance(error.__cause__, Locked):
            instead = f"set `url = {SERVER}` in [store] of {file.path}"
            why = f"{error}. To run several workers, or a worker next to a gate, {instead}"
            raise UserError(f"{why}: the message server then stores their progress") from error
        raise


def _failure(file: WorkerFile) -> Failure | None:
    """Return the hook for failures. Map the original's hooks to Headgate's; dead letters are stored in any case."""
    name = OLD_FAILURES.get(file.failure, file.failure)
    return log_failure if name == "log" else file.hook(name) if name else None


@asynccontextmanager
async def _context(file: WorkerFile) -> AsyncIterator[Any]:  # anything that it yields
    """Enter the jobs' context manager, plain or async, and exit it at the end. Raise UserError."""
    if not file.context:
        yield {}
        return
    made: Any = file.hook(file.context)()  # a context manager of either kind
    async with AsyncExitStack() as stack:
        if hasattr(made, "__aenter__"):
            yield await stack.enter_async_context(made)
        elif hasattr(made, "__enter__"):
            yield stack.enter_context(made)
        else:
            raise UserError(f"{file.path}: job_context {file.context} does not return a context manager")
