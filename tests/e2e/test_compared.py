"""Test the log of a failed build beside that of the last success: differences are shown, except for those that always
differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, expect

from .test_crowd import Served, page, served, shoot

__all__ = ["page", "served"]

FAILED, PASSED = "past5b2", "past3b2"
LINES = 60_000


def log(root: Path, build: str, *texts: str) -> None:
    """Write the log of a build; no two builds print the same line at the same moment."""
    (root / build).mkdir(parents=True)
    minute = int(build[4]) + 10
    lines = (f"2027-01-15 08:{minute}:{n // 1000:02}.{n % 1000:03} | {text}\n" for n, text in enumerate(texts))
    (root / build / "job-output.txt").write_text("".join(lines))


def printed(build: str, end: str, version: str) -> list[str]:
    """Return the output of a job, with an id, a duration, a process and a path that differ each time."""
    own = f"{int(build[4]) * 7919:08x}cafe"
    head = [
        f"Build {own} began",
        f"fetched requests {version} in 0.{build[4]} s to /tmp/pip-{own}/x",
        f"sshd[1{build[4]}01]: ok",
    ]
    return [*head, *(f"compiling part {n}" for n in range(LINES)), end]


@pytest.mark.long
async def test_a_failure_is_compared_with_the_last_success(served: Served, page: Page) -> None:
    site, url = served
    log(site.logs.root, FAILED, *printed(FAILED, "RUN END: exit status 3", "2.32"), "RESULT: FAILURE")
    log(site.logs.root, PASSED, *printed(PASSED, "RUN END: good", "2.31"), "RESULT: SUCCESS")
    await page.goto(f"{url}/t/example/build/{FAILED}")
    await page.get_by_role("button", name="Compare with the last success").click()
    await expect(page.locator("p.note[role=status]")).to_have_text(re.compile(r"^2 parts differ from the success of "))
    shown = page.locator("#log .row")
    minus, plus = page.locator("#log .row.minus .text"), page.locator("#log .row.plus .text")
    await expect(minus.first).to_have_text(re.compile(r"requests 2\.31 in 0\.3 s"))
    await expect(plus.first).to_have_text(re.compile(r"requests 2\.32 in 0\.5 s"))
    await expect(page.locator("#log .row.head", has_text="lines are the same")).to_have_text(
        re.compile(f"{LINES - 5:,}")
    )
    await shoot(page, "compared")
    await page.keyboard.press("n")
    await expect(page.locator("#log .row.named")).to_contain_text("here")
    await expect(minus).to_have_count(3)
    assert await shown.count() < 400, "what both say is folded"
    await expect(page).to_have_url(re.compile(f"against={PASSED}"))
    await page.get_by_role("button", name="Show 59,995 lines are the same").click()
    await page.get_by_label("Find in log").fill("part 31234")
    await expect(page.locator("mark.here")).to_have_text("part 31234")
    assert await shown.count() < 400, "what is out of sight is not drawn"
    number = page.locator("#log .row", has=page.locator("mark.here")).locator(".no")
    await expect(number).to_have_text("31238")
    await number.click()
    await expect(page.locator("#log .row.named .no")).to_have_text("31238")
    await expect(page.get_by_role("button", name="Compare with")).to_have_attribute("aria-pressed", "false")
    await page.goto(f"{url}/t/example/build/{FAILED}?against={PASSED}")
    await expect(plus).to_have_count(3)
    await page.route(f"**/{PASSED}/job-output.txt", lambda route: route.fulfill(status=404, body="{}"))
    await page.reload()
    await expect(page.locator("p.note.bad")).to_have_text("The log of the last success is no longer available.")


COMPARED = """async ({ there, here }) => {
  const { Numbers, differences } = await import("/static/compare.js"), numbers = new Numbers();
  const [a, b] = [there, here].map((text) => {
    const one = numbers.log(), bytes = new TextEncoder().encode(text);
    for (let at = 0; at < bytes.length; at += 7) one.feed(bytes.slice(at, at + 7));
    return one.lines();
  });
  const { parts, rough } = differences(a, b);
  return { parts: [...parts], rough, sizes: [a.length, b.length] };
}"""
"""Read it in pieces of seven bytes, as a network may deliver them."""


@pytest.mark.long
async def test_values_that_differ_in_every_run_are_ignored_and_versions_are_compared(
    served: Served, page: Page
) -> None:
    _, url = served
    await page.goto(url)

    async def differs(there: str, here: str) -> bool:
        return bool((await page.evaluate(COMPARED, {"there": f"{there}\n", "here": f"{here}\n"}))["parts"])

    same = (
        ("2027-01-15 08:00:00.000 | done", "2027-02-16 09:01:02.345 | done"),
        ("2027-01-15T08:00:00Z up", "2028-11-05T18:40:01Z up"),
        ("Jan  5 08:00:00 host", "Dec 25 18:30:59 host"),
        ("at 937462385afdf23a0ea4b19c", "at 73b8b36b0000000000000000"),
        ("id 5f0c2a4e-8a5b-4f5e-9d0e-0242ac120002", "id 11111111-8a5b-4f5e-9d0e-0242ac120003"),
        ("took 1.2s", "took 10.25s"), ("took 950 ms", "took 3 ms"), ("at 12.5 MB/s", "at 3 MB/s"),
        ("http://127.0.0.1:8080/ is up", "http://127.0.0.1:41423/ is up"), ("localhost:80 x", "localhost:8080 x"),
        ("ö in /tmp/tmpa1/x", "ö in /tmp/tmp_z9/x"), ("sshd[4321]: ok", "sshd[999]: ok"),
        ("pid 77 left", "pid 8 left"), ("object at 0x7f3a", "object at 0x55b0c1"), ("\x1b[31mred\x1b[0m", "red"),
    )  # fmt: skip
    for there, here in same:
        assert not await differs(there, here), (there, here)
    others = (
        ("requests 2.31.0", "requests 2.32.0"), ("test_a[1] PASSED", "test_a[1] FAILED"), ("test_a[1]", "test_a[2]"),
        ("3 failed", "4 failed"), ("exit status 0", "exit status 3"), ("face", "cafe"), ("line 10", "line 11"),
        ("x" * 5000 + "1", "x" * 5000 + "2"),
    )  # fmt: skip
    for there, here in others:
        assert await differs(there, here), (there, here)


@pytest.mark.long
async def test_comparing_any_logs_has_bounded_cost_and_never_calls_different_lines_equal(
    served: Served, page: Page
) -> None:
    _, url = served
    await page.goto(url)

    async def compared(there: list[str], here: list[str]) -> dict[str, Any]:
        texts = {"there": "".join(f"{one}\n" for one in there), "here": "".join(f"{one}\n" for one in here)}
        found: dict[str, Any] = await page.evaluate(COMPARED, texts)
        assert found["sizes"] == [len(there), len(here)]
        a = b = 0
        for at in range(0, len(found["parts"]), 4):
            x, end_there, y, end_here = found["parts"][at : at + 4]
            assert there[a:x] == here[b:y], "what lies between the parts is the same"
            a, b = end_there, end_here
        assert there[a:] == here[b:]
        return found

    assert (await compared([], []))["parts"] == []
    assert (await compared(["a"], []))["parts"] == [0, 1, 0, 0]
    assert (await compared(["a", "b", "c"], ["a", "c"]))["parts"] == [1, 2, 1, 1]
    assert (await compared(["a", "x", "x", "b"], ["a", "x", "x", "x", "b"]))["parts"] == [3, 3, 3, 4]
    moved = [f"word {chr(97 + n % 26)} {chr(97 + n // 26)}" for n in range(400)]
    assert len((await compared(moved, moved[200:] + moved[:200]))["parts"]) == 8, "half of it is where it was"
    many = [f"part {n}" for n in range(60_000)]
    broken = [f"{one}!" if n % 2 else one for n, one in enumerate(many)]
    found = await compared(many, broken)
    assert found["rough"] and len(found["parts"]) <= 4 * 20_000, "no more parts than a page can tell of"
    zeros = [("zero", "one")[n % 2] for n in range(4_000)]
    assert (await compared(zeros, [("one", "zero", "zero")[n % 3] for n in range(4_000)]))["rough"]
    parts = await page.evaluate(MANY)
    assert 0 < parts <= 4 * 20_000, "a log of which every second line differs"


MANY = """async () => {
  const { differences } = await import("/static/compare.js");
  const [there, here] = [1, 2].map((of) => Int32Array.from({ length: 600_000 }, (_, n) => (n % 2 ? of * 1e7 + n : n)));
  return differences(there, here).parts.length;
}"""
"""Use more parts than a function can have arguments."""
