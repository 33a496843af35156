"""Record the actions that commands perform without a running Headgate: who, what, why."""

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
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import ConfigErrors
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
    """Project whose tenant the action concerns; empty for the entire system."""


@asynccontextmanager
async def recorded(store: Store, deed: ManualAction, settings: Settings) -> AsyncIterator[None]:
    """Record the action when it begins, and its result when it ends. Raise StoreError."""
    action, place = _action(deed, _tenant(settings, deed.project)), Map().history.by_hand
    # Record it first: a crash then leaves an action without a result in the record, not an unrecorded action.
    await store.commit([], place.append(action))
    try:
        yield
    except Exception as error:
        # The text of an unexpected error may contain a secret or a URL's password; its type does not.
        outcome = str(error) if isinstance(error, UserError | SecretError) else f"failed: {type(error).__name__}"
        await store.commit([], place.append(replace(action, outcome=line(outcome, TEXT_MAX_CHARS))))
        raise
    await store.commit([], place.append(replace(action, outcome=DONE)))


async def noted(settings: Settings, deed: ManualAction) -> None:
    """Record a completed action in the SQLite file of a Headgate that is not running. Raise UserError."""
    file = Path(settings.store_url.removeprefix("sqlite:///"))
    if not settings.store_url.startswith("sqlite:///") or not file.exists():
        raise UserError("there is no SQLite store of Headgate on this machine")
    backend = await open_store(settings)
    try:
        async with recorded(Store(backend), deed, settings):
            pass
    except StoreError as error:
        raise UserError(str(error)) from error
    finally:
        await backend.close()


def _action(deed: ManualAction, tenant: str) -> HandAction:
    """Return the record of an action, with the current user and this machine as its origin."""
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
    """Return the first tenant that has the project, or an empty string if none has or the tenant file is broken."""
    if not project:
        return ""
    try:
        text, known = tenant_text(settings), known_connections(settings, connections(settings))
        found = parse_tenant_file(text, str(settings.tenant_config), known).tenants
    except (UserError, ConfigErrors):
        # A broken tenant file must not block the action, which may be its repair; record it without a tenant.
        return ""
    return next((name for name, tenant in found.items() if tenant.find(project) is not None), "")


def _user() -> str:
    """Return the user who runs this command; with sudo, the user who called sudo."""
    try:
        return os.environ.get("SUDO_USER", "") or getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.geteuid()}"
