"""Test logins with a real OpenID provider, in a real browser, and the actions of people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headgate.testing.repositories import Repositories
from headgate.testing.servers.openid import INSTALLED, openid, pages
from headgate.testing.servers.program import free_ports
from tests.e2e.conftest import UNIT
from tests.integration.conftest import PIPELINES, TENANTS

from .headgate import SETTINGS, Headgate
from .test_pages import shoot

RULES = """
- authorization-rule: {name: operators, conditions: [{groups: ops}]}
- authorization-rule: {name: members, conditions: [{groups: members}]}
"""
PROTECTED = f"{RULES}{TENANTS}    admin-rules: [operators]\n    access-rules: [members]\n"
PEOPLE = {"ann": ["ops"], "bob": ["members"], "eve": []}

pytestmark = pytest.mark.skipif(not INSTALLED, reason="oidc-provider is not installed: `make tests/node/node_modules`")


@pytest.fixture
def protected(tmp_path: Path) -> Iterator[Headgate]:
    """Provide a gate whose one tenant is visible to members, and administered by operators."""
    (port,) = free_ports(1)
    here = f"http://127.0.0.1:{port}"
    with openid(tmp_path, [pages(here)], PEOPLE) as issuer:
        repositories = Repositories(tmp_path)
        repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
        repositories.create("code/api", {"README": "api\n"})
        repositories.create("code/lib", {"README": "lib\n"})
        section = f"[auth people]\ndriver = OpenIDConnect\nissuer_id = {issuer}\nclient_id = gate\n"
        settings = (
            SETTINGS.replace("port = 0", f"port = {port}") + section + "scope = openid profile groups\nrealm = us\n"
        )
        running = Headgate(repositories, PROTECTED, settings=settings)
        running.start()
        yield running
        running.stop()


def log_in(page: Page, who: str) -> None:
    """Log in from a page with the login menu, through the provider's own pages."""
    page.locator("details.login summary").click()
    page.locator("details.login").get_by_role("link", name="Log in with us").click()
    page.locator("input[name=login]").fill(who)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.locator("button[type=submit]").click()  # the claims that the gate may receive


def log_in_again(page: Page, who: str) -> None:
    """Log in as somebody else, whom the provider asks again."""
    provider = [one for one in page.context.cookies() if one["name"].startswith("_")]
    assert provider, "the provider knows who logged in before"
    page.context.clear_cookies()
    page.reload()
    log_in(page, who)


def takes_part(gate: Headgate, page: Page) -> None:
    """Use buttons, each of which asks for confirmation and states the consequences."""
    gate.repositories.propose("code/api", "17", {"HOLD": "1\n"}, "Wait for ever")  # as forges name them
    gate.repositories.approve("code/api", "17")
    pipeline = page.locator(".pipeline", has=page.locator("h2", has_text="gate"))
    item, dialog = pipeline.locator(".item", has_text="Wait for ever"), page.get_by_role("dialog")
    item.get_by_role("link", name="unit").click()
    expect(page.locator("#log")).to_contain_text("testing git.example/code/api")
    page.go_back()
    shoot(page, "login-status")
    item.get_by_role("button", name="Dequeue").click()
    expect(dialog).to_contain_text("Nothing else is tested again.")
    expect(dialog.get_by_label("Reason")).to_be_focused()
    shoot(page, "login-dialog")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(item.get_by_role("button", name="Dequeue")).to_be_focused()
    item.get_by_role("button", name="Dequeue").click()
    dialog.get_by_label("Reason").fill("it waits <i>for ever</i>")
    dialog.get_by_role("button", name="Dequeue it").click()
    expect(item).to_have_count(0)
    page.get_by_role("button", name="Close gate").click()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_visible()
    dialog.get_by_label("Reason").fill("a release")
    dialog.get_by_role("button", name="Close").click()
    expect(pipeline.locator(".closed")).to_contain_text("a release")
    page.get_by_role("button", name="Open gate").click()
    dialog.get_by_role("button", name="Open").click()
    expect(pipeline.locator(".closed")).to_be_empty()
    expect(page.get_by_role("button", name="Reconfigure")).to_be_hidden()
    page.goto(f"{gate.url}/t/example/actions")
    for n, (verb, why) in enumerate((("open", ""), ("close", "a release"), ("dequeue", "it waits <i>for ever</i>"))):
        row = page.locator("tbody tr").nth(n)
        for text in ("ann (people)", verb, why, "done"):
            expect(row).to_contain_text(text)
    shoot(page, "login-audit")
    page.goto(f"{gate.url}/t/example/status")


