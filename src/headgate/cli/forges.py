"""The forges that the settings name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.adapters.forges.registry import FORGES, Connected, DriverOptions, connect
from headgate.base.errors import UserError
from headgate.cli.settings import Settings
from headgate.ports.limits import Alone, ForgeLimits

if TYPE_CHECKING:
    from headgate.adapters.git.engine import GitEngine


def is_forge(driver: str) -> bool:
    """Return whether the driver has changes of its own and is not plain git."""
    return driver in FORGES


def _no_engine() -> GitEngine:
    raise AssertionError("a driver looks into no repository while it connects")


def _alone(_connection: str) -> ForgeLimits:
    return Alone()


def connected(
    settings: Settings,
    engine: Callable[[], GitEngine] = _no_engine,
    limits: Callable[[str], ForgeLimits] = _alone,
) -> dict[str, Connected]:
    """Return the forges by the names of their connections. Raise UserError for errors in a section."""
    found: dict[str, Connected] = {}
    for name, section in settings.connections.items():
        driver = section.get("driver") or "git"
        if is_forge(driver):
            # As everywhere in the settings, an option without a value counts as not set.
            filled = {key: value for key, value in section.items() if value}
            given = DriverOptions(
                name, filled, settings.path.parent, engine, lambda: int(time.time() * 1000), limits(name)
            )
            try:
                found[name] = connect(driver, given)
            except UserError as error:
                raise UserError(f"{settings.path}: [connection {name}]: {error}") from error
    return found
