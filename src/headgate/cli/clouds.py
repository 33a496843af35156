"""The clouds that the settings name."""

from __future__ import annotations

from headgate.adapters.nodes.clouds.registry import CLOUDS, RATE, CloudDriverOptions, connect
from headgate.base.errors import UserError
from headgate.cli.settings import Settings
from headgate.ports.cloud import Cloud


def cloud_names(settings: Settings) -> list[str]:
    """Return the connections that can make machines."""
    return [name for name, section in settings.connections.items() if section.get("driver") in CLOUDS]


def cloud(settings: Settings, name: str) -> Cloud:
    """Return one of them, without any request to it. Raise UserError for errors in its section, and MissingLibrary."""
    section = {key: value for key, value in settings.connections[name].items() if value}
    try:
        return connect(section["driver"], CloudDriverOptions(name, section, settings.path.parent))
    except UserError as error:
        raise type(error)(f"{settings.path}: [connection {name}]: {error}") from error


def rate(settings: Settings, name: str) -> float:
    """Return the limit on requests per second to a cloud; 0: none."""
    if not CLOUDS[settings.connections[name]["driver"]].rated:
        return 0.0
    return float(settings.connections[name].get("rate") or RATE.default)
