"""Test the inventory in a browser: search, an object with its history, and only what the token permits."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from headgate.web.inventory.identity import Verifying
from tests.e2e.browser import CHROMIUM, patient
from tests.integration.inventory.test_http import served
from tests.integration.inventory.test_matrix import issuer, token

EVIL = "<img src=x onerror=document.title='taken'>"


def bearer(who: str, partition: str) -> str:
    """Return a new token, which is valid for a minute."""
    return token(sub=who, projects=["blue"], partitions=[partition])["authorization"].removeprefix("Bearer ")


@pytest.mark.long
async def test_an_inventory_is_looked_at_in_a_browser(tmp_path: Path) -> None:
    async with served(Verifying([issuer()])) as web:
        where = {**token(sub="root", projects=["blue"], roles=["admin"]), "headgate-user": "root"}
        assert (await web("PUT", "/v1/partitions", {"partition": {"name": "site"}}, **where))[0] == 200
        many = [{"create": _machine(f"m{n:03}", memory=str(n))} for n in range(60)]
        odd = [{"create": _machine(EVIL, note=EVIL)}, {"create": _machine("red's", project="red")}]
        for steps in (many, odd):
            status, made = await web("POST", "/v1/objects/apply", {"steps": steps, "in_parts": True}, **where)
            assert status == 200 and not made.get("failures")
        uuid = made["objects"][0]["uuid"]
        patch = {"uuid": uuid, "set_properties": {"note": "harmless", "rack": "r1"}, "add_tags": ["new"]}
        assert (await web("POST", "/v1/objects/apply", {"steps": [{"update": patch}]}, **where))[0] == 200
        held = {"search": f"uuid={uuid}", "duration_s": 3600, "note": "to try it"}
        assert (await web("POST", "/v1/leases", held, **where))[1]["state"] == "HELD"
        await asyncio.to_thread(_looked_at, f"{web.root}/", tmp_path)


def _machine(name: str, project: str = "blue", **properties: str) -> dict[str, object]:
    return {"type": "runm.machine", "name": name, "project": project, "properties": properties}


def _looked_at(url: str, tmp_path: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        page = patient(browser.new_page(viewport={"width": 1200, "height": 900}))
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        expect(page.locator("main")).to_contain_text("Enter the partition")
        _enter(page, bearer("eve", "elsewhere"))
        _search(page, "", "site")
        expect(page.get_by_role("alert")).to_contain_text("not open to eve")
        page.get_by_role("button", name="Log out").click()
        _enter(page, bearer("ann", "site"))
        _search(page, "", "site")
        rows = page.locator("tbody").first.locator("tr")
        expect(rows).to_have_count(50)
        page.get_by_role("button", name="More").click()
        expect(rows).to_have_count(61)
        expect(page.locator("main")).not_to_contain_text("red's")
        _search(page, "memory>=58 name=m*", "site")
        expect(rows).to_have_count(2)
        _search(page, "memory>=many", "site")
        expect(page.get_by_role("alert")).to_contain_text("there must be a number")
        _search(page, "tag:new", "site")
        expect(page.locator("main")).to_contain_text("to try it")
        page.get_by_role("link", name=EVIL).first.click()
        expect(page.locator("h1")).to_have_text(EVIL)
        expect(page.locator("del")).to_have_text([EVIL])
        expect(page.locator("main")).to_contain_text("property rack: r1")
        expect(page.locator("main")).to_contain_text("root")
        shot = Path(os.environ.get("SCREENSHOTS", str(tmp_path)))
        page.screenshot(path=shot / "object.png")
        page.get_by_role("link", name="← Inventory").click()
        expect(rows).to_have_count(50)
        page.screenshot(path=shot / "inventory.png")
        assert page.title() == "Inventory · Headgate" and not errors, errors
        browser.close()


def _enter(page: Page, token: str) -> None:
    page.locator("details.login summary").click()
    page.get_by_label("Token").fill(token)
    page.locator("details.login button").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def _search(page: Page, text: str, partition: str) -> None:
    page.get_by_label("Search").fill(text)
    page.get_by_label("Partition").fill(partition)
    page.get_by_role("button", name="Search").click()
