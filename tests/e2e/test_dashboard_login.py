"""Test the login of Zuul's dashboard with the implicit flow: a small client does the same, in a browser, from another
origin than the API, with a real provider."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page

from headgate.testing.repositories import Repositories
from headgate.testing.servers.openid import INSTALLED, openid
from tests.integration.conftest import PIPELINES, TENANTS

from .headgate import SETTINGS, Headgate

RULES = "- authorization-rule: {name: operators, conditions: [{zuul_uid: ann}]}\n"
PROTECTED = f"{RULES}{TENANTS}    admin-rules: [operators]\n    access-rules: [operators]\n"
CLIENT = """<!doctype html><title>dashboard</title><script type="module">
const gate = "GATE", tenant = `${gate}/api/tenant/example`, json = async (url, more) => (await got(url, more)).json();
const got = (url, more) => fetch(url, more).catch((error) => { throw new Error(`${url}: ${error}`); });
async function known() {
  await json(`${gate}/api/info`);
  const { auth } = (await json(`${tenant}/info`)).info.capabilities, realm = auth.realms[auth.default_realm];
  if (realm.driver !== "OpenIDConnect") throw new Error("no way to sign in");
  return { auth, realm, provider: await json(`${realm.authority}/.well-known/openid-configuration`) };
}
const way = ({ realm, provider }, back, more) => `${provider.authorization_endpoint}?${new URLSearchParams({
  client_id: realm.client_id, redirect_uri: location.origin + back, response_type: "id_token token", scope: realm.scope,
  state: sessionStorage.state, nonce: sessionStorage.nonce, ...more })}`;
const isJwt = (token) => {
  const parts = token.split(".");
  try { return parts.length === 3 && JSON.parse(atob(parts[1])) !== null; } catch { return false; }
};
const bearer = (found) => (isJwt(found.access_token) ? found.access_token : found.id_token);
const fragment = (text) => Object.fromEntries(new URLSearchParams(text.slice(1)));

async function back() {
  const found = fragment(location.hash), { auth, realm, provider } = await known();
  const said = { protected: auth.read_protected };
  if (found.state !== sessionStorage.state) throw new Error(JSON.stringify(found));
  if (realm.load_user_info) {
    const headers = { Authorization: `Bearer ${found.access_token}` };
    said.profile = await json(provider.userinfo_endpoint, { headers });
  }
  const headers = { Authorization: `Bearer ${bearer(found)}` };
  const written = { ...headers, "Content-Type": "application/json" };
  said.authorizations = await json(`${tenant}/authorizations`, { headers });
  said.whole = (await got(`${gate}/api/authorizations`, { headers })).status;
  said.status = (await json(`${tenant}/status`, { headers })).pipelines.map((one) => one.name);
  said.refused = await json(`${tenant}/status`);
  const body = JSON.stringify({ pipeline: "gate", change: "none" });
  const enqueue = `${tenant}/project/code/api/enqueue`;
  const asked = fetch(enqueue, { method: "POST", headers: written, body });
  said.write = await asked.then((one) => one.status, () => "refused");
  window.said = said;
}

try {
  if (location.pathname === "/auth_callback") await back();
  else {
    [sessionStorage.state, sessionStorage.nonce] = [crypto.randomUUID(), crypto.randomUUID()];
    location.assign(way(await known(), "/auth_callback"));
  }
} catch (error) { window.said = { error: String(error) }; }
</script><body></body>"""

pytestmark = pytest.mark.skipif(not INSTALLED, reason="oidc-provider is not installed: `make tests/node/node_modules`")


class Dashboard(ThreadingHTTPServer):
    """Serve one page at every address, like Zuul's dashboard."""

    page = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Served(BaseHTTPRequestHandler):
    """Answer every request."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Dashboard)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(self.server.page)))
        self.end_headers()
        self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def there() -> Iterator[Dashboard]:
    """Serve the dashboard from its own origin."""
    with Dashboard(("127.0.0.1", 0), Served) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.fixture
def gate(tmp_path: Path, there: Dashboard) -> Iterator[Headgate]:
    client = {
        "client_id": "gate",
        "application_type": "native",  # which accepts addresses of this machine without TLS
        "redirect_uris": [f"{there.url}/auth_callback"],
        "response_types": ["id_token token"],
        "grant_types": ["implicit"],
        "token_endpoint_auth_method": "none",
    }
    with openid(tmp_path, [client], {"ann": []}) as issuer:
        repositories = Repositories(tmp_path)
        repositories.create("config", {"zuul.yaml": PIPELINES, "jobs/unit": "#!/bin/sh\n"})
        repositories.create("code/api", {"README": "api\n"})
        repositories.create("code/lib", {"README": "lib\n"})
        section = f"[auth people]\ndriver = OpenIDConnect\nissuer_id = {issuer}\nclient_id = gate\nrealm = us\n"
        running = Headgate(repositories, PROTECTED, settings=SETTINGS + section)
        running.start()
        yield running
        running.stop()


@pytest.mark.long
def test_a_dashboard_of_another_origin_logs_in_by_the_implicit_flow(
    gate: Headgate, there: Dashboard, page: Page
) -> None:
    there.page = CLIENT.replace("GATE", gate.url).encode()
    page.goto(f"{there.url}/t/example/status")
    page.locator("input[name=login]").fill("ann")
    page.locator("input[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.locator("button[type=submit]").click()  # the claims that the dashboard may receive
    page.wait_for_url(f"{there.url}/auth_callback**")
    page.wait_for_function("window.said")
    outcome = page.evaluate("window.said")
    assert "error" not in outcome, outcome
    assert outcome["protected"] and outcome["profile"]["preferred_username"] == "ann"
    permissions = outcome["authorizations"]["zuul"]
    assert permissions["admin"] and permissions["scope"] == ["example"] and permissions["permissions"]["enqueue"]
    assert {"check", "gate"} <= set(outcome["status"])
    assert outcome["refused"]["error"] == "MissingAuthError"
    assert outcome["write"] == "refused", "whoever is to write is served at the same address"
    assert outcome["whole"] in (200, 403)
