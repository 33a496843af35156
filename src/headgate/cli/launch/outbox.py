"""Build, from the settings, the senders of events and reports, and the sources whose messages start pipelines."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from headgate.adapters.identity.trust import trusting
from headgate.adapters.reporters.registry import REPORTERS, ReporterOptions, connect
from headgate.base.errors import UserError, needing
from headgate.cli.identity.credentials import authorities, operator_token
from headgate.cli.launch.front import own_queues
from headgate.cli.resources import driver_of
from headgate.cli.settings import FLAGS, Settings
from headgate.ports.forge import Forge
from headgate.ports.occasions import OccasionSource
from headgate.ports.reporter import Reporter
from headgate.services.context import Context
from headgate.services.courier import Courier
from headgate.services.forgework import ForgeReporter
from headgate.services.publisher import PARTITIONS, Publisher, ServerPosts
from headgate.services.scheduler.occasions.messages import QueueReporter, WatchedQueues
from headgate.store.store import Session

if TYPE_CHECKING:
    from headgate.queue.messages.client import MessageClient
    from headgate.services.inventory.inventory import Inventory

Tells = Callable[[Session], Coroutine[Any, Any, None]]


async def outbox_senders(
    settings: Settings,
    context: Context,
    stack: AsyncExitStack,
    objects: Callable[[], Inventory],
    forges: Mapping[str, Forge],
) -> dict[str, Tells]:
    """Return the functions that run the senders, by the sender's name. `objects` returns the inventory. Raise
    UserError."""
    found: dict[str, Tells] = {}
    for name, forge in forges.items():
        merger = ForgeReporter(context, forge)
        found[f"reports to {name}"] = Courier(context, name, merger, merger).run
    for name, section in settings.connections.items():
        if (reporter := await _reporter(name, section, settings, stack, objects)) is not None:
            found[f"reports to {name}"] = Courier(context, name, reporter).run
    if context.settings.publishing:
        named = ("url", "app_key", "partitions")
        posts = await _posts({option: settings.get("published_events", option) for option in named}, settings, stack)
        found["publishing events"] = Publisher(context, posts).run
        if FLAGS[settings.get("published_events", "inventory").lower()]:
            from headgate.services.inventory.publication import ObjectPublisher  # late: large, and rarely needed

            found["posting changes of the inventory"] = ObjectPublisher(context, objects(), posts).run
    return found


async def _reporter(
    name: str,
    section: Mapping[str, str],
    settings: Settings,
    stack: AsyncExitStack,
    objects: Callable[[], Inventory],
) -> Reporter | None:
    """Return the connection's reporter, or None if it accepts no reports, or only reports on its own changes. Raise
    UserError."""
    match driver_of(section):
        case "queue":
            return QueueReporter(await _posts(section, settings, stack))
        case "inventory":
            from headgate.services.scheduler.occasions.objects import ObjectReporter  # late: large, and rarely needed

            return ObjectReporter(name, objects(), section["partition"], section["project"])
        case driver if driver in REPORTERS:
            # Everywhere in the settings, an option with an empty value counts as not set.
            filled = {key: value for key, value in section.items() if value}
            try:
                given = ReporterOptions(filled, settings.path.parent, lambda: trusting(*authorities(settings)), stack)
                return await connect(driver, given)
            except UserError as error:
                raise UserError(f"{settings.path}: [connection {name}]: {error}") from error
        case _:
            return None


async def _posts(at: Mapping[str, str], settings: Settings, stack: AsyncExitStack) -> ServerPosts:
    return ServerPosts(await _messages(at, settings, stack), int(at.get("partitions") or PARTITIONS))


async def watching(
    settings: Settings, stack: AsyncExitStack, objects: Callable[[], Inventory]
) -> dict[str, OccasionSource]:
    """Return, by name, the connections of the settings whose messages or objects start pipelines. Raise UserError."""
    found: dict[str, OccasionSource] = {}
    for name, section in settings.connections.items():
        if driver_of(section) == "queue":
            partitions = int(section.get("partitions") or PARTITIONS)
            found[name] = WatchedQueues(name, await _messages(section, settings, stack), partitions)
        elif driver_of(section) == "inventory":
            from headgate.services.scheduler.occasions.objects import WatchedObjects  # late: large, and rarely needed

            found[name] = WatchedObjects(name, objects(), section["partition"], section["project"])
    return found


async def _messages(at: Mapping[str, str], settings: Settings, stack: AsyncExitStack) -> MessageClient:
    """Connect to the queues at a URL or, without one, to this installation's own queues, as the operator."""
    with needing("a connection to message queues", "queues"):
        from headgate.queue.messages.client import MessageClient  # late: large, and rarely needed

    key, url = at.get("app_key", ""), at.get("url", "")
    token = "" if url or key else operator_token(settings)  # never send the operator's token to another server
    client = MessageClient.open([url or own_queues(settings, key)], key, token, trusting(*authorities(settings)))
    return await stack.enter_async_context(client)
