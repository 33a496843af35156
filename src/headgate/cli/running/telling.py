"""Who tells others what happens, and what pipelines report: put together from the settings."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

from headgate.adapters.identity.trust import trusting
from headgate.base.errors import UserError
from headgate.cli.identity.tls import authorities
from headgate.cli.process import driver_of
from headgate.cli.settings import Settings
from headgate.ports.reporter import Reporter
from headgate.services.context import Context
from headgate.services.notices.posting import PARTITIONS, Posts
from headgate.services.notices.publisher import Publisher
from headgate.services.reporting.courier import Courier
from headgate.services.reporting.queues import QueueReporter
from headgate.store.store import Session

Tells = Callable[[Session], Coroutine[Any, Any, None]]


async def telling(settings: Settings, context: Context, stack: AsyncExitStack) -> dict[str, Tells]:
    """Name -> the body of each.  Raises UserError."""
    found: dict[str, Tells] = {}
    for name, said in settings.connections.items():
        if (reporter := await _reporter(name, said, settings, stack)) is not None:
            found[f"reports to {name}"] = Courier(context, name, reporter).run
    if context.publishing:
        named = ("url", "app_key", "partitions")
        posts = await _posts({option: settings.get("notices", option) for option in named}, settings, stack)
        found["posting to notices"] = Publisher(context, posts).run
    return found


async def _reporter(name: str, said: Mapping[str, str], settings: Settings, stack: AsyncExitStack) -> Reporter | None:
    """None: the connection takes no reports, or those of its own changes alone.  Raises UserError."""
    match driver_of(said):
        case "queue":
            return QueueReporter(await _posts(said, settings, stack))
        case "smtp":
            from headgate.adapters.reporting.mail import MailReporter, MailServer

            return MailReporter(MailServer.of(said, settings.path.parent))
        case "http":
            from headgate.adapters.reporting.webhook import Webhook, WebhookReporter, webhook_client

            client = await stack.enter_async_context(webhook_client(trusting(*authorities(settings))))
            return WebhookReporter(client, Webhook.of(said))
        case "chat":
            from headgate.adapters.reporting.chat import ChatReporter, ChatUnusable

            try:
                return ChatReporter.of(said)
            except ChatUnusable as error:
                raise UserError(f"{settings.path}: [connection {name}]: {error}") from error
        case _:
            return None


async def _posts(at: Mapping[str, str], settings: Settings, stack: AsyncExitStack) -> Posts:
    from headgate.adapters.messages.client import MessageClient  # large, and for few

    client = MessageClient.open([at["url"]], at.get("app_key", ""), tls=trusting(*authorities(settings)))
    poster = await stack.enter_async_context(client)
    return Posts(poster, int(at.get("partitions") or PARTITIONS))
