"""Test that refused writes are recorded for administrators of a tenant, and that nobody can fill the list."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from headgate.web.routes import actions
from tests.integration.conftest import repositories
from tests.integration.test_access import ENQUEUE, TENANT, access, client, token

__all__ = ["access", "client", "repositories"]  # fixtures


@pytest.fixture(autouse=True)
def one_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no period end during a test, which the clock's hours would."""
    monkeypatch.setattr(actions, "REFUSALS_PERIOD_MS", 1 << 60)


async def refusals(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    operator = token(groups=["ops"], sub="olga")  # created on demand: it is valid for a minute
    answer = await client.get(f"{TENANT}/actions?limit=500", headers=operator)
    found = answer.raise_for_status().json()
    return [one for one in found if one["outcome"].startswith("refused: ")]


@pytest.mark.long
async def test_a_refused_write_is_recorded_once_with_caller_and_action(client: httpx.AsyncClient) -> None:
    nobody = token(groups=["dev-other"], sub="mallory\x1b[2J\n")
    for _ in range(50):
        answer = await client.post(f"{TENANT}/project/code/api/enqueue", json=ENQUEUE, headers=nobody)
        assert answer.status_code == 403
    await client.get("/api/actions", headers=nobody)  # reading is not a write
    (one,) = await refusals(client)
    assert (one["who"], one["verb"], one["subject"]) == ("mallory [2J ", "enqueue", "project/code/api/enqueue")
    assert "may not read tenant example" in one["outcome"] and one["origin"].startswith("127.0.0.1")


@pytest.mark.long
async def test_neither_strangers_nor_a_crowd_fill_the_list_of_refused_writes(client: httpx.AsyncClient) -> None:
    verbs = (
        "promote",
        "state",
        "close",
        "open",
        "project/code/api/dequeue",
        "project/code/api/autohold",
        "reconfigure",
    )
    for _ in range(3):
        for verb in verbs:
            assert (await client.post(f"{TENANT}/{verb}", json={})).status_code in (400, 401)
    assert not await refusals(client), "nothing is kept of nobody"
    bodies: dict[str, dict[str, Any]] = {
        "promote": {"pipeline": "gate", "changes": ["x"]},
        "state": {"reason": "x"},
        "close": {"pipeline": "gate", "reason": "x"},
        "open": {"pipeline": "gate"},
        "project/code/api/enqueue": ENQUEUE,
        "project/code/api/dequeue": ENQUEUE,
        "reconfigure": {"projects": []},
    }
    for number in range(40):
        headers = token(groups=["dev-other"], sub=f"m{number}")
        statuses = [
            (await client.post(f"{TENANT}/{v}", json=b, headers=headers)).status_code for v, b in bodies.items()
        ]
        assert statuses.count(403) >= actions.REFUSALS_OF_ONE_MAX + 1, statuses
    found = await refusals(client)
    assert len(found) == actions.REFUSALS_MAX
    assert max(sum(one["who"] == f"m{n}" for one in found) for n in range(40)) == actions.REFUSALS_OF_ONE_MAX


async def test_tenants_that_do_not_exist_get_no_list(client: httpx.AsyncClient) -> None:
    headers = token(groups=["dev-other"])
    for number in range(10):
        answer = await client.post(f"/api/tenant/none{number}/promote", json={}, headers=headers)
        assert answer.status_code in (400, 403, 404)
    assert not await refusals(client)


async def test_a_repeated_refusal_is_recorded_again_after_a_while(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "REFUSALS_PERIOD_MS", 1)  # every moment is another period
    headers = token(groups=["dev-other"])
    for _ in range(3):
        await client.post(f"{TENANT}/project/code/api/enqueue", json=ENQUEUE, headers=headers)
    assert len(await refusals(client)) == 3
