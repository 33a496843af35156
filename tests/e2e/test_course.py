"""Test in a real browser what builds wait for, have and say: the timeline of a buildset, comments of jobs on lines."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from headgate.testing.repositories import run_git
from tests.waiting import wait_for

from .headgate import Headgate
from .test_everybody import AXE, AXE_RUN
from .test_pages import shoot

EVIL = "<img src=x onerror=document.title='stolen'>"
CONFIG = """
- semaphore: {name: disk, max: 1}
- job: {name: serve, run: jobs/serve}
- job: {name: after, run: jobs/after, dependencies: [serve], semaphores: disk}
- job: {name: also, run: jobs/after, dependencies: [serve], semaphores: disk}
- job: {name: lint, run: jobs/lint, voting: false}
- project: {name: code/api, check: {jobs: [serve, after, also, lint]}}
"""
JOBS = {
    "jobs/serve": "#!/bin/sh\nheadgate-return zuul.pause=true\n",
    "jobs/after": "#!/bin/sh\nsleep 2\n",
    "jobs/lint": f"""#!/bin/sh
cat > said.json <<'END'
{{"zuul": {{"file_comments": {{
  "shape.py": [{{"line": 2, "message": "this is too long: {EVIL}", "level": "error"}},
               {{"line": 2, "message": "and odd", "level": "warning"}},
               {{"line": 900, "message": "no such line", "level": "info"}}, {{"message": "of the file"}}],
  "elsewhere.py": [{{"line": 1, "message": "not touched", "level": "info"}}]}}}}}}
END
headgate-return --json said.json
exit 1
""",
}


@pytest.mark.long
def test_a_buildset_shows_why_its_builds_waited_and_a_change_shows_line_comments_of_jobs(
    headgate: Headgate, page: Page
) -> None:
    repositories = headgate.repositories
    text = run_git("show", "HEAD:zuul.yaml", at=repositories.work("config"))
    repositories.write("config", {"zuul.yaml": f"{text}\n{CONFIG}", **JOBS})
    run_git("commit", "-q", "-m", "More jobs", at=repositories.work("config"))
    run_git("push", "-q", "origin", "HEAD:master", at=repositories.work("config"))
    wait_for("they are known", lambda: any(j["name"] == "lint" for j in headgate.get("/api/tenant/example/jobs")))
    commit = repositories.propose("code/api", "shape", {"shape.py": "one\ntwo\nthree\n"}, "Shape it")
    wait_for("it has ended", lambda: "Build succeeded" in repositories.note("code/api", commit))
    wait_for("it is history", lambda: headgate.get("/api/tenant/example/buildsets?complete=true"))
    (found,) = headgate.get("/api/tenant/example/buildsets?complete=true")
    buildset = headgate.get(f"/api/tenant/example/buildset/{found['uuid']}")
    builds: dict[str, Any] = {one["job_name"]: one for one in buildset["builds"]}
    course = builds["serve"]["course"]
    assert course["paused_time"] and course["resumed_time"] >= builds["after"]["end_time"]
    assert builds["after"]["course"]["needs"] == ["serve"] and builds["after"]["course"]["semaphores"] == ["disk"]
    assert builds["unit"]["course"]["semaphores"] == [] and builds["after"]["execute_time"]
    first, second = sorted((builds["after"], builds["also"]), key=lambda one: str(one["start_time"]))
    assert first["end_time"] <= second["execute_time"], "one after the other had the semaphore"

    page.goto(f"{headgate.url}/t/example/buildset/{found['uuid']}")
    row = page.locator(".timeline li", has=page.get_by_role("link", name=second["job_name"], exact=True))
    expect(row.locator(".about")).to_have_text(re.compile(r"^after serve · waited \d+s for disk · semaphore disk$"))
    expect(row.locator(".track .waits")).to_have_count(1)
    serving = page.locator(".timeline li", has=page.get_by_role("link", name="serve", exact=True))
    expect(serving.locator(".about")).to_have_text(re.compile(r"^(waited \d+s for machines · )?paused \d+s$"))
    expect(serving.locator(".track .paused")).to_have_count(1)
    looked_at(page, "timeline")

    page.goto(f"{headgate.url}/t/example/build/{builds['lint']['uuid']}")
    comments = page.locator(".comments")
    expect(comments.locator("summary")).to_have_text("5 comments on files")
    expect(comments.locator("tr", has_text="shape.py:2").first).to_contain_text("this is too long: <img src=x")
    looked_at(page, "comments")

    page.goto(f"{headgate.url}/t/example/change?project=code/api&change=shape")
    file = page.locator("details.file", has=page.locator("summary code", has_text="shape.py"))
    expect(file.locator("summary")).to_contain_text("4 job comments")
    beside = file.locator('.line[data-new="2"] + .jobremark')
    expect(beside).to_contain_text("this is too long: <img src=x")
    expect(beside).to_contain_text("lint in check")
    expect(file.locator('.line[data-new="2"] + .jobremark + .jobremark')).to_contain_text("and odd")
    expect(file.locator(".patch > .jobremark")).to_have_text(
        [re.compile("^of the file"), re.compile("^line 900: info")]
    )
    looked_at(page, "change-comments")
    assert page.locator("main img").count() == 0 and "stolen" not in page.title()


def looked_at(page: Page, name: str) -> None:
    """Check it with axe, and for pictures: wide, and on a phone in dark mode."""
    for size, scheme in ((1280, "light"), (768, "dark"), (390, "dark")):
        page.set_viewport_size({"width": size, "height": 900})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # light or dark
        shoot(page, f"{name}-{size}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} at {size}"
    if AXE.exists():
        page.evaluate(AXE.read_text())
        assert not page.evaluate(AXE_RUN)
    page.set_viewport_size({"width": 1280, "height": 900})
