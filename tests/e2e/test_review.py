"""Test the review of a change of plain git in a real browser: its differences, remarks on lines, the approval."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from headgate.testing.repositories import Repositories, run_git
from headgate.testing.servers.openid import INSTALLED, openid, pages
from headgate.testing.servers.program import free_ports
from tests.e2e.conftest import UNIT
from tests.integration.conftest import PIPELINES, TENANTS
from tests.waiting import wait_for

from .headgate import SETTINGS, Headgate
from .test_everybody import AXE, AXE_RUN, SIZES
from .test_logging_in import log_in, log_in_again
from .test_pages import shoot

RULES = """
- authorization-rule: {name: approvers, conditions: [{groups: approvers}]}
- authorization-rule: {name: members, conditions: [{groups: members}]}
- role: {name: approver, permissions: {approve: true, comment: true, enqueue: true}}
- role: {name: member, permissions: {comment: true}}
"""
OPEN = f"{RULES}{TENANTS}    role-mappings: {{approvers: [approver], members: [member]}}\n"
PEOPLE = {"ann": ["approvers"], "bob": ["members"], "eve": []}
EVIL = "<img src=x onerror=\"document.title='stolen'\">"

pytestmark = pytest.mark.skipif(not INSTALLED, reason="oidc-provider is not installed: `make tests/node/node_modules`")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Headgate]:
    """Provide a gate that everybody may read, where some may comment, and some may approve."""
    (port,) = free_ports(1)
    here = f"http://127.0.0.1:{port}"
    with openid(tmp_path, [pages(here)], PEOPLE) as issuer:
        repositories = Repositories(tmp_path)
        repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
        code = "".join(f"def number_{n}():\n    return {n}\n\n" for n in range(40))
        repositories.create("code/api", {"README": "api\n", "numbers.py": code, "gone.txt": "old\n", "moved.txt": code})
        repositories.create("code/lib", {"README": "lib\n"})
        section = f"[auth people]\ndriver = OpenIDConnect\nissuer_id = {issuer}\nclient_id = gate\nuid_claim = sub\n"
        settings = SETTINGS.replace("port = 0", f"port = {port}").replace(
            "baseurl = hub", "baseurl = hub\npeople = people"
        )
        running = Headgate(
            repositories, OPEN, settings=settings + section + "scope = openid profile groups\nrealm = us\n"
        )
        running.start()
        yield running
        running.stop()


def propose(gate: Headgate, topic: str) -> str:
    """Propose a change of two commits with every kind of difference, by a hostile author."""
    repositories = gate.repositories
    work = repositories.work("code/api")
    run_git("fetch", "-q", "origin", at=work)
    run_git("checkout", "-q", "--detach", "origin/master", at=work)
    text = (work / "numbers.py").read_text()
    (work / "numbers.py").write_text(text.replace("return 7\n", "return 700  # \u202eexecuted\u202c backwards\n"))
    run_git("commit", "-q", "-am", "Change a number", at=work)
    (work / "logo.bin").write_bytes(bytes(range(256)) * 4)
    (work / "latin.txt").write_bytes("caf\u00e9\n".encode("latin-1"))
    (work / f"{EVIL.replace('/', '')}.txt").write_text(f"{EVIL}\n<script>document.title='stolen'</script>\n")
    (work / "gone.txt").unlink()
    run_git("mv", "moved.txt", "elsewhere.txt", at=work)
    (work / "run").write_text("#!/bin/sh\n")
    (work / "run").chmod(0o755)
    (work / "README").chmod(0o755)
    os.symlink("/etc/passwd", work / "link")
    run_git("add", "-A", at=work)
    run_git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module", at=work)
    run_git("commit", "-q", "--author", f"{EVIL.replace('<', '[')} \u202etfel <a@b>", "-m", f"Add {EVIL}", at=work)
    run_git("push", "-q", "-f", "origin", f"HEAD:refs/for/master/{topic}", at=work)
    return run_git("rev-parse", "HEAD", at=work)


def file(page: Page, name: str) -> Locator:
    return page.locator("details.file", has=page.locator("summary code", has_text=name))


def remarks(gate: Headgate) -> list[dict[str, Any]]:
    found = gate.get("/api/tenant/example/remarks?project=code/api&change=look")
    return list(found["remarks"])


def test_a_change_is_read_spoken_of_and_approved(gate: Headgate, page: Page) -> None:
    commit = propose(gate, "look")
    wait_for("it is known", lambda: gate.get("/api/tenant/example/changes"))
    page.set_viewport_size({"width": 1400, "height": 1000})
    page.goto(f"{gate.url}/t/example/change?project=code/api&change=look")
    expect(page.locator("details.file")).to_have_count(10)
    is_shown(page)
    expect(page.locator(".no button")).to_have_count(0)
    expect(page.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    log_in(page, "bob")
    speaks(page)
    expect(page.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    (remark,) = remarks(gate)
    assert (remark["who"], remark["verified"], remark["file"], remark["line"]) == ("bob", True, "numbers.py", 23)
    log_in_again(page, "ann")
    looks_good(page, gate)
    approves(gate, page, commit)


def test_files_of_later_pages_are_requested_page_by_page(gate: Headgate, page: Page) -> None:
    propose(gate, "look")
    wait_for("it is known", lambda: gate.get("/api/tenant/example/changes"))
    review = gate.get("/api/tenant/example/review?project=code/api&change=look")

    def few(route: Route) -> None:
        """Answer four files per page."""
        number = int(parse_qs(urlsplit(route.request.url).query).get("page", ["0"])[0])
        route.fulfill(json={**review, "files": review["files"][4 * number : 4 * number + 4]})

    page.route("**/api/tenant/example/review?*", few)
    page.goto(f"{gate.url}/t/example/change?project=code/api&change=look")
    for shown, left in ((4, 6), (8, 2)):
        expect(page.locator("details.file")).to_have_count(shown)
        page.get_by_role("button", name=f"Show more files ({left})").click()
    expect(page.locator("details.file")).to_have_count(10)
    expect(page.get_by_role("button", name="Show more files")).to_have_count(0)


def is_shown(page: Page) -> None:
    numbers = file(page, "numbers.py")
    expect(numbers.locator(".line.minus")).to_contain_text("return 7")
    expect(numbers.locator(".line.plus")).to_contain_text("return 700")
    expect(numbers.locator(".line.plus .odd")).to_have_text(["RLO", "PDF"])
    for name, text in (
        ("logo.bin", "Binary"), ("latin.txt", r"caf\xe9"), ("onerror", "<script>document.title"), ("gone.txt", "old"),
        ("moved.txt → elsewhere.txt", "the same"), ("module", "A submodule"), ("link", "/etc/passwd"), ("run", "#!/"),
        ("README", "file (100644) → executable file (100755)"),
    ):  # fmt: skip
        one = file(page, name)
        if one.get_attribute("open") is None:
            one.locator("summary").click()
        expect(one).to_contain_text(text)
    expect(page.locator("main")).to_contain_text("Add <img src=x onerror")
    assert page.locator("main img").count() == 0 and "stolen" not in page.title()
    page.locator("summary", has_text="2 commits").click()
    expect(page.locator("td", has_text="tfel").locator(".odd")).to_have_text("RLO")
    page.get_by_label("Side by side").check()
    expect(numbers.locator(".two").first).to_be_visible()
    page.get_by_label("Side by side").uncheck()
    page.get_by_label("Show").select_option(index=2)
    expect(page.locator("details.file")).to_have_count(1)
    page.get_by_label("Show").select_option(index=0)
    expect(page.locator("details.file")).to_have_count(10)


def speaks(page: Page) -> None:
    knob = file(page, "numbers.py").get_by_role("button", name="Comment on line 23 after")
    knob.click()
    page.get_by_label("Your remark on line 23").fill(f"Why seven hundred? {EVIL}")
    page.get_by_role("button", name="Send").click()
    thread = file(page, "numbers.py").locator(".thread")
    expect(thread).to_contain_text(f"Why seven hundred? {EVIL}")
    expect(thread).not_to_contain_text("unverified")


def approves(gate: Headgate, page: Page, commit: str) -> None:
    thread = file(page, "numbers.py").locator(".thread")
    thread.get_by_role("button", name="Reply").click()
    page.get_by_label("Your remark").fill("It was too small.")
    page.get_by_role("button", name="Send").click()
    expect(thread).to_contain_text("It was too small.")
    thread.get_by_role("button", name="Resolve").click()
    expect(thread).to_contain_text("resolved it")
    page.get_by_role("button", name="Approve", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(commit)
    shoot(page, "review-dialog")
    dialog.get_by_label("Reason").fill("read it")
    dialog.get_by_role("button", name="Approve it").click()
    expect(dialog).to_have_count(0)
    expect(page.locator(".talk")).to_contain_text("approved this commit: read it")
    bare = gate.repositories.hub / "code" / "api"
    wait_for("it lands", lambda: "Landed on master" in gate.repositories.note("code/api", commit))
    lines = run_git("notes", "--ref", "headgate-review", "show", commit, at=bare).splitlines()
    assert [json.loads(line).get("word") for line in lines] == [None, None, None, "approved"]
    assert {json.loads(line)["who"] for line in lines} == {"ann", "bob"}
    (done, *_) = wait_for("what was done is history", lambda: gate.get("/api/tenant/example/actions"))
    assert (done["verb"], done["who"], done["reason"], done["outcome"]) == ("approve", "ann", "read it", "done")


def looks_good(page: Page, gate: Headgate) -> None:
    """Check all pages with axe."""
    wrong = {}
    sizes: dict[str, Any] = {**SIZES, "middle": ({"width": 820, "height": 1000}, "light")}
    for size, (viewport, scheme) in sizes.items():
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{gate.url}/t/example/change?project=code/api&change=look")
        expect(file(page, "numbers.py").locator(".line.plus")).to_be_visible()
        file(page, "numbers.py").locator(".line.plus .no button").click()
        shoot(page, f"review-{size}")
        page.locator(".talk").scroll_into_view_if_needed()
        shoot(page, f"review-{size}-talk")
        if AXE.exists():
            page.evaluate(AXE.read_text())
            if found := page.evaluate(AXE_RUN):
                wrong[size] = found
    assert not wrong, wrong
    page.set_viewport_size({"width": 1400, "height": 1000})
    page.reload()
