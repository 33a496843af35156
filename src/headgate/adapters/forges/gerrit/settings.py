"""A connection to Gerrit, as the settings have it."""

from __future__ import annotations

from pathlib import Path

from headgate.adapters.forges.gerrit.driver import GerritForge, git_connection
from headgate.adapters.forges.gerrit.rest import GerritRest, gerrit_client
from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.watchlist import GerritPace
from headgate.adapters.forges.registry import Connected, DriverOptions

PATHS = ("sshkey", "known_hosts")


def connect(given: DriverOptions) -> Connected:
    """Raise UserError for what is wrong with the section."""
    paths = {
        name: str(given.directory / Path(given.options[name]).expanduser()) for name in PATHS if name in given.options
    }
    server = Server.of(given.name, {**given.options, **paths})
    client = gerrit_client(server)
    pace = GerritPace.every(float(given.options.get("poll_delay", 0)))
    forge = GerritForge(server, GerritRest(client, server), given.engine, pace=pace, now_ms=given.now_ms)
    return Connected(git_connection(server), forge, client.aclose)
