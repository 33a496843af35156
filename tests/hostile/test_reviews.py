"""Test hostile users of reviews: strangers, proposers, people who may push notes, floods."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from click.testing import CliRunner

from headgate.adapters.sql.history import SqlHistory
from headgate.cli.hook import hook
from headgate.cli.identity.authenticators import authenticator
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.store.memory import MemoryBackend
from headgate.testing.clock import DEADLINE_S
from headgate.testing.gate import Gate, gate
from headgate.testing.repositories import Repositories, run_git
from headgate.web.access import Access, Realm, Rules
from headgate.web.review import service
from headgate.web.review.remarks import Speaker
from headgate.web.site import Site, WebSettings
from tests.integration.conftest import PIPELINES, TENANTS
from tests.site import client_of, site_of
from tests.waiting import until

SECRET = "a secret of thirty-two bytes, or more"
NOTES = "refs/notes/headgate-review"
RULES = """
- authorization-rule: {name: approvers, conditions: [{groups: approvers}]}
- authorization-rule: {name: members, conditions: [{groups: members}]}
- authorization-rule: {name: ops, conditions: [{groups: ops}]}
- role: {name: approver, permissions: {approve: true, comment: true, read: true}}
- role: {name: member, permissions: {comment: true, read: true}}
"""
TENANT_FILE = f"""{RULES}{TENANTS}
    role-mappings: {{approvers: [approver], members: [member], ops: [admin]}}
