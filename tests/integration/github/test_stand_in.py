"""Test that the stand-in behaves like GitHub: its answers match the description, and it does what descriptions omit."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from aiohttp import web

from headgate.testing.clock import DEADLINE_S
from headgate.testing.forges.github import hosts
from headgate.testing.forges.github.acts import FakeGitHubRefused
from headgate.testing.forges.github.model import App, FakeGitHubInstallation, FakeGitHubRepository
from headgate.testing.forges.github.people import GitHub
from headgate.testing.servers.program import free_ports
from tests.integration.github.description import calls


class Ground:
    """Provide a repository with an app, and a client that is the app."""

    def __init__(self, hub: GitHub, client: httpx.AsyncClient) -> None:
        self.hub, self.client = hub, client
        self.repository: FakeGitHubRepository = hub.repository("acme/rocket", {"README": "Hello\n", "a.txt": "1\n"})
        self.app: App = hub.app()
        self.installation: FakeGitHubInstallation = hub.install(self.app, "acme")
        self.ada, self.bob = hub.person("ada", acme__rocket="write"), hub.person("bob", acme__rocket="write")
        self.token = ""

    def jwt(self, **more: Any) -> str:
        now_s = int(self.hub.world.clock.now_s())
        claims = {"iat": now_s, "exp": now_s + 300, "iss": str(self.app.id), **more}
        return jwt.encode(claims, self.hub.keys[self.app.id], algorithm="RS256")

    async def ask(self, method: str, path: str, *, token: str | None = None, **more: Any) -> httpx.Response:
        if not self.token:
            at = f"/app/installations/{self.installation.id}/access_tokens"
            self.token = "-"
            self.token = (await self.ask("POST", at, token=self.jwt())).json()["token"]
        headers = {"Authorization": f"Bearer {token or self.token}", **more.pop("headers", {})}
        return await self.client.request(method, f"{self.hub.url}/api/v3{path}", headers=headers, **more)


@pytest.fixture
async def ground(hub: GitHub) -> AsyncIterator[Ground]:
    async with httpx.AsyncClient(trust_env=False, timeout=DEADLINE_S) as client:
        yield Ground(hub, client)


ROCKET = "/repos/acme/rocket"


@pytest.mark.long
async def test_every_call_answers_as_described(ground: Ground) -> None:
    """Each call succeeds once: the fixture judges its request and answer."""
    hub, ask = ground.hub, ground.ask
    hub.protect(ground.repository, contexts=("gate",), approvals=1, pushers=frozenset({"headgate", "ada"}))
    hub.protect(ground.repository, "release", enforce_admins=True)
    rule = {"strict_required_status_checks_policy": False, "required_status_checks": [{"context": "gate"}]}
    rules = hub.ruleset(ground.repository, {"type": "required_status_checks", "parameters": rule})
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n", "b.txt": "x\n"}, "A title", "A body")
    ground.bob.review(pull)
    ground.bob.comment(pull, "Nice")
    ground.bob.label(pull, "bug")
    ground.bob.status(pull, "other")
    at, issue, sha = f"{ROCKET}/pulls/1", f"{ROCKET}/issues/1", pull.head_sha
    app_jwt = ground.jwt()
    for path in (
        "/app",
        "/app/installations",
        f"/app/installations/{ground.installation.id}",
        f"{ROCKET}/installation",
    ):
        assert (await ask("GET", path, token=app_jwt)).status_code == 200, path
    assert (await ask("GET", "/user", token=hub.token("ada"))).json()["login"] == "ada"
    note = {"path": "a.txt", "start_line": 1, "end_line": 1, "annotation_level": "warning", "message": "Hm"}
    output = {"title": "Summary", "summary": "All good", "annotations": [note]}
    run = (await ask("POST", f"{ROCKET}/check-runs", json={"name": "gate", "head_sha": sha, "output": output})).json()
    made = (await ask("POST", f"{issue}/comments", json={"body": "Hello"})).json()
    requests = [
        ("GET", "/installation/repositories", None),
        ("GET", "/rate_limit", None),
        ("GET", "/users/bob", None),
        ("GET", ROCKET, None),
        ("GET", f"{ROCKET}/collaborators/bob/permission", None),
        ("GET", f"{ROCKET}/branches", None),
        ("GET", f"{ROCKET}/git/commits/{sha}", None),
        ("GET", f"{ROCKET}/rules/branches/main", None),
        ("GET", f"{ROCKET}/rulesets/{rules.id}", None),
        ("GET", f"{ROCKET}/branches/main/protection", None),
        ("GET", f"{ROCKET}/pulls", None),
        ("GET", at, None),
        ("GET", f"{at}/files", None),
        ("GET", f"{ROCKET}/commits/{sha}/pulls", None),
        ("GET", f"{at}/reviews", None),
        ("POST", f"{at}/reviews", {"event": "COMMENT", "body": "Well", "commit_id": sha}),
        ("GET", f"{issue}/comments", None),
        ("GET", f"{ROCKET}/issues/comments/{made['id']}", None),
        ("PATCH", f"{ROCKET}/issues/comments/{made['id']}", {"body": "Good bye"}),
        ("DELETE", f"{ROCKET}/issues/comments/{made['id']}", None),
        ("GET", f"{issue}/labels", None),
        ("POST", f"{issue}/labels", {"labels": ["ready"]}),
        ("DELETE", f"{issue}/labels/ready", None),
        ("POST", f"{ROCKET}/statuses/{sha}", {"state": "success", "context": "gate", "description": "Good"}),
        ("GET", f"{ROCKET}/commits/{sha}/statuses", None),
        ("GET", f"{ROCKET}/commits/{sha}/check-runs", None),
        ("GET", f"{ROCKET}/check-runs/{run['id']}", None),
        ("PATCH", f"{ROCKET}/check-runs/{run['id']}", {"status": "completed", "conclusion": "success"}),
        ("GET", f"{ROCKET}/check-runs/{run['id']}/annotations", None),
        ("GET", at, None),
        ("PATCH", at, {"state": "open"}),
        ("PUT", f"{at}/merge", {"sha": sha, "merge_method": "merge"}),
    ]
    for method, path, body in requests:
        answer = await ask(method, path, json=body) if body is not None else await ask(method, path)
        assert answer.is_success, (method, path, answer.text)
    made_calls = {f"{one.method} {one.template}" for one in hub.server.log if one.status < 300}
    assert set(calls()) - made_calls == {
        "GET /app/hook/deliveries",
        "GET /app/hook/deliveries/{delivery_id}",
        "POST /app/hook/deliveries/{delivery_id}/attempts",
    }  # these have a separate test


async def test_requests_that_the_description_does_not_allow_are_detected(ground: Ground) -> None:
    """Requests that GitHub would reject or ignore are detected."""
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    at, wrong = f"{ROCKET}/statuses/{pull.head_sha}", ground.hub.server.wrong
    assert (await ground.ask("POST", at, json={"state": "good", "context": "gate"})).status_code == 422
    await ground.ask("POST", at, json={"state": "success", "contxt": "gate"})
    assert "{'contxt'}" in wrong.pop()
    await ground.ask("GET", f"{ROCKET}/pulls", params={"stat": "open"})
    assert "{'stat'}" in wrong.pop()
    pull.title = None  # type: ignore[assignment] # which no answer has
    await ground.ask("GET", f"{ROCKET}/pulls/1")
    assert "answer 200: at title" in wrong.pop()
    assert not wrong


async def test_mergeability_is_computed_later(ground: Ground) -> None:
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    first, second = [(await ground.ask("GET", f"{ROCKET}/pulls/1")).json() for _ in range(2)]
    assert (first["mergeable"], first["mergeable_state"]) == (None, "unknown")
    assert (second["mergeable"], second["mergeable_state"]) == (True, "clean")
    ground.ada.push(ground.repository, "main", {"a.txt": "3\n"})
    third, fourth = [(await ground.ask("GET", f"{ROCKET}/pulls/{pull.number}")).json() for _ in range(2)]
    assert (third["mergeable"], fourth["mergeable"], fourth["mergeable_state"]) == (None, False, "dirty")


async def test_a_merge_is_of_the_head_that_was_named(ground: Ground) -> None:
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    old = pull.head_sha
    ground.ada.push(ground.repository, "topic", {"a.txt": "3\n"})
    await ground.ask("GET", f"{ROCKET}/pulls/1")
    answer = await ground.ask("PUT", f"{ROCKET}/pulls/1/merge", json={"sha": old})
    assert answer.status_code == 409
    answer = await ground.ask("PUT", f"{ROCKET}/pulls/1/merge", json={"sha": pull.head_sha})
    assert answer.json()["merged"] and pull.merged
    git = hosts.opened(ground.repository)
    assert [str(p) for p in git[answer.json()["sha"]].parent_ids][1] == pull.head_sha


@pytest.mark.parametrize(("method", "parents"), [("squash", 1), ("rebase", 1), ("merge", 2)])
async def test_each_merge_method_gives_the_commits_that_github_would_make(
    ground: Ground, method: str, parents: int
) -> None:
    ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    ground.ada.push(ground.repository, "topic", {"b.txt": "2\n"})
    ground.ada.push(ground.repository, "main", {"c.txt": "2\n"})
    await ground.ask("GET", f"{ROCKET}/pulls/1")
    answer = await ground.ask("PUT", f"{ROCKET}/pulls/1/merge", json={"merge_method": method})
    tip = hosts.opened(ground.repository)[answer.json()["sha"]]
    assert len(tip.parent_ids) == parents
    assert {entry.name for entry in tip.tree} == {"README", "a.txt", "b.txt", "c.txt"}


async def test_rules_keep_a_merge_out_unless_one_may_bypass_them(ground: Ground) -> None:
    hub = ground.hub
    protection = hub.protect(ground.repository, contexts=("gate", "lint"), approvals=1, conversations=True)
    ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    pull = ground.repository.pulls[1]
    await ground.ask("GET", f"{ROCKET}/pulls/1")
    answer = await ground.ask("PUT", f"{ROCKET}/pulls/1/merge", json={})
    assert answer.status_code == 405
    assert "2 of 2 required status checks are expected." in answer.json()["message"]
    assert "At least 1 approving review is required by reviewers with write access." in answer.json()["message"]
    ground.bob.review(pull)
    ground.bob.status(pull, "lint")
    answer = await ground.ask("PUT", f"{ROCKET}/pulls/1/merge", json={})
    assert answer.json()["message"].endswith('Required status check "gate" is expected.')
    protection.contexts = ("lint",)
    queue = {"type": "merge_queue", "parameters": {}}
    rules = hub.ruleset(ground.repository, queue)
    answer = await ground.ask("PUT", f"{ROCKET}/pulls/1/merge", json={})
    assert answer.json()["message"].endswith("Changes must be made through the merge queue.")
    rules.bypass["headgate"] = "always"
    assert (await ground.ask("PUT", f"{ROCKET}/pulls/1/merge", json={})).status_code == 200


async def test_tokens_expire(ground: Ground) -> None:
    assert (await ground.ask("GET", ROCKET)).status_code == 200
    ground.hub.world.clock.advance(3601)
    assert (await ground.ask("GET", ROCKET)).status_code == 401
    early = ground.jwt(iat=int(ground.hub.world.clock.now_s()) + 7200)
    assert (await ground.ask("GET", "/app", token=early)).status_code == 401


async def test_a_suspended_installation_has_no_tokens(ground: Ground) -> None:
    await ground.ask("GET", ROCKET)
    ground.installation.suspended = True
    assert (await ground.ask("GET", ROCKET)).status_code == 403
    at = f"/app/installations/{ground.installation.id}/access_tokens"
    assert (await ground.ask("POST", at, token=ground.jwt())).status_code == 403


async def test_an_unchanged_answer_costs_no_budget(ground: Ground) -> None:
    first = await ground.ask("GET", ROCKET)
    again = await ground.ask("GET", ROCKET, headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304
    assert again.headers["X-RateLimit-Remaining"] == first.headers["X-RateLimit-Remaining"]
    ground.token = ""
    renewed = await ground.ask("GET", ROCKET, headers={"If-None-Match": first.headers["ETag"]})
    assert renewed.status_code == 200  # the tag was another token's


async def test_limits_of_both_kinds(ground: Ground) -> None:
    await ground.ask("GET", ROCKET)
    key = f"installation {ground.installation.id}"
    ground.hub.limits.exhaust(key)
    answer = await ground.ask("GET", ROCKET)
    assert (answer.status_code, answer.headers["X-RateLimit-Remaining"]) == (403, "0")
    assert answer.json()["message"].startswith("API rate limit exceeded")
    ground.hub.world.clock.advance(3500)
    ground.hub.limits.budgets.clear()
    ground.hub.limits.content_max_a_minute = 2
    ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    answers = [await ground.ask("POST", f"{ROCKET}/issues/1/comments", json={"body": "x"}) for _ in range(4)]
    assert [one.status_code for one in answers] == [201, 201, 201, 403]
    assert answers[-1].headers["Retry-After"] == "60"
    assert answers[-1].json()["message"].startswith("You have exceeded a secondary rate limit")


async def test_renamed_repositories_lead_on(ground: Ground) -> None:
    ground.hub.rename(ground.repository, "moon")
    answer = await ground.ask("GET", ROCKET)
    assert answer.status_code == 301
    assert answer.headers["Location"].endswith(f"/repositories/{ground.repository.id}")


async def test_the_last_page_of_a_list_has_no_next_link(ground: Ground) -> None:
    ground.ada.propose(ground.repository, "topic", {f"f{n}": "" for n in range(100)})
    answer = await ground.ask("GET", f"{ROCKET}/pulls/1/files", params={"per_page": 100})
    assert len(answer.json()) == 100
    assert "next" not in answer.links
    ground.ada.push(ground.repository, "topic", {"one-more": ""})
    answer = await ground.ask("GET", f"{ROCKET}/pulls/1/files", params={"per_page": 100})
    assert "next" in answer.links


async def test_a_pull_request_of_a_deleted_fork_keeps_its_head(ground: Ground) -> None:
    fork = ground.hub.person("eve").fork(ground.repository)
    pull = ground.hub.person("eve").propose(ground.repository, "topic", {"a.txt": "2\n"}, fork=fork)
    assert (await ground.ask("GET", f"{ROCKET}/pulls/1")).json()["head"]["repo"]["full_name"] == "eve/rocket"
    ground.hub.remove_fork(fork)
    answer = (await ground.ask("GET", f"{ROCKET}/pulls/1")).json()
    assert (answer["head"]["repo"], answer["head"]["sha"]) == (None, pull.head_sha)


def _git(*words: str, at: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0", "HOME": "/"}
    return subprocess.run(["git", *words], cwd=at, env=environment, capture_output=True, text=True, check=False)


async def test_git_is_served(ground: Ground, tmp_path: Path) -> None:
    """Clone with a token, fetch the head of a pull request, push: the push merges the pull request."""
    hub = ground.hub
    ground.repository.private = True
    await ground.ask("GET", ROCKET)
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    url = f"{hub.url.replace('//', f'//x-access-token:{ground.token}@')}/acme/rocket.git"
    done = await asyncio.to_thread(_git, "clone", "-q", hub.url + "/acme/rocket", "anonymous", at=tmp_path)
    assert done.returncode != 0
    work = tmp_path / "work"
    for words in (
        ("clone", "-q", url, "work"),
        ("-C", "work", "fetch", "-q", "origin", "refs/pull/1/head"),
        ("-C", "work", "-c", "user.name=A", "-c", "user.email=a@b.c", "merge", "-q", "--no-ff", "FETCH_HEAD"),
        ("-C", "work", "push", "-q", "origin", "HEAD:main"),
    ):
        done = await asyncio.to_thread(_git, *words, at=tmp_path)
        assert done.returncode == 0, done.stderr
    assert pull.merged
    hub.protect(ground.repository, contexts=("gate",))
    (work / "b").write_text("")
    done = await asyncio.to_thread(_git, "push", "-q", "origin", "HEAD~1:refs/heads/other", at=work)
    assert done.returncode == 0, done.stderr
    done = await asyncio.to_thread(_git, "push", "-f", "origin", "HEAD~1:main", at=work)
    assert "GH006" in done.stderr


class Hook:
    """The address of webhooks."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200

    async def take(self, request: web.Request) -> web.Response:
        self.got.append((dict(request.headers), await request.read()))
        return web.Response(status=self.status)

    @property
    def events(self) -> list[str]:
        return [headers["X-GitHub-Event"] for headers, _ in self.got]