ELSEWHERE = """async (url) => {
  const said = {}, place = `${url}/api/tenant/example`;
  const asked = (path, more) => fetch(path, more).then((answer) => answer.text(), () => "refused");
  const credentials = "include", headers = { "Content-Type": "application/json" }, body = "{}", method = "POST";
  said.read = await asked(`${place}/status`, { credentials });
  said.token = await asked(`${url}/api/login`, { credentials });
  said.write = await asked(`${place}/state`, { method, credentials, headers, body });
  await asked(`${place}/state`, { method, mode: "no-cors", credentials, body });
  await asked(`${url}/logout`, { method, mode: "no-cors", credentials, body });
  said.events = await new Promise((done) => {
    const events = new EventSource(`${place}/events`, { withCredentials: true });
    events.onopen = () => done("open");
    events.onerror = () => done("refused");
  });
  said.socket = await new Promise((done) => {
    const socket = new WebSocket(`${place.replace("http", "ws")}/console-stream`);
    socket.onopen = () => socket.send(JSON.stringify({ uuid: "a".repeat(32) }));
    socket.onclose = (event) => done(event.code);
  });
  return said;
}"""


def is_elsewhere(gate: Headgate, page: Page) -> None:
    """Open a page on another port of the same host, for which the browser sends the cookie, as for the same site."""
    (port,) = free_ports(1)
    there = f"http://127.0.0.1:{port}/"
    page.route(there, lambda route: route.fulfill(body="<p>Elsewhere</p>", content_type="text/html"))
    page.goto(there)
    answers = page.evaluate(ELSEWHERE, gate.url)
    assert {name: answers[name] for name in ("read", "token", "write", "events")} == dict.fromkeys(
        ("read", "token", "write", "events"), "refused"
    ), answers
    assert answers["socket"] in (1008, 4000, 1006), answers
    page.goto(f"{gate.url}/t/example/status")


@pytest.mark.long
def test_people_who_log_in_have_the_permissions_that_the_rules_grant(protected: Headgate, page: Page) -> None:
    status = f"{protected.url}/t/example/status"

    page.goto(f"{protected.url}/")
    expect(page.locator("main")).to_contain_text("There is no tenant that you may see.")
    expect(page.locator("main")).not_to_contain_text("example")
    page.goto(status)
    expect(page.get_by_role("alert").last).to_contain_text("Log in to see tenant example.")
    expect(page.locator("main")).not_to_contain_text("gate")
    shoot(page, "login-stranger")
    auth = protected.get("/api/info")["info"]["capabilities"]["auth"]
    issuer = auth["realms"]["us"].pop("authority")
    assert issuer.startswith("http://127.0.0.1:") and auth["default_realm"] == "us" and auth["read_protected"]
    wanted = {"type": "JWT", "driver": "OpenIDConnect", "client_id": "gate", "load_user_info": True}
    assert auth["realms"]["us"] == {**wanted, "scope": "openid profile groups"}, "what a dashboard logs in with"
    log_in(page, "ann")
    expect(page.locator(".who")).to_have_text("ann <b>of the tests</b>")
    assert page.url == status
    expect(page.locator("h2", has_text="gate")).to_be_visible()
    expect(page.locator("#link")).to_have_text("live")
    (cookie,) = [one for one in page.context.cookies(protected.url) if one["name"] == "headgate"]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and cookie["path"] == "/"
    assert page.evaluate("document.cookie") == ""
    takes_part(protected, page)
    is_elsewhere(protected, page)
    cookies = page.context.cookies()
    page.get_by_role("button", name="Close gate").click()
    page.context.clear_cookies(name="headgate")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("too late")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog.get_by_role("alert")).to_contain_text("You are no longer logged in.")
    page.keyboard.press("Escape")
    page.context.add_cookies(cookies)
    protected.kill()
    protected.start()
    page.reload()
    expect(page.locator(".who")).to_have_text("ann <b>of the tests</b>")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("alert").last).to_contain_text("Log in to see tenant example.")
    log_in_again(page, "bob")
    expect(page.locator("h2", has_text="gate")).to_be_visible()
    expect(page.get_by_role("button", name="Enqueue")).to_be_hidden()
    expect(page.get_by_role("button", name="Close gate")).to_be_hidden()
