"""Logging in with a real OpenID provider, in a real browser, and taking part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from headgate.testing.repositories import Repositories
from headgate.testing.servers.openid import INSTALLED, openid
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
    """A gate whose one tenant is shown to members, and administered by operators."""
    (port,) = free_ports(1)
    here = f"http://127.0.0.1:{port}"
    client = {
        "client_id": "gate",
        "redirect_uris": [f"{here}/login/callback"],
        "token_endpoint_auth_method": "none",
    }
    with openid(tmp_path, [client], PEOPLE) as issuer:
        repositories = Repositories(tmp_path)
        repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": UNIT})
        repositories.create("code/api", {"README": "api\n"})
        repositories.create("code/lib", {"README": "lib\n"})
        said = f"[auth people]\ndriver = OpenIDConnect\nissuer_id = {issuer}\nclient_id = gate\n"
        settings = SETTINGS.replace("port = 0", f"port = {port}") + said + "scope = openid profile groups\nrealm = us\n"
        running = Headgate(repositories, PROTECTED, settings=settings)
        running.start()
        yield running
        running.stop()


def log_in(page: Page, who: str) -> None:
    """From a page that has the door, by way of the provider's own pages."""
    page.locator("details.door summary").click()
    page.locator("details.door").get_by_role("link", name="Log in with us").click()
    page.locator("input[name=login]").fill(who)
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.locator("button[type=submit]").click()  # what the gate may be told


def test_who_logs_in_sees_and_does_what_the_rules_say(protected: Headgate, page: Page) -> None:
    status = f"{protected.url}/t/example/status"

    expect.set_options(timeout=8000)
    page.goto(f"{protected.url}/")
    expect(page.locator("main")).not_to_contain_text("example")
    page.goto(status)
    expect(page.get_by_role("alert").last).to_contain_text("Tenant example is shown to those who log in.")
    expect(page.locator("main")).not_to_contain_text("gate")
    shoot(page, "login-stranger")
    log_in(page, "ann")
    expect(page.locator(".who")).to_have_text("ann <b>of the tests</b>")
    assert page.url == status
    expect(page.locator("h2", has_text="gate")).to_be_visible()
    expect(page.locator("#link")).to_have_text("live")
    (cookie,) = [one for one in page.context.cookies(protected.url) if one["name"] == "headgate"]
    assert cookie["httpOnly"] and cookie["sameSite"] == "Lax" and cookie["path"] == "/"
    assert page.evaluate("document.cookie") == ""
    protected.kill()
    protected.start()
    page.reload()
    expect(page.locator(".who")).to_have_text("ann <b>of the tests</b>")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("alert").last).to_contain_text("Tenant example is shown to those who log in.")
