"""Test that private data of a tenant is shown to nobody without a token, at any port, under any name."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import jwt
import pytest
from playwright.sync_api import expect, sync_playwright

from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.databases import etcd
from tests.e2e.browser import CHROMIUM, patient
from tests.e2e.test_processes import Cluster
from tests.waiting import wait_for

from .arena import TENANTS, Arena

RULES = "- authorization-rule: {name: members, conditions: [{groups: members}]}\n"
PRIVATE = f"{RULES}{TENANTS}    access-rules: [members]\n"
BUILD = "b" * 32


def read(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=DEADLINE_S) as answer:
            return answer.status, answer.read(1_000_000)
    except urllib.error.HTTPError as error:
        return error.code, error.read(1_000_000)


OF_THE_TENANT = (
    "status", "events", "builds", "buildsets", f"build/{BUILD}", "build/info", "build/authorizations", "jobs",
    "job/info", "job/x/authorizations", "project/info", "projects", "pipelines", "key/info", "key/info.pub",
    "config-errors", "badge", "changes", "change", "semaphores",
    "labels", "actions", "tenant-status", "build-times", "job-flakiness", "job-flakiness?job_name=unit", "throughput",
    "status/change/info",
    f"build/{BUILD}/logs", "pipeline/gate/project/app/branch/master/freeze-job/info", "buildset/info",
)  # fmt: skip
OF_ALL = (
    "/api/queues",
    "/api/components",
    "/api/connections",
    "/api/problems",
    "/api/troubles",
    "/metrics",
    "/api/actions",
)


@pytest.mark.long
def test_a_private_tenant_is_seen_by_nobody_without_a_token(tmp_path: Path) -> None:
    arena = Arena(tmp_path)
    (tmp_path / "tenants.yaml").write_text(PRIVATE)
    settings = tmp_path / "headgate.conf"
    settings.write_text(settings.read_text().replace("[web]\n", "[web]\nlisten_address = 0.0.0.0\n"))
    with arena:
        url = arena.headgate.url
        arena.neighbours_land()
        token = {"Authorization": f"Bearer {(tmp_path / 'state' / 'token').read_text().strip()}"}
        _, found = read(f"{url}/api/tenant/other/builds?complete=true", token)
        build = json.loads(found)[0]["uuid"]
        shown = [f"/api/tenant/other/{path}" for path in (*OF_THE_TENANT, f"build/{build}", f"build/{build}/logs")]
        shown += [f"/t/other/logs/{build}/{name}" for name in ("job-output.txt", "info", "x/info", "authorizations")]
        shown += ["/t/other/feed.atom", "/api/tenant/other//status", "/api/tenant/%6fther/status", *OF_ALL]
        for path in shown:
            status, answer = read(url + path)
            assert status in (401, 404) and b"unit" not in answer and b"other/app" not in answer, (path, status, answer)
            if status == 404:
                assert path in ("/api/tenant/other//status",), (path, answer)
        for path in ("/health", "/api/tenants"):
            status, answer = read(url + path)
            assert status == 200 and b"other" not in answer, (path, answer)
        for path in (
            f"/api/tenant/other/build/{build}",
            f"/t/other/logs/{build}/job-output.txt",
            *OF_ALL,
            "/api/tenants",
        ):
            assert read(url + path, token)[0] == 200, path
        assert b'"other"' in read(f"{url}/api/tenants", token)[1]
        assert read(f"{url}/api/tenant/example/status")[0] == 200, "what is for everybody is so still"
        assert read(f"{url}/api/tenant/other/info")[0] == 200, "it tells that a token is needed"
        status, answer = read(f"{url}/t/example/logs/{build}/job-output.txt")
        assert status == 404, "by the name of another tenant, neither"
        followed(f"{url}/t/other/logs/{build}/job-output.txt", (tmp_path / "state/token").read_text().strip())
        cross_site_requests(url, token)


def followed(link: str, token: str) -> None:
    """Open a link to a log in the browser of somebody who then logs in."""
    navigation = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for more, status in (({}, 401), ({"Authorization": "Bearer guessed"}, 401)):
        found, body = read(link, {**navigation, **more})
        assert found == status and b"unit" not in body, (found, body)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**CHROMIUM)
        page = patient(browser.new_page())
        page.goto(link)
        expect(page.get_by_role("alert")).to_have_text("Log in to read this log.")
        for entered, seen in (("guessed", "this is not the operator's token"), (token, "RESULT: SUCCESS")):
            page.locator("details.login summary").click()
            page.get_by_label("Token").fill(entered)
            page.locator("details.login button").click()
            expect(page.locator("main")).to_contain_text(seen)
            if entered != token:
                page.get_by_role("button", name="Log out").click()
        browser.close()


def cross_site_requests(url: str, token: dict[str, str]) -> None:
    """Send a request like a page of another site, in the browser of somebody whose token it has."""

    def asks(method: str, origin: str, **more: str) -> tuple[int, dict[str, str]]:
        headers = {"Origin": origin, "Content-Type": "application/json", **more}
        path, body = "/api/tenant/example/reconfigure", b"{}" if method == "POST" else None
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url + path, body, headers, method=method), timeout=DEADLINE_S
            ) as answer:
                return answer.status, {name.lower(): value for name, value in answer.headers.items()}
        except urllib.error.HTTPError as error:
            return error.code, {name.lower(): value for name, value in error.headers.items()}

    assert asks("POST", url, **token)[0] == 200, "its own pages may"
    for origin in ("https://evil.example", "null", f"{url}.evil.example"):
        assert asks("POST", origin, **token)[0] == 403
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            status, headers = asks("OPTIONS", origin, **{"Access-Control-Request-Method": method})
            assert status == 403 and not [name for name in headers if name.startswith("access-control-")], (
                method,
                headers,
            )
        preflight = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
        status, headers = asks("OPTIONS", origin, **preflight)
        allowed = {name: value for name, value in headers.items() if name.startswith("access-control-")}
        assert status == 204 and allowed == {
            "access-control-allow-origin": "*",
            "access-control-allow-methods": "GET, HEAD",
            "access-control-allow-headers": "Authorization",
            "access-control-max-age": "600",
        }, "and nothing that a browser keeps rides along"


@pytest.mark.long
def test_the_port_of_an_executor_shows_logs_to_the_fleet_alone(tmp_path: Path) -> None:
    with etcd(tmp_path / "store") as store, contextlib.ExitStack() as stack:
        cluster = Cluster(tmp_path, f"etcd://127.0.0.1:{store.port}")
        for kind, name in (("scheduler", "s1"), ("merger", "m1"), ("web", "web"), ("executor", "e1")):
            stack.callback(cluster.start(kind, name).stop)
        wait_for("all know that they have joined", lambda: all(cluster.health(n)[0] == 200 for n in cluster.programs))
        cluster.release.touch()

        cluster.approve("first")
        wait_for("it lands", lambda: cluster.landed("first"))
        build = cluster.get("web", "/api/tenant/example/builds?complete=true")[0]["uuid"]
        now = int(time.time())
        claims = {"sub": build, "iat": now, "exp": now + 60}
        forged = [jwt.encode(claims, "a secret that somebody guessed, of 32 bytes", "HS256"), "x", "", "a.b.c"]
        forged.append(jwt.encode(claims, "", "none"))
        for path in (f"/logs/{build}", f"/logs/{build}/job-output.txt", f"/stream/{build}?offset=0", "/metrics"):
            assert read(cluster.url("e1") + path)[0] == 401, path
            for proof in forged:
                headers = {"headgate-fleet": proof, "Authorization": "Bearer x"}
                assert read(cluster.url("e1") + path, headers)[0] == 401, (path, proof)
        files = cluster.get("web", f"/api/tenant/example/build/{build}/logs")
        (log,) = (file for file in files if file["path"] == "job-output.txt")
        status, answer = read(cluster.url("web") + log["url"])
        assert status == 200 and b"testing first" in answer, "the web is of the fleet"
        own = {"Authorization": f"Bearer {cluster.token('e1')}"}
        assert read(f"{cluster.url('e1')}/logs/{build}/job-output.txt", own)[0] == 200
        assert read(f"{cluster.url('e1')}/health/live")[0] == 200
