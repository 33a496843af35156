"""Serve queues and the inventory on the port of the pages, and logs over finger."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headgate.adapters.process.joblog import follow
from headgate.base.errors import UserError, needing
from headgate.base.tasks import run_until
from headgate.cli.identity.credentials import scheme, tls_of, tls_of_finger
from headgate.cli.launch.process import Process
from headgate.cli.launch.retention import remote
from headgate.cli.settings import APP_DEFAULT, Settings
from headgate.services.membership import Membership
from headgate.store.store import Session
from headgate.web.buildlogs import BuildLogs
from headgate.web.finger import Gateway, serve
from headgate.web.peers.requests import App, Front

if TYPE_CHECKING:
    from headgate.services.inventory.inventory import Inventory

log = logging.getLogger("headgate.finger")

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - nothing is bound to them
"""Address on which a server listens -> address for connections from the same machine."""


def serves_queues(settings: Settings) -> bool:
    """Return whether the settings make this server provide message queues."""
    return "messages" in settings.values or "application_keys" in settings.values


async def front(
    gate: App,
    settings: Settings,
    inventory: Inventory | None,
    stack: AsyncExitStack,
    stop: asyncio.Event,
    anew: list[Callable[[], None]],
) -> tuple[App, list[Coroutine[Any, Any, None]]]:
    """Return the web application for the port of the pages, and its background tasks. It serves the gate and, as far as
    the settings name them, queues and the inventory. Add functions that reload settings to `anew`. Raise UserError."""
    app, works, objects = None, list[Coroutine[Any, Any, None]](), None
    if (found := await _queues(settings, stack, stop, anew)) is not None:
        app, upkeep = found
        works.append(upkeep)
    if inventory is not None:
        from headgate.cli.inventory.service import make_json

        objects = make_json(settings, inventory)
    return Front(gate, app, objects) if app or objects else gate, works


async def _queues(
    settings: Settings, stack: AsyncExitStack, stop: asyncio.Event, anew: list[Callable[[], None]]
) -> tuple[App, Coroutine[Any, Any, None]] | None:
    """Return the web application of the queues and its background task, or None without queues. Raise UserError."""
    if not serves_queues(settings):
        return None
    with needing("serving queues of messages", "queues"):
        from headgate.cli.queue.serve import KeyFile, limits_of
        from headgate.queue.messages.board import MessageBoard  # late: a large import that few installations need
        from headgate.queue.server.app import create_app
        from headgate.web.routes.pages import MESSAGE_PAGES

    board = await MessageBoard.open(settings.messages_url, limits_of(settings))
    stack.push_async_callback(board.close)
    file = KeyFile(settings)
    anew.append(file.obey)
    return create_app(board, file.keys, stop, MESSAGE_PAGES), run_until(stop, board.upkeep(), file.watch())


def own_queues(settings: Settings, key: str = "") -> str:
    """Return the URL of this installation's own queues, for the application with this key. Raise UserError."""
    apps = [app for app, keys in settings.application_keys.items() if not key or key in keys]
    # Guessing among several applications could post one application's messages into another's queues.
    if len(apps) > 1 or (key and not apps):
        raise UserError(
            f"{settings.path}: set app_key to one of the keys in [application_keys], to name the application whose "
            "queues to use"
        )
    app, port = apps[0] if apps else APP_DEFAULT, int(settings.number("web", "port"))
    host = settings.get("web", "listen_address")
    root = settings.get("web", "root").rstrip("/")
    if not root and not port:
        raise UserError(f"{settings.path}: with [web] port = 0, the URL of the queues is not known in advance: set url")
    named = EVERYWHERE.get(host, f"[{host}]" if ":" in host else host)
    return f"{root or f'{scheme(tls_of(settings))}://{named}:{port}'}/v1/{quote(app, safe='')}/"


async def add_fingergw(process: Process, *, alone: bool = True) -> None:
    """Add the finger gateway. If it is not `alone` in its process, other components continue to work when its port
    cannot be used. Raise UserError."""
    settings, context = process.settings, process.context
    tls, member = tls_of_finger(settings), Membership(context, "fingergw")
    logs = BuildLogs(settings.place("executor", "log_dir", "logs"), follow, remote(settings, context, process.stack))
    gateway = Gateway(context, process.tenants, logs)
    host, port = settings.get("fingergw", "listen_address"), int(settings.number("fingergw", "port", 79))
    name = f"[{context.settings.hostname}]" if ":" in context.settings.hostname else context.settings.hostname

    def bound(number: int) -> None:
        public = settings.get("fingergw", "public_port") or str(number)
        member.say(url=f"{'fingers' if tls else 'finger'}://{name}:{public}")
        # Scripts read this line, so its words stay as they are.
        print(f"Logs are served over finger at port {number}", flush=True)

    async def serving() -> None:
        try:
            await serve(gateway.answer, host, port, process.stop, bound, tls)
        except UserError as error:
            # The default port, 79, is privileged; a gate must start even if it may not use that port.
            if alone:
                raise
            log.error("cannot serve logs over finger: %s", error)

    async def member_until_done(session: Session) -> None:
        await asyncio.Event().wait()

    process.servers.append(serving())
    process.join(member, member_until_done)