@pytest.fixture
async def hook(ground: Ground) -> AsyncIterator[Hook]:
    found, port = Hook(), free_ports(1)[0]
    application = web.Application()
    application.router.add_post("/hook", found.take)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    ground.app.hook_url, ground.app.hook_secret = f"http://127.0.0.1:{port}/hook", "open sesame"
    yield found
    await runner.cleanup()


async def test_everything_that_happens_is_delivered_and_signed(ground: Ground, hook: Hook) -> None:
    ada, bob = ground.ada, ground.bob
    pull = ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    ada.push(ground.repository, "topic", {"a.txt": "3\n"})
    ada.edit(pull, title="Better", body="Depends-On: x")
    ada.set_draft(pull)
    ada.set_draft(pull, False)
    bob.label(pull, "bug")
    bob.label(pull, "bug", off=True)
    bob.comment(pull, "recheck")
    review = bob.review(pull)
    ground.hub.forge.says.dismiss(pull, bob.account, review)
    bob.status(pull, "lint")
    ada.close(pull)
    ada.reopen(pull)
    ada.reset(ground.repository, "topic", None)
    await ground.hub.mail.delivered()
    pulls = ["push", "pull_request", "push"] + ["pull_request"] * 6
    assert hook.events == [
        *pulls,
        "issue_comment",
        "pull_request_review",
        "pull_request_review",
        "status",
        "pull_request",
        "pull_request",
        "push",
        "pull_request",
    ]
    for headers, body in hook.got:
        mac = hmac.new(b"open sesame", body, hashlib.sha256).hexdigest()
        assert headers["X-Hub-Signature-256"] == f"sha256={mac}"


