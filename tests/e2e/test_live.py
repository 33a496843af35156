"""Test that pages stay current: they show how fresh they are, retry, and can be used from the keyboard."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from .crowd import NOW_MS, Availability
from .test_crowd import Served, page, served, shoot

__all__ = ["page", "served"]

ITEM = "(id, item_ahead, more = {}) => ({ id, item_ahead, failing_reasons: [], jobs: [], ...more })"
RESTING = f"""async () => {{
  const {{ ended, itemLeft, rails, resting }} = await import("/static/queue.js"), item = {ITEM};
  const chain = [item("a", null), item("b", "a"), item("x", "b"), item("y", "b"), item("c", "b"), item("d", "c")];
  const drawn = rails(chain), job = (name, more) => ({{ name, dependencies: [], result: null, ...more }});
  const ran = job("build", {{ running: true, start_time: 100, estimated_time: 60, dependencies: [] }});
  const next = job("test", {{ running: false, estimated_time: 30, dependencies: ["build"] }});
  const odd = job("new", {{ running: false, estimated_time: null }});
  const old = item("o", null, {{ jobs: [job("old", {{ result: "SUCCESS" }})] }});
  const one = item("a", null, {{ jobs: [ran, next] }}), short = item("b", "a", {{ jobs: [next] }});
  const broken = item("f", null, {{ jobs: [odd], failing_reasons: ["it fails"] }});
  return {{
    resting: Object.fromEntries(resting(chain)),
    columns: chain.map(({{ id }}) => drawn.get(id).column), up: chain.map(({{ id }}) => drawn.get(id).up),
    through: chain.map(({{ id }}) => drawn.get(id).through), out: chain.map(({{ id }}) => drawn.get(id).out),
    left: [itemLeft(one, [], 110_000), itemLeft(short, [one], 110_000), itemLeft(short, [], 110_000),
      itemLeft(item("z", null, {{ jobs: [odd] }}), [], 0), itemLeft(short, [broken], 110_000)],
    ended: [ended(short, []), ended(old, [one]), ended(old, [broken])],
    round: resting([item("p", "q"), item("q", "p")]).size,
  }};
}}"""
SEMAPHORES = [
    {"name": "only", "global": False, "max": 1, "holders": {"count": 0, "this_tenant": [], "other_tenants": 0}}
]


@pytest.mark.long
async def test_the_graph_of_a_queue_shows_on_which_item_each_item_is_tested(served: Served, page: Page) -> None:
    _, url = served
    await page.goto(f"{url}/t/example/status")
    found: dict[str, Any] = await page.evaluate(RESTING)
    assert found["resting"] == {"a": 5, "b": 4, "x": 0, "y": 0, "c": 1, "d": 0}
    assert found["columns"] == [0, 0, 1, 2, 0, 0], "what fails has its own column, and nothing that follows is in it"
    assert found["up"] == [False, True, True, True, True, True] and found["out"] == [[], [1, 2], [], [], [], []]
    assert found["through"] == [[], [], [0, 2], [0], [], []]
    assert found["left"] == [80_000, 80_000, 30_000, None, 30_000], "what fails ahead is not waited for"
    assert found["ended"] == [False, False, True], "an estimate that has run out ends no job"
    assert found["round"] == 2, "items that name each other are drawn all the same"


@pytest.mark.long
async def test_a_queue_shows_how_many_items_a_failure_resets_and_where_its_window_ends(
    served: Served, page: Page
) -> None:
    _, url = served
    await page.goto(f"{url}/t/example/status")
    gate = page.locator(".pipeline", has=page.locator("h2", has_text="gate"))
    await expect(gate.locator(".item")).to_have_count(60)
    await expect(gate.locator(".edge")).to_have_text("The window ends here: 40 wait until there is room.")
    assert await gate.locator(".item, .edge").nth(20).get_attribute("class") == "edge small"
    await expect(gate.locator(".clock").first).to_have_text(
        re.compile(r"^enqueued \d min ago · lands in .* · 19 on top of it$")
    )
    await gate.locator(".toggle").first.click()
    await expect(gate.get_by_text("If it fails, 19 changes behind it are tested again.")).to_be_visible()
    await page.get_by_label("Which items").select_option("failing")
    await expect(gate.locator(".item")).to_have_count(1)
    await expect(page).to_have_url(re.compile(r"\?show=failing"))
    await page.reload()
    await expect(gate.locator(".item")).to_have_count(1)
    await expect(page).to_have_title(re.compile(r"^✘ \d+ failing · 180 in the queues · example"))
    await page.get_by_label("Which items").select_option("")
    check = page.locator(".pipeline", has=page.locator("h2", has_text="check"))
    await expect(check.locator(".queue .name:visible")).to_have_count(0)
    first = await page.locator(".pipeline h2").first.inner_text()
    assert first == "check", "the busiest comes first"
    await expect(check.locator(".dots .free").first).to_be_attached()
    await shoot(page, "status-graph")


async def refuse(route: Route) -> None:
    await route.abort()


@pytest.mark.long
async def test_every_page_shows_how_long_it_has_received_nothing_and_recovers(served: Served, page: Page) -> None:
    _, url = served
    await page.goto(f"{url}/t/example/builds")
    await expect(page.locator("#link")).to_have_text("live")
    await expect(page.locator("td time").first).to_have_text(re.compile(r"ago$|^in \d+ days$"))
    pages = ("status", "builds", "components", "semaphores", "nodes")
    for name in (*pages, "job/unit", "project/git.example/code/api"):
        await page.route("**/api/**", refuse)
        await page.goto(f"{url}/t/example/{name}")
        await expect(page.locator("#link.lost")).to_have_text("not reached yet, retrying…")
        await page.unroute("**/api/**", refuse)
        await expect(page.locator("#link.live")).to_have_text("live")
    await page.clock.install()
    await page.goto(f"{url}/t/example/semaphores")
    await expect(page.locator("#link")).to_have_text("live")
    await page.route("**/api/**", refuse)
    await page.clock.run_for(9_000)
    await expect(page.locator("#link.lost")).to_have_text(re.compile(r"^last seen \d+ s ago, retrying…$"))
    await page.unroute("**/api/**", refuse)
    await page.clock.run_for(40_000)
    await expect(page.locator("#link.live")).to_have_text("live")


@pytest.mark.long
async def test_a_page_is_not_called_live_while_the_store_is_unavailable(served: Served, page: Page) -> None:
    site, url = served
    store = site.problems.availability
    assert isinstance(store, Availability)
    store.away_since_ms, store.away_why = NOW_MS - 12_000, "connection refused"
    for name in ("status", "builds"):
        await page.goto(f"{url}/t/example/{name}")
        await expect(page.locator("#link.stale")).to_have_text(re.compile("^the store is unreachable: as of .* ago$"))
    store.away_since_ms = None
    await expect(page.locator("#link.live")).to_have_text("live")


@pytest.mark.long
async def test_the_keyboard_moves_along_rows_and_its_help_is_shown(served: Served, page: Page) -> None:
    _, url = served
    await page.goto(f"{url}/t/example/builds")
    await expect(page.locator("tbody tr")).to_have_count(50)
    at = "() => [...document.querySelectorAll('tbody tr')].findIndex((row) => row.contains(document.activeElement))"
    for key, row in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        await page.keyboard.press(key)
        assert await page.evaluate(at) == row
    await page.keyboard.press("/")
    await page.keyboard.type("jk?")
    assert await page.get_by_label("project").input_value() == "jk?", "who types in a field types"
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await shoot(page, "keys")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.long
async def test_the_focus_stays_while_a_table_is_drawn_again(served: Served, page: Page) -> None:
    _, url = served
    rows = {"n": 0}

    async def answer(route: Route) -> None:
        rows["n"] += 1
        await route.fulfill(json=[{**SEMAPHORES[0], "name": f"s{n}"} for n in range(rows["n"] + 2)])

    await page.route("**/api/**/semaphores", answer)
    await page.clock.install()
    await page.goto(f"{url}/t/example/semaphores")
    await page.locator("main input[type=search]").fill("s")
    shown = page.locator("tbody tr")
    await expect(shown).not_to_have_count(1)
    before = await shown.count()
    await page.clock.run_for(6_000)
    await expect(shown).not_to_have_count(before)
    await expect(page.locator("main input[type=search]")).to_be_focused()
    await expect(page.locator("main input[type=search]")).to_have_value("s")
