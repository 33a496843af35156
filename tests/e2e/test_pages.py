"""Test the pages in a real browser with a real gate."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headgate.testing.repositories import run_git
from tests.waiting import wait_for

from .headgate import Headgate
from .test_by_hand import say

SHOTS = os.environ.get("HEADGATE_SCREENSHOTS", "")
"""A directory for screenshots of the pages, for people to look at."""


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
for n in $(seq 15); do echo "tick $n"; sleep 0.3; done
sleep 600
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


def test_a_change_that_failed_in_the_gate_is_not_called_ready(headgate: Headgate, page: Page) -> None:
    repositories = headgate.repositories
    commit = repositories.propose("code/api", "bad", {"BROKEN": "1\n"}, "Break it")
    repositories.approve("code/api", "bad")
    wait_for("it has failed", lambda: "Headgate (gate)" in repositories.note("code/api", commit))
    wait_for("it is history", lambda: headgate.get("/api/tenant/example/buildsets?pipeline=gate&complete=true"))
    page.goto(f"{headgate.url}/t/example/changes")
    row = page.get_by_role("row", name="Break it")
    expect(row.get_by_role("cell").last).to_have_text("✘ FAILURE in gate")
    row.get_by_role("link", name="Break it").click()
    expect(page.locator(".answer")).to_contain_text("The last run of this patchset in gate ended with ✘ FAILURE.")


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


LONG = """#!/bin/sh
seq -f 'line %.0f of many' 1 60000
echo 'needle: <b>the cause</b>'
seq -f 'after %.0f' 1 40000
exit 3
"""


@pytest.mark.long
def test_a_long_log_is_read_where_one_looks(headgate: Headgate, page: Page) -> None:
    """Check that only visible lines are drawn, that the search covers the complete log, and that an address names a
    line."""
    repositories = headgate.repositories
    passed = repositories.propose("code/api", "short", {"b": "1\n"}, "Say little")
    wait_for("it has passed", lambda: "Build succeeded" in repositories.note("code/api", passed))
    repositories.write("config", {"jobs/unit": LONG})
    run_git("commit", "-q", "-m", "Long", at=repositories.work("config"))
    run_git("push", "-q", "origin", "master", at=repositories.work("config"))
    commit = repositories.propose("code/api", "long", {"a": "1\n"}, "Say much")
    wait_for("it has failed", lambda: "Build failed" in repositories.note("code/api", commit))
    place = "/api/tenant/example/builds?complete=true&result=FAILURE"
    uuid = wait_for("its build is history", lambda: headgate.get(place))[0]["uuid"]
    page.goto(f"{headgate.url}/t/example/build/{uuid}")
    log = page.locator("#log")
    expect(page.locator(".why")).to_contain_text("exit status 3")
    expect(page.locator(".before + dd")).to_contain_text("short")
    expect(log.locator(".row.failed").first).to_be_visible()
    expect(log).to_contain_text("after 40000")
    assert log.locator(".row").count() < 400
    page.get_by_label("Find in log").fill("NEEDLE")
    expect(log.locator("mark.here")).to_have_text("needle")
    row = log.locator(".row", has=page.locator("mark.here"))
    expect(row).to_contain_text("needle: <b>the cause</b>")
    number = row.locator(".no").inner_text()
    shoot(page, "long")
    page.goto(f"{headgate.url}/t/example/build/{uuid}#L{int(number) - 1}-{number}")
    page.reload()
    expect(log.locator(".row.named")).to_have_count(2)
    expect(log.locator(".row.named").first).to_contain_text("line 60000 of many")
    page.get_by_label("Times").uncheck()
    expect(log.locator(".row.named .text").last).to_have_text("needle: <b>the cause</b>")
    page.get_by_role("button", name="Fold all").click()
    expect(log.locator(".row", has_text="line 60000 of many")).to_have_count(0)
    page.keyboard.press("f")
    expect(log.locator(".row.failed").first).to_be_visible()


LOG = r"""async () => {
  const { Lines } = await import("/static/lines.js"), said = (text) => `2026-11-23 10:00:00.000 | ${text}\n`;
  const some = [...Array(5000).keys()].map((n) => said(`localhost | ö ${n}`)).join("");
  const text = said("PRE-RUN START: [trusted : config/pre.yaml@master]") + said("PLAY [prepare]")
    + said("TASK [may fail]")
    + said("localhost | FAILED (ignored)") + said("localhost | FAILED") + said("PRE-RUN END: good [pre.yaml]")
    + said("RUN START: [untrusted : api/run.yaml@master]") + said("PLAY [all]") + said("TASK [first]") + some
    + said("TASK [second]") + said("node | UNREACHABLE: no route") + said("PLAY RECAP")
    + said("RUN END: failed [run.yaml]")
    + said("POST-RUN START: [trusted : config/post.yaml@master]") + said("node | FAILED")
    + said("POST-RUN END: failed");
  const bytes = new TextEncoder().encode(text), asked = [];
  const range = async (first, last) => { asked.push([first, last]); return bytes.slice(first, last + 1); };
  const lines = new Lines(range, 40000);
  for (let at = 0; at < bytes.length; at += 777) lines.feed(bytes.slice(at, at + 777));
  const hits = [];
  await lines.find("ö 17", 0, (found) => hits.push(...found), () => true);
  await lines.have(1000, 1010);
  const program = new Lines(range);
  program.feed(new TextEncoder().encode(said("PRE-RUN START: [trusted : config/pre@master]")
    + said("ERROR: harmless here") + said("PRE-RUN END: good [pre]") + said("RUN START: [untrusted : api/test@master]")
    + said("found 0 errors before")
    + said("AssertionError: 6 != 5") + said("FAILED (failures=1)") + said("RUN END: exit status 1 [test]")));
  const many = new Lines(range);
  const end = said("POST-RUN START: [trusted : post.yaml]");
  many.feed(new TextEncoder().encode(said("TASK [again]").repeat(60000) + end));
  return { count: lines.count, failure: lines.at(lines.failure), hits: hits.length, asked: asked.length,
    program: program.at(program.failure), many: [many.count, many.steps.length, many.steps.at(-1).level],
    one: lines.at(1000), whole: text.split("\n")[1000], size: lines.bytes === bytes.length,
    steps: lines.steps.map(({ level, name, failed }) => `${level} ${name}${failed ? " failed" : ""}`) };
}"""


@pytest.mark.long
def test_a_log_too_large_for_memory_is_read_again_in_ranges(headgate: Headgate, page: Page) -> None:
    page.goto(headgate.url + "/")
    found = page.evaluate(LOG)
    assert found["count"] == 9 + 5000 + 7 and found["size"]
    assert found["failure"].endswith("| node | UNREACHABLE: no route"), "neither what was ignored nor what came later"
    assert found["program"].endswith("| AssertionError: 6 != 5"), "a program says why before it ends"
    assert found["hits"] == 1 + 10 + 100 and found["asked"] > 10
    assert found["one"] == found["whole"]
    assert found["many"] == [60001, 20001, 0], "what a job prints does not fill the memory of who reads it"
    assert found["steps"] == [
        "0 pre-run · config/pre.yaml@master",
        "1 prepare",
        "2 may fail failed",
        "0 run · api/run.yaml@master failed",
        "1 all",
        "2 first",
        "2 second failed",
        "0 post-run · config/post.yaml@master failed",
    ]


@pytest.mark.long
def test_a_held_build_is_on_the_page_of_autoholds_and_on_its_own(headgate: Headgate, page: Page) -> None:
    wait_for("the pipelines are known", lambda: headgate.get("/api/tenant/example/pipelines"))
    words = ("autohold", "code/api", "unit", "--url", headgate.url, "--reason", "<b>why</b> does it break?")
    assert say(headgate, *words)[0] == 0
    commit = headgate.repositories.propose("code/api", "broken", {"BROKEN": "x\n"})
    wait_for("it has failed", lambda: "Build failed" in headgate.repositories.note("code/api", commit))
    page.goto(headgate.url + "/t/example/autoholds")
    row = page.locator("tbody tr").first
    for text in ("code/api", "unit", "1 of 1", "<b>why</b> does it break?", "will be released"):
        expect(row).to_contain_text(text)
    shoot(page, "autoholds")
    row.locator("li a").click()
    page.get_by_role("link", name="yes: its work directory and machines are held").click()
    expect(page.locator("h1")).to_have_text("Autoholds")