async def test_deliveries_are_lost_doubled_and_come_late(ground: Ground, hook: Hook) -> None:
    mail = ground.hub.mail
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    await mail.delivered()
    hook.got.clear()
    mail.lose(1)
    ground.bob.label(pull, "lost")
    mail.double(1)
    ground.bob.label(pull, "twice")
    mail.hold()
    ground.bob.label(pull, "late")
    ground.bob.comment(pull, "later")
    mail.release(lambda held: held[::-1])
    await mail.delivered()
    assert hook.events == ["pull_request", "pull_request", "issue_comment", "pull_request"]
    first, second = (headers["X-GitHub-Delivery"] for headers, _ in hook.got[:2])
    assert first == second


async def test_failed_deliveries_are_in_the_log_and_can_be_repeated(ground: Ground, hook: Hook) -> None:
    hook.status = 500
    ground.ada.push(ground.repository, "main", {"a.txt": "2\n"})
    await ground.hub.mail.delivered()
    hook.status = 200
    token = ground.jwt()
    listed = (await ground.ask("GET", "/app/hook/deliveries", token=token, params={"status": "failure"})).json()
    assert [(one["event"], one["status_code"]) for one in listed] == [("push", 500)]
    at = f"/app/hook/deliveries/{listed[0]['id']}"
    assert (await ground.ask("GET", at, token=token)).json()["request"]["payload"]["ref"] == "refs/heads/main"
    assert (await ground.ask("POST", f"{at}/attempts", token=token)).status_code == 202
    await ground.hub.mail.delivered()
    assert hook.events == ["push", "push"]


