"""The pages, in a real browser, of a real gate at work."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page, expect

from headgate.testing.repositories import run_git

from .headgate import Headgate, wait_for
from .test_by_hand import say

SHOTS = os.environ.get("HEADGATE_SCREENSHOTS", "")
"""A directory to leave pictures of the pages in, for people to look at."""


def shoot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS) / f"{name}.png"))


MANY_COLOURS = """async () => {
  const { coloured } = await import("/static/colours.js"), line = document.createElement("pre");
  line.append(coloured("\\x1b[1mred\\x1b[m and plain".repeat(100000)));
  return line.childNodes.length;
}"""
SLOW = """#!/bin/sh
printf '\033[1;31mred\033[0m and plain\033[2J\n'
for n in $(seq 3000); do echo "tick $n"; sleep 0.1; done
"""


def test_the_status_moves_by_itself_and_a_log_is_live(headgate: Headgate, page: Page) -> None:
    repositories = headgate.repositories
    page.goto(headgate.url + "/")
    expect(page.locator("h2", has_text="gate")).to_be_visible()
    expect(page.locator("#link")).to_have_text("live")
    repositories.propose("code/api", "evil", {"HOLD": "1\n"}, "<img src=x onerror=document.title='hacked'>")
    repositories.approve("code/api", "evil")
    item = page.locator(".item", has_text="onerror").first
    expect(item).to_be_visible()
    expect(item.locator(".job .name").first).to_have_text("unit")
    shoot(page, "status")
    repositories.abandon("code/api", "evil")
    expect(page.locator(".item")).to_have_count(0)
    assert "hacked" not in page.title()


def test_a_log_streams_while_it_is_written(headgate: Headgate, page: Page) -> None:
    repositories = headgate.repositories
    repositories.write("config", {"jobs/unit": SLOW})
    run_git("commit", "-q", "-m", "Slow", at=repositories.work("config"))
    run_git("push", "-q", "origin", "master", at=repositories.work("config"))
    repositories.propose("code/api", "slow", {"a": "1\n"}, "Take a while")
    page.goto(headgate.url + "/")
    page.locator(".job a", has_text="unit").first.click()
    log = page.locator("#log")
    expect(log).to_contain_text("tick 3")
    expect(page.locator("h1")).to_contain_text("running")
    expect(log).to_contain_text("tick 12")
    expect(log.locator(".ink1.bold")).to_have_text("red")
    expect(log).to_contain_text("red and plain")
    assert page.evaluate(MANY_COLOURS) == 200_000, "more than a call may have arguments"
    page.get_by_label("Find in log").fill("RED AND")
    expect(log.locator("mark")).to_have_text("red and")
    page.get_by_label("Find in log").fill("")
    expect(log.locator(".ink1.bold")).to_have_text("red")
    shoot(page, "build")
    repositories.abandon("code/api", "slow")
    expect(log).to_contain_text("cancelled")
    wait_for("the build is history", lambda: headgate.get("/api/tenant/example/builds?complete=true"))
    page.goto(headgate.url + "/t/example/builds")
    expect(page.locator("tbody tr").first).to_contain_text("unit")
    shoot(page, "builds")


def test_what_is_held_is_on_its_page_and_on_that_of_the_build(headgate: Headgate, page: Page) -> None:
    wait_for("the pipelines are known", lambda: headgate.get("/api/tenant/example/pipelines"))
    words = ("autohold", "code/api", "unit", "--url", headgate.url, "--reason", "<b>why</b> does it break?")
    assert say(headgate, *words)[0] == 0
    commit = headgate.repositories.propose("code/api", "broken", {"BROKEN": "x\n"})
    wait_for("it has failed", lambda: "Build failed" in headgate.repositories.note("code/api", commit))
    page.goto(headgate.url + "/t/example/autoholds")
    row = page.locator("tbody tr").first
    for told in ("code/api", "unit", "1 of 1", "<b>why</b> does it break?", "until"):
        expect(row).to_contain_text(told)
    shoot(page, "autoholds")
    row.locator("li a").click()
    page.get_by_role("link", name="yes: what it used is kept").click()
    expect(page.locator("h1")).to_have_text("Autoholds")
