"""Verify that the stored keys open the secrets of a configuration."""

from __future__ import annotations

from pathlib import Path

from headgate.adapters.keys.keystore import KeyStore
from headgate.cli.keys.keys import run
from headgate.cli.settings import Settings
from headgate.config.files.check import deep_plain
from headgate.config.files.source import MEANING
from headgate.config.layout import Layout
from headgate.config.model import ConfigError
from headgate.ports.secrets import SecretError


def unopenable(settings: Settings, layout: Layout) -> list[ConfigError]:
    """Return an error for each secret that they do not open; return none when no keys are stored. Raise UserError."""
    url = settings.store_url
    file = url.removeprefix("sqlite:///")
    # Without stored keys there is nothing to compare with, as on the machine of somebody who only edits configuration.
    # Opening a missing SQLite file would create it.
    if not settings.get("keystore", "password") or url == "memory:" or (file != url and not Path(file).exists()):
        return []

    async def body(keys: KeyStore, _: Settings) -> list[ConfigError]:
        wrong: list[ConfigError] = []
        for stanza in layout.singles["secret"].values():
            source = layout.source(stanza.source.project)
            try:
                await keys.opened(source.connection, source.name, deep_plain(stanza.body.get("data")))
            except SecretError as error:
                wrong.append(stanza.error(MEANING, f"the secret {stanza.name!r}: {error}", "data"))
        return wrong

    return run(settings, body, write=False)
