"""Test the reading of a pull request of several pages that changes meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.forges.github.pull import READS_MAX, look
from headgate.adapters.forges.rest import ForgeKey, Rejected
from headgate.testing.forges.github.model import Thread
from headgate.testing.forges.github.people import GitHub
from tests.integration.github.ground import Ground, ground, opened


@pytest.fixture
async def here(hub: GitHub, tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(hub, tmp_path) as found:
        yield found


def pushing(here: Ground, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let somebody push a commit with 101 statuses after each of the first pages."""
    real, pull = here.client.query, here.repository.pulls[1]

    async def query(key: ForgeKey, text: str, *, urgent: bool = True, **variables: Any) -> dict[str, Any]:
        nonlocal times
        found = await real(key, text, urgent=urgent, **variables)
        if times:
            times -= 1
            here.ada.push(here.repository, "topic", {"a.txt": f"more {times}\n"})
            for n in range(101):
                here.ada.status(pull, f"s{n}", "success" if n else "failure")
        return found

    monkeypatch.setattr(here.client, "query", query)


async def test_a_head_that_moves_between_two_pages_is_read_from_its_first_page(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = opened(here)
    pull.threads += [Thread(n, "a.txt", "Why?", resolved=n > 1) for n in range(1, 102)]
    key = await here.forge._tokens.of("acme/rocket")
    pushing(here, monkeypatch, 1)
    found = await look(here.client, key, "acme/rocket", 1)
    assert (found.head, found.unresolved, len(found.reports)) == (pull.head_sha, 1, 101)


async def test_a_pull_request_whose_head_moves_during_every_read_is_rejected(
    here: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = opened(here)
    pull.threads += [Thread(n, "a.txt", "Why?") for n in range(1, 102)]
    key = await here.forge._tokens.of("acme/rocket")
    pushing(here, monkeypatch, 2 * READS_MAX)
    with pytest.raises(Rejected, match="moves each time"):
        await look(here.client, key, "acme/rocket", 1)