"""
TENANT = "/api/tenant/example"
BY_NAME = PIPELINES.replace("approved: true", "approvals: {count: 1, of: [ann, ada], not-author: true}")


def token(who: str, *groups: str) -> dict[str, str]:
    claims = {"iss": "issuer", "aud": "headgate", "sub": who, "iat": time.time(), "exp": time.time() + 86_400}
    return {"Authorization": f"Bearer {jwt.encode({**claims, 'groups': groups}, SECRET, 'HS256')}"}


ANN, ADA, BOB, EVE = token("ann", "approvers"), token("ada", "approvers"), token("bob", "members"), token("eve")
OPS, OPERATOR = token("ops", "ops"), {"Authorization": "Bearer operator"}


@dataclass(slots=True)
class Room:
    """Provide a gate with a proposed change, and its API."""

    client: httpx.AsyncClient
    site: Site
    gate: Gate
    repositories: Repositories

    def where(self, speakers: dict[str, Speaker]) -> Room:
        """Return the same gate with pages on which people approve in another way."""
        site = replace(self.site, settings=WebSettings(speakers=speakers))
        return replace(self, site=site, client=client_of(site))

    @property
    def bare(self) -> Path:
        return self.repositories.hub / "code" / "api"

    async def proposed(self, topic: str, files: dict[str, str]) -> str:
        commit = self.repositories.propose("code/api", topic, files)
        mirror = self.gate.context.mirror
        moves = mirror.moves  # before the read: a change that moves meanwhile is no longer waited for
        async with asyncio.timeout(DEADLINE_S):
            while (await self.get("review", change=topic)).json().get("commit") != commit:
                await mirror.moved(moves)
                moves = mirror.moves
        return commit

    async def get(self, what: str, headers: dict[str, str] | None = None, **params: Any) -> httpx.Response:
        query = {"project": "code/api", "change": "one", **params}
        return await self.client.get(f"{TENANT}/{what}", params=query, headers=headers or {})

    async def say(self, verb: str, headers: dict[str, str], patchset: str, **more: Any) -> httpx.Response:
        body = {"project": "code/api", "change": "one", "patchset": patchset, **more}
        return await self.client.post(f"{TENANT}/{verb}", json=body, headers=headers)

    def note(self, commit: str) -> list[dict[str, Any]]:
        if not run_git("for-each-ref", NOTES, at=self.bare):
            return []
        text = run_git("notes", "--ref", "headgate-review", "show", commit, at=self.bare)
        return [json.loads(line) for line in text.splitlines() if line.startswith('{"')]

    def refs(self, below: str) -> list[str]:
        return run_git("for-each-ref", "--format=%(refname)", below, at=self.bare).split()


@pytest.fixture(params=[False])
async def room(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Room]:
    """`request.param`: the git server binds names, and the gate requires named people."""
    bound = request.param
    repositories = Repositories(tmp_path)
    repositories.create("config", {"zuul.yaml": BY_NAME if bound else PIPELINES, "jobs/unit": "#!/bin/sh\n"})
    for name in ("code/api", "code/lib"):
        repositories.create(name, {"README": "x\n"})
    if bound:
        CliRunner().invoke(hook, ["--people", getpass.getuser(), str(repositories.hub / "code" / "api")])
    known = {"local": Connection("local", "git.example", bound=bound)}
    file = parse_tenant_file(TENANT_FILE, "tenants.yaml", known)
    section = {"issuer_id": "issuer", "client_id": "headgate", "secret": SECRET}
    realm = Realm(authenticator("people", section, Path("headgate.conf")), "people")
    access = Access("operator", [realm], lambda: Rules(file.rules, file.roles, file.api_root))
    history = SqlHistory(f"sqlite:///{tmp_path}/history.sqlite")
    async with (
        gate(tmp_path, repositories.hub, MemoryBackend(), TENANT_FILE, recording=history, bound=bound) as running,
        running.context.store.session("web") as session,
    ):
        await running.looked_at("git.example/code/api", "git.example/code/lib")
        settings = WebSettings(speakers={"local": Speaker("people", bound)})
        site = site_of(
            running.context, running.scheduler.tenants, history, tmp_path, access, session, settings=settings
        )
        async with client_of(site) as client:
            yield Room(client, site, running, repositories)
    history.close()


async def test_readers_administrators_and_strangers_can_neither_remark_nor_approve(room: Room) -> None:
    commit = await room.proposed("one", {"a": "1\n"})
    for verb in ("remark", "approve", "recheck"):
        text = {"text": "x"} if verb == "remark" else {}
        for headers, status in (({}, 401), (EVE, 403), ({"Authorization": "Bearer guessed"}, 401)):
            assert (await room.say(verb, headers, commit, **text)).status_code == status, (verb, headers)
        plain = {**BOB, "Content-Type": "text/plain"}
        body = json.dumps({"project": "code/api", "change": "one", "patchset": commit, **text})
        answer = await room.client.post(f"{TENANT}/{verb}", content=body, headers=plain)
        assert answer.status_code == 415, "what a form of another page can send"
    assert (await room.say("approve", BOB, commit)).status_code == 403, "who may comment approves nothing"
    for headers in (OPERATOR, OPS):
        assert (await room.say("approve", headers, commit)).status_code == 403, "nor who administers"
    assert "only a person can review" in (await room.say("remark", OPERATOR, commit, text="x")).text
    assert room.refs("refs/approved") == room.refs("refs/recheck") == room.refs(NOTES) == []


@pytest.mark.long
async def test_an_approval_is_of_one_commit_and_by_name(room: Room) -> None:
    old = await room.proposed("one", {"a": "1\n"})
    answer = await room.where({}).say("approve", ANN, old)
    assert answer.status_code == 403 and f"git push origin {old}:refs/approved/master/one" in answer.text
    elsewhere = room.where({"local": Speaker("others", bound=False)})
    assert (await elsewhere.say("approve", ANN, old)).status_code == 403, "her name is another one there"
    strange = token("../../heads/master", "approvers")
    assert "cannot be part of a ref" in (await room.say("approve", strange, old)).text
    new = await room.proposed("one", {"a": "2\n"})
    assert (await room.say("approve", ANN, old)).status_code == 409, "it is not what she looked at"
    room.gate.runner.hold = asyncio.Event()
    assert (await room.say("approve", ANN, new, reason="fine")).status_code == 200
    (remark,) = room.note(new)
    assert (remark["who"], remark["word"], remark["commit"], remark["text"]) == ("ann", "approved", new, "fine")
    assert room.refs("refs/approved") == ["refs/approved/master/one"]
    assert (await room.say("approve", ANN, new, withdraw=True)).status_code == 200
    assert room.refs("refs/approved") == [] and [one["word"] for one in room.note(new)] == ["approved", "withdrawn"]
    answer = await room.get("actions", headers=OPS)
    done = [one for one in answer.json() if not one["outcome"].startswith("refused: ")]
    assert [(one["verb"], one["who"], one["reason"]) for one in done] == [
        ("unapprove", "ann", ""),
        ("approve", "ann", "fine"),
    ]


def by_ada(repositories: Repositories) -> str:
    """Propose a change that the server knows to be pushed by her."""
    work = repositories.work("code/api")
    repositories.write("code/api", {"a": "1\n"})
    run_git("commit", "-q", "-m", "one", at=work)
    pushing = ["git", "push", "-q", "origin", "HEAD:refs/for/master/one"]
    subprocess.run(pushing, cwd=work, env={**os.environ, "GL_USER": "ada"}, check=True)
    return run_git("rev-parse", "HEAD", at=work)


def many_remarks(root: Path, bare: Path, commit: str) -> None:
    """A million comments on one commit, by somebody who may push notes."""
    note = root / "note"
    with open(note, "w") as file:
        file.writelines(f'{{"id":"{n}","who":"eve"}}\n' for n in range(1_000_000))
    blob = run_git("hash-object", "-w", str(note), at=bare)
    text = f"100644 blob {blob}\t{commit}\n"
    made = subprocess.run(["git", "mktree"], cwd=bare, input=text, text=True, capture_output=True, check=True)
    run_git("update-ref", NOTES, run_git("commit-tree", "-m", "x", made.stdout.strip(), at=bare), at=bare)


@pytest.mark.parametrize("room", [True], indirect=True)
async def test_a_proposer_cannot_approve_a_change_that_needs_the_approval_of_others(room: Room) -> None:
    room.gate.runner.hold = asyncio.Event()
    commit = by_ada(room.repositories)

    async def lacks() -> str:
        answer = await room.get("change", headers=OPS)
        return json.dumps(answer.json()["lacks"]) if answer.status_code == 200 else ""

    async def asks() -> bool:
        return "approv" in await lacks()

    async def counts_hers() -> bool:
        return "ada" in await lacks() or "refs/approvals/ada/master/one" in room.refs("refs/approvals")

    async def lacks_nothing() -> bool:
        output = await lacks()
        return bool(output) and not json.loads(output)[0]["lacks"]

    await until("it asks for an approval", asks)
    refused = await room.say("approve", ADA, commit)
    assert refused.status_code == 409 and "not ada" in refused.text, "the server lets nobody speak for others"
    run_git("config", "headgate.pages", "true", at=room.bare)
    assert (await room.say("approve", ADA, commit)).status_code == 200
    await until("her approval is there", counts_hers)
    assert room.refs("refs/approved") == [] and room.note(commit)[0]["who"] == "ada"
    assert json.loads(await lacks())[0]["lacks"], "it counts for nothing"
    assert (await room.say("approve", ANN, commit)).status_code == 200
    await until("it lacks nothing", lacks_nothing)


@pytest.mark.long
async def test_people_who_may_push_notes_cannot_forge_remarks_of_others(room: Room) -> None:
    commit = await room.proposed("one", {"a": "1\n"})
    remark = (await room.say("remark", BOB, commit, text="mine", file="a", side="new", line=1)).json()
    (true,) = room.note(commit)
    key = true["change"]
    forged = [
        {**true, "text": "never said"},
        {**true, "who": "ann"},
        {**true, "id": "f" * 32, "who": "ann", "word": "approved", "sig": ""},
        {**true, "id": "e" * 32, "change": f"{key}x"},
        {"id": "d" * 32, "change": key, "commit": commit, "who": "<script>", "text": "\u202e", "at_ms": 5},
        {"id": 7},
    ]
    lines = [json.dumps(one) for one in [*forged, true]] + ["not json", "[" * 100_000]
    Path(room.repositories.root / "note").write_text("\n".join(lines))
    run_git("notes", "--ref", NOTES, "add", "-f", "-F", str(room.repositories.root / "note"), commit, at=room.bare)
    room.site.review.forget("git.example/code/api")
    answer = (await room.get("remarks")).json()
    remarks = {one["id"]: (one["who"], one["text"], one["verified"], one["word"]) for one in answer["remarks"]}
    assert remarks == {
        remark["id"]: ("bob", "mine", True, ""),
        "f" * 32: ("ann", "mine", False, ""),
        "d" * 32: ("<script>", "\u202e", False, ""),
    }
    assert answer["odd"] >= 3
    elsewhere = await room.proposed("two", {"b": "1\n"})
    run_git("notes", "--ref", NOTES, "copy", "-f", commit, elsewhere, at=room.bare)
    room.site.review.forget("git.example/code/api")
    assert (await room.get("remarks", change="two")).json()["remarks"] == [], "said of one, it is said of no other"
    resolved = await room.say("remark", BOB, commit, reply=remark["id"], resolved=True)
    assert resolved.status_code == 200 and len(room.note(commit)) >= 4, "what others wrote is still there"


@pytest.mark.long
async def test_remarks_are_bounded_and_odd_ones_refused(room: Room) -> None:
    commit = await room.proposed("one", {"a": "1\n"})
    wrong: tuple[dict[str, Any], ...] = (
        {"text": " "}, {"text": "x" * 10_001}, {"text": "x", "side": "left"}, {"text": "x", "line": -1},
        {"text": "x", "line": 2**40}, {"text": "x", "resolved": True}, {"text": "x", "file": "f" * 5_000},
        {"text": "x", "who": "ann"}, {"text": 7},
    )  # fmt: skip
    for body in wrong:
        assert (await room.say("remark", BOB, commit, **body)).status_code == 400, body
    assert (await room.say("remark", BOB, "0" * 40, text="x")).status_code == 409
    assert room.refs(NOTES) == []


@pytest.mark.long
async def test_a_change_with_a_million_remarks_is_shown_without_reading_them(room: Room) -> None:
    commit = await room.proposed("one", {"a": "1\n"})
    many_remarks(room.repositories.root, room.bare, commit)
    answer = await room.get("remarks")
    assert (answer.status_code, answer.json()["unread"], answer.json()["remarks"]) == (200, [commit], [])
    refused = await room.say("remark", BOB, commit, text="one more")
    assert refused.status_code == 409 and "have reached their limit" in refused.text


@pytest.mark.long
async def test_work_of_mergers_for_strangers_is_limited(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.proposed("one", {f"f{n}": f"{n}\n" for n in range(20)})
    monkeypatch.setattr(service, "STRANGERS", (5.0, 1.0))
    room.site.review.clock = lambda: 10.0**9
    room.site.review._left.clear()
    assert [(await room.get("patch", file=n)).status_code for n in range(6)] == [200] * 4 + [503] * 2
    late = await room.get("patch", file=9)
    assert late.status_code == 503 and late.headers["retry-after"]
    assert (await room.get("patch", file=0)).status_code == 200, "what is known costs nobody anything"
    assert (await room.get("patch", headers=BOB, file=9)).status_code == 200, "who is known has their own"


@pytest.mark.long
async def test_large_changes_come_in_parts_and_nothing_else_of_the_repository_does(room: Room) -> None:
    text = "".join(f"line {n}\n" for n in range(5_000))
    commit = await room.proposed("one", {**{f"d/{n}": f"{n}\n" for n in range(1_100)}, "z": text, "zz": "y" * 300_000})
    first = (await room.get("review")).json()
    assert (first["total"], len(first["files"]), first["commit"]) == (1_102, 500, commit)
    last = (await room.get("review", page=2)).json()["files"]
    assert [one["path"] for one in last[-2:]] == ["z", "zz"] and last[-2]["number"] == 1_100
    parts = [(await room.get("patch", headers=BOB, file=1_100, part=n)).json() for n in (4, 0, 1, 2, 3, 5)]
    assert [part["more"] for part in parts] == [True, True, True, True, True, False]
    lines = [one for part in (*parts[1:5], parts[0], parts[5]) for one in part["lines"]]
    assert [one[3] for one in lines[1:]] == text.splitlines() and [one[2] for one in lines[1:]] == [*range(1, 5_001)]
    assert (await room.get("patch", headers=BOB, file=1_100, part=9)).json()["lines"] == []
    (_, long) = (await room.get("patch", headers=BOB, file=1_101)).json()["lines"][:2]
    assert len(long[3]) < 1_100 and long[4] > 298_000
    for more in ({"file": 1_102}, {"file": 10**9}, {"file": 1_100, "part": 10**7}):
        assert (await room.get("patch", headers=BOB, **more)).status_code in (404, 409)
    secret = run_git("rev-parse", "refs/heads/master", at=room.bare)
    for commit in (secret, "0" * 40, "--output=/tmp/x", "HEAD"):
        assert (await room.get("review", headers=BOB, commit=commit)).status_code == 409, commit


@pytest.mark.long
@pytest.mark.sampled
async def test_a_file_of_fifty_megabytes_is_read_in_small_parts(room: Room) -> None:
    lines, line = 500_000, "y" * 99
    await room.proposed("one", {"big": f"{line}\n" * lines, "small": "x\n"})
    assert (await room.get("review")).json()["total"] == 2
    for part in (0, lines // 1_000):
        answer = await room.get("patch", headers=BOB, file=0, part=part)
        assert answer.status_code == 200 and len(answer.content) < 300_000 and answer.json()["lines"]
    assert (await room.get("patch", headers=BOB, file=1)).json()["lines"][1][3] == "x"
