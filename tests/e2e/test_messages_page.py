"""Test queues of messages in a browser: their contents, progress of workers, dead letters, and replay."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from headgate.queue.messages.board import MessageBoard
from headgate.testing.queues.harness import APP, KEY, OTHER_APP, OTHER_KEY, serving
from tests.e2e.browser import CHROMIUM, patient

EVIL = "<img src=x onerror=document.title='taken'>"
HEADERS = {"Authorization": f"Application {KEY}"}


@pytest.mark.long
async def test_queues_are_looked_at_and_dead_letters_posted_again(tmp_path: Path) -> None:
    board = await MessageBoard.open(f"sqlite:///{tmp_path / 'messages.sqlite'}")
    async with serving(board) as url, aiohttp.ClientSession(url, headers=HEADERS) as http:

        async def ask(method: str, path: str, **more: Any) -> Any:
            async with http.request(method, f"/v1/{APP}{path}", **more) as answer:
                assert answer.status < 300, await answer.text()
                return await answer.json()

        await ask("POST", "", data={"queue_name": "orders", "partitions": "2", "messages_max": "50"})
        batch = {"messages": [{"body": f"{EVIL} {n}", "partition": 1} for n in range(5)]}
        await ask("POST", "/orders", json=batch)
        await ask("POST", "/orders", json={"messages": [{"body": "later", "partition": 1, "delay": 600}]})
        await ask("PUT", "/orders/schedules/nightly", json={"cron": "0 2 * * *", "body": "night"})
        lease = (await ask("POST", "/orders/lease", json={"worker": f"w {EVIL}", "group": "packers"}))["lease"]["lease"]
        fetched = (await ask("GET", f"/orders/lease/{lease}"))["messages"]
        failed = [{"message_id": fetched[0]["message_id"], "error": f"because {EVIL}", "reject": True}]
        await ask("POST", f"/orders/lease/{lease}", json={"done": [fetched[1]["message_id"]], "failed": failed})
        await asyncio.to_thread(_looked_at, f"{url}/", tmp_path)
        found = await ask("GET", "/orders?limit=100")
        assert [one["body"] for one in found["messages"]].count(f"{EVIL} 0") == 2, "posted again, once"
        partition_status = (await ask("GET", "/orders/status"))["partitions"][0]
        assert (
            partition_status["messages"],
            partition_status["delayed"],
            partition_status["groups"][0]["waiting"],
        ) == (7, 1, 4)
    await board.close()


def _looked_at(url: str, tmp_path: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        page = patient(browser.new_page(viewport={"width": 1200, "height": 900}))
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        expect(page.get_by_role("alert")).to_contain_text("Log in with a key")
        _enter(page, "wrong")
        expect(page.get_by_role("alert")).to_contain_text("Log in with a key")
        page.get_by_role("button", name="Log out").click()
        _enter(page, OTHER_KEY)
        expect(page.locator("main")).to_contain_text(OTHER_APP)
        expect(page.locator("main")).not_to_contain_text("orders")
        page.get_by_role("button", name="Log out").click()
        _enter(page, KEY)
        expect(page.locator("tbody")).to_contain_text("50 messages per partition, then refuse")
        _shoot(page, "queues")
        page.get_by_role("link", name="orders").click()
        expect(page.locator("h1")).to_have_text(f"{APP}: orders")
        cells = page.locator("tbody").first.locator("tr").first.locator("td")
        size = 5 * len(f"{EVIL} 0") + len("later")
        expect(cells).to_have_text(["1", "6", f"{size} B", "1", "packers", f"held w {EVIL}", "3", ""])
        expect(page.locator("main")).to_contain_text("nightly")
        expect(page.locator("main")).to_contain_text(f"{EVIL} 4")
        _shoot(page, "queue")
        page.get_by_role("link", name="All queues").click()
        page.get_by_role("link", name="Dead letters").click()
        expect(page.locator("tbody")).to_contain_text(f"because {EVIL}")
        _shoot(page, "dead-letters")
        page.get_by_role("button", name="Replay").click()
        expect(page.locator("tbody")).to_contain_text("There are no dead letters.")
        assert "taken" not in page.title() and not errors
        browser.close()


def _enter(page: Page, key: str) -> None:
    page.get_by_text("Log in").first.click()
    page.get_by_label("Token").fill(key)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def _shoot(page: Page, name: str) -> None:
    if shots := os.environ.get("HEADGATE_SCREENSHOTS", ""):
        page.screenshot(path=str(Path(shots) / f"{name}.png"), full_page=True)