async def test_calls_go_wrong_when_a_test_says_so(ground: Ground) -> None:
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    await ground.ask("GET", f"{ROCKET}/pulls/1")
    ground.hub.fail("PUT", "/repos/{owner}/{repo}/pulls/{pull_number}/merge", done=True)
    assert (await ground.ask("PUT", f"{ROCKET}/pulls/1/merge", json={})).status_code == 502
    assert pull.merged  # although it seemed to fail
    ground.hub.fail("GET", times=2, status=503)
    assert [(await ground.ask("GET", ROCKET)).status_code for _ in range(3)] == [503, 503, 200]
    hangs = ground.hub.fail("GET", hangs=True)
    with pytest.raises(httpx.ReadTimeout):
        await ground.ask("GET", ROCKET, timeout=httpx.Timeout(DEADLINE_S, read=0.05))
    hangs.until.set()


async def test_annotations_come_fifty_at_a_time(ground: Ground) -> None:
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    note = {"path": "a.txt", "start_line": 1, "end_line": 1, "annotation_level": "notice", "message": "Hm"}
    run = {"name": "gate", "head_sha": pull.head_sha}
    output = {"title": "Summary", "summary": "", "annotations": [note] * 51}
    answer = await ground.ask("POST", f"{ROCKET}/check-runs", json={**run, "output": output})
    assert answer.status_code == 422
    answer = await ground.ask("POST", f"{ROCKET}/check-runs", token=ground.hub.token("ada"), json=run)
    assert answer.status_code == 403  # only apps have check runs


async def test_nobody_can_approve_their_own_pull_request(ground: Ground) -> None:
    pull = ground.ada.propose(ground.repository, "topic", {"a.txt": "2\n"})
    with pytest.raises(FakeGitHubRefused, match="approve your own"):
        ground.ada.review(pull)
