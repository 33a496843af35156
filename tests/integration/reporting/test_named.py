"""Test which receivers the settings name."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headgate.base.errors import UserError
from headgate.cli.launch.outbox import outbox_senders
from headgate.cli.settings import read
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store

SEARCH = "[connection search]\ndriver = elasticsearch\nuri = https://a:9200\n"
BROKER = "[connection broker]\ndriver = mqtt\nserver = mqtt.example.org\n"


def nothing() -> Any:
    raise AssertionError("nobody needs the inventory")


async def named(root: Path, text: str) -> set[str]:
    (root / "headgate.conf").write_text(text)
    store = Store(MemoryBackend())
    context = Context(store, Mirror(store, "/zuul"), lambda: 0)
    async with AsyncExitStack() as stack:
        return set(await outbox_senders(read(root / "headgate.conf"), context, stack, nothing, {}))


async def test_brokers_and_searches_have_an_outbox_each(tmp_path: Path) -> None:
    assert await named(tmp_path, SEARCH + BROKER) == {"reports to search", "reports to broker"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            SEARCH + "ca_certs = none.pem\n",
            r"headgate.conf: \[connection search\]: ca_certs, client_cert or client_key",
        ),
        (SEARCH.replace("a:9200", "me:pass,word@a"), r"\[connection search\]: uri: each server is"),
        (BROKER + "certfile = none.pem\n", r"headgate.conf: \[connection broker\]: ca_certs, certfile, keyfile"),
        ("[connection search]\ndriver = elasticsearch\n", r"\[connection search\] needs a uri: its servers"),
    ],
)
async def test_unusable_settings_are_reported_at_the_start_without_secrets(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError, match=why) as raised:
        await named(tmp_path, text)
    assert "pass" not in str(raised.value)
