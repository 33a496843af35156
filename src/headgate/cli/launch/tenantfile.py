"""The tenant file with which a scheduler starts: a broken one is rejected at a start, too."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from headgate.adapters.git.connection import GitConnection
from headgate.base.errors import UserError
from headgate.cli.process import loadable, tenant_file, tenant_text
from headgate.cli.settings import Settings
from headgate.config.operator.model import ConfigErrors, TenantFile
from headgate.map.records import RepositoryProblem, SystemConf
from headgate.services.context import Context
from headgate.services.scheduler.tenantfile import WORDS_MAX_CHARS, in_force
from headgate.store.types import Unavailable

log = logging.getLogger("headgate.tenants")

RETRY_S = 1.0

Begun = tuple[str, TenantFile, RepositoryProblem | None]
"""Text of the tenant file in effect, its content, and why it is not the present file; None: it is."""


async def begun(settings: Settings, context: Context, at: dict[str, GitConnection]) -> Begun:
    """Return the tenant file or, if any of it is invalid, the one that was in effect before, if the store has it.
    Raise UserError when nothing can be loaded."""
    try:
        text = tenant_text(settings)
        found = tenant_file(settings, at, text)
    except UserError as error:
        before = await _before(settings, context, at, str(error))
        if before is None:
            raise
        return before
    wrong = tuple(error for errors in found.refused.values() for error in errors)
    before = await _before(settings, context, at, str(ConfigErrors(wrong))) if wrong else None
    return before or (text, loadable(settings, found), None)


async def _before(settings: Settings, context: Context, at: dict[str, GitConnection], wrong: str) -> Begun | None:
    """Return the tenant file that was in effect, or None when there was none or it cannot be loaded now."""
    in_effect, why = await _stored(context), wrong[:WORDS_MAX_CHARS]
    if in_effect is None:
        return None
    # The earlier file must be valid as a whole: otherwise one broken file would merely replace another.
    with suppress(UserError):
        found = tenant_file(settings, at, in_effect.text)
        if not found.refused:
            log.error("the tenant file is rejected, and the earlier one stays in effect: %s", why)
            return (
                in_effect.text,
                found,
                # The same error keeps its first time: a restart does not make an old problem look new.
                RepositoryProblem(in_effect.refused_ms if in_effect.refused == why else context.now_ms(), why),
            )
    return None


async def _stored(context: Context) -> SystemConf | None:
    """Return the file that the store has; wait until the store answers."""
    while True:
        try:
            return await in_force(context.store)
        except Unavailable as away:
            log.warning("the earlier tenant file cannot be read yet: %s", away)
            await asyncio.sleep(RETRY_S)
