"""Open the message server and the workers' store, as a worker's settings file names them, for commands."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from headgate.adapters.identity.trust import trusting
from headgate.base.errors import UserError
from headgate.cli.identity.pages import known_trust, queues_address, token_for, token_source
from headgate.cli.queue.workerfile import DEFAULT, WorkerFile, read_worker_file, usual
from headgate.cli.queue.workeroptions import OPTIONS
from headgate.cli.store.urls import SQLITE, open_to_read, open_with_warnings
from headgate.map.tree import unescape
from headgate.map.workers import Application, QueueMap, WorkerRecord
from headgate.ports.messages import PostRefused, QueueGone, SourceDown
from headgate.queue.messages.client import MessageClient
from headgate.queue.workers.progress import PartitionStatus, partition_statuses, steer, workers
from headgate.queueing.partitions import QueuePartition
from headgate.store.store import Store
from headgate.store.types import Entry, StoreError


@dataclass(slots=True)
class Operator:
    """Control the queues and workers of one application."""

    file: WorkerFile
    client: MessageClient
    token: str = ""
    """The operator's token, or empty; used if the file has no key."""

    @property
    def app(self) -> Application:
        return self.file.app

    async def partition_statuses(self) -> dict[QueuePartition, PartitionStatus | None]:
        """Return the status of every partition that workers know."""
        return partition_statuses(self.app, await self._entries())

    async def workers(self) -> dict[str, WorkerRecord]:
        return workers(self.app, await self._entries())

    async def groups(self) -> list[tuple[str, dict[QueuePartition, PartitionStatus | None], dict[str, WorkerRecord]]]:
        """Return the name, the partitions and the workers of each of the application's groups in the store. The name of
        the default group is empty."""
        root = QueueMap(self.file.root)
        entries = await self._entries(root.path)
        below = {unescape(entry.path[len(root.path) + 1 :].partition("/")[0]) for entry in entries}
        found = []
        for name in sorted(below):
            of, _, group = name.partition("@")
            if of == self.file.app_name:
                found.append((group, partition_statuses(root.app(name), entries), workers(root.app(name), entries)))
        return found

    async def steer(self, partition: QueuePartition, *, paused: bool | None = None, seek: str | None = None) -> None:
        """Write the control record to the store or, if one process owns the store, let that process write it. Raise
        UserError."""
        store_of(self.file)
        url = next((record.url for record in (await self.workers()).values() if record.url), "")
        # A worker on SQLite holds the lock of its file, so it must write the record itself; the key or token
        # authenticates the request.
        if self.file.store_url.startswith(SQLITE) and url:
            await self._ask(url, partition, paused, seek)
            return
        backend = await open_with_warnings(self.file.store_url)
        try:
            await steer(Store(backend), self.app, partition, paused=paused, seek=seek)
        except (LookupError, StoreError) as error:
            raise UserError(str(error)) from error
        finally:
            await backend.close()

    async def _ask(self, url: str, partition: QueuePartition, paused: bool | None, seek: str | None) -> None:
        import aiohttp  # here, because it takes as long to import as all else of a command

        # A worker of the previous release reads `lane`.
        wanted = {"partition": str(partition), "lane": str(partition), "paused": paused, "seek": seek}
        headers = {"Authorization": f"Application {self.file.key}" if self.file.key else f"Bearer {self.token}"}
        try:
            async with (
                aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(10)) as http,
                http.post(f"{url}/control", json=wanted) as answer,
            ):
                if answer.status != 200:
                    raise UserError((await answer.json()).get("error_msg", f"{url} returned status {answer.status}"))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UserError(f"{url}: the worker does not answer: {error or type(error).__name__}") from error

    async def _entries(self, path: str = "") -> Sequence[Entry]:
        """List the entries below that path, or those of the application. Raise UserError."""
        url = store_of(self.file)
        if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists():
            return []  # no worker has run so far
        backend = await (open_to_read(url) if url.startswith(SQLITE) else open_with_warnings(url))
        try:
            return await backend.list(path or self.app.path)
        except StoreError as error:
            raise UserError(str(error)) from error
        finally:
            await backend.close()


def store_of(file: WorkerFile) -> str:
    """Return the URL of the workers' store. Raise UserError if they have none."""
    if file.leases:
        raise UserError(
            f"{file.path}: with `[store] url = {file.store_url}`, the message server stores the workers' progress, and "
            "this command cannot change it; `headgate queue list` and `lag` show it"
        )
    return file.store_url


def token_of(file: WorkerFile) -> str:
    """Return the operator's token if the message servers run on this machine. Raise UserError."""
    at = [urlsplit(url) for url in file.urls]
    # The token permits everything: do not use it at all if one of the servers is on another machine.
    guessed = OPTIONS["queuey"]["connection"].default in file.urls
    found = [token_for(one.hostname or "", one.port or 80, guessed=guessed) for one in at]
    return found[0] if all(found) else ""


def trust_of(file: WorkerFile) -> ssl.SSLContext | None:
    """Return the certificates of message servers to trust in addition to the system's CAs. Raise UserError."""
    return trusting(file.ca) if file.ca else known_trust()


def _usual() -> WorkerFile:
    """Return defaults. If the pages serve the queues, they are tried after `headgate queue serve`. Raise UserError."""
    file, address = usual(Path.cwd()), queues_address()
    return replace(file, urls=(*file.urls, address)) if address else file


@asynccontextmanager
async def operator(config: str) -> AsyncIterator[Operator]:
    """Open the message server. Raise UserError, also for errors inside the context."""
    path = Path(config)
    file = _usual() if config == DEFAULT and not path.exists() else read_worker_file(path.absolute())
    token = ""
    try:
        token = "" if file.key else token_of(file)
        async with MessageClient.open(file.urls, file.key, token, trust_of(file)) as client:
            yield Operator(file, client, token)
    except SourceDown as down:
        # The settings may be those of a directory above, which nobody named.
        used = f" The operator's token is that of {token_source()}" if token else ""
        raise UserError(f"{down}; is the message server (`headgate queue serve`) running there?{used}") from down
    except QueueGone as gone:
        raise UserError("there is no such queue; `headgate queue list` shows all queues") from gone
    except PostRefused as refused:
        raise UserError(f"the message server rejected the request: {refused}") from refused
