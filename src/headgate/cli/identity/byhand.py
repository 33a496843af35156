"""Record what commands do by themselves, as a running Headgate records requests: who, what, why."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from headgate.base.errors import UserError
from headgate.base.ids import fresh
from headgate.base.texts import line
from headgate.cli.resources import connections, known_connections, open_store, tenant_text
from headgate.cli.settings import Settings
from headgate.config.tenants import ConfigErrors, parse_tenant_file
from headgate.map.places import Map
from headgate.map.records import DONE, HandAction
from headgate.ports.secrets import SecretError
from headgate.store.store import Store
from headgate.store.types import StoreError

TEXT_MAX_CHARS = 1_024


class ManualAction(NamedTuple):
    """Describe an action, its subject and its reason."""

    verb: str
    subject: str
    reason: str
    project: str = ""
    """Project whose tenant is concerned; empty: the whole system."""


@asynccontextmanager
async def recorded(store: Store, deed: ManualAction, settings: Settings) -> AsyncIterator[None]:
    """Record the action as begun, and then its result. Raise StoreError."""
    action, place = _action(deed, _tenant(settings, deed.project)), Map().history.by_hand
    # Before the action: a crash leaves an action without a result in the record, not one that nobody knows of.
    await store.commit([], place.append(action))
    try:
        yield
    except Exception as error:
        # The text of an unexpected error may contain a secret or a password of a URL; its type does not.
        outcome = str(error) if isinstance(error, UserError | SecretError) else f"failed: {type(error).__name__}"
        await store.commit([], place.append(replace(action, outcome=line(outcome, TEXT_MAX_CHARS))))
        raise
    await store.commit([], place.append(replace(action, outcome=DONE)))


async def noted(settings: Settings, deed: ManualAction) -> None:
    """Record an action that is done already, in the file of a Headgate that does not run. Raise UserError."""
    file = Path(settings.store_url.removeprefix("sqlite:///"))
    if not settings.store_url.startswith("sqlite:///") or not file.exists():
        raise UserError("there is no store of a Headgate here")
    backend = await open_store(settings)
    try:
        async with recorded(Store(backend), deed, settings):
            pass
    except StoreError as error:
        raise UserError(str(error)) from error
    finally:
        await backend.close()


def _action(deed: ManualAction, tenant: str) -> HandAction:
    """Record an action; only the machine knows the user who may open the store."""
    return HandAction(
        id=fresh(),
        verb=deed.verb,
        who=line(_user()),
        origin=f"a command on {socket.gethostname()}",
        at_ms=int(time.time() * 1000),
        tenant=tenant,
        subject=line(deed.subject, TEXT_MAX_CHARS),
        reason=line(deed.reason, TEXT_MAX_CHARS),
    )


def _tenant(settings: Settings, project: str) -> str:
    """Return the first tenant that has the project; empty when none has, or the tenant file cannot be read."""
    if not project:
        return ""
    try:
        text, known = tenant_text(settings), known_connections(settings, connections(settings))
        found = parse_tenant_file(text, str(settings.tenant_config), known).tenants
    except (UserError, ConfigErrors):
        # The record counts, not the tenant in it: a broken tenant file must not stop what repairs it.
        return ""
    return next((name for name, tenant in found.items() if tenant.find(project) is not None), "")


def _user() -> str:
    """Return the user who runs this; with sudo, the one who called it."""
    try:
        return os.environ.get("SUDO_USER", "") or getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.geteuid()}"
