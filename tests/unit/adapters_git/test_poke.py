"""Test which requests are pokes, which project they concern, and how often hints are followed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import subprocess
from importlib.resources import files
from typing import Any

import pytest

from headgate.adapters.git.connection import POKE_MAX_BYTES, Poked, pads
from headgate.adapters.git.poll.watch import Hinted
from headgate.config.operator.model import TenantProject
from headgate.ports.forge import Hint, Ignored, Misdelivered

SECRET, NOW_S = "0123456789abcdef", 1_800_000_000
NAMES = ("api", "code/api", "code/web.git", "größe", 'a"b')
PROJECTS = (
    *(TenantProject(f"git.example/{name}", name, "mine", False) for name in NAMES),
    TenantProject("other.example/code/theirs", "code/theirs", "theirs", False),
)
POKED = Poked("mine", SECRET, lambda: PROJECTS, lambda: NOW_S * 1000)


def signature(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}


def poke_body(repository: Any, at: Any = NOW_S, **more: Any) -> bytes:
    return json.dumps({"repository": repository, "at": at, **more}, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("repository", "project"),
    [
        ("code/api", "code/api"),
        ("/srv/git/code/api.git", "code/api"),
        ("/srv/git/code/api/", "code/api"),
        ("/home/ada/code/api/.git", "code/api"),
        ("/srv/git/old/api.git", "api"),
        ("/srv/git/code/web.git", "code/web.git"),
        ("/srv/größe", "größe"),
        ('/srv/a"b.git', 'a"b'),
    ],
)
def test_a_repository_is_known_by_its_name_or_its_path(repository: str, project: str) -> None:
    body = poke_body(repository, id="7")
    found = POKED.webhook(signature(body), body)
    assert isinstance(found, Hint) and found.project == f"git.example/{project}"
    assert POKED.webhook(signature(body), body) == found  # the same one again
    another = poke_body(repository, id="8")
    again = POKED.webhook(signature(another), another)
    assert isinstance(again, Hint) and again.id != found.id


@pytest.mark.parametrize("repository", ["", "/", "xapi", "/srv/git/code/theirs.git", "../../etc/passwd", "api/../x"])
def test_a_poke_about_a_repository_of_no_tenant_is_ignored(repository: str) -> None:
    body = poke_body(repository)
    assert isinstance(POKED.webhook(signature(body), body), Ignored)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (poke_body("api"), {}, 401),
        (poke_body("api"), {"x-hub-signature-256": "sha256="}, 401),
        (poke_body("api"), {"x-hub-signature-256": "ü\udcff"}, 401),
        (poke_body("api"), signature(poke_body("api"), "0123456789abcdeg"), 401),
        (poke_body("api"), signature(poke_body("code/api")), 401),
        (poke_body("api", NOW_S - 301), signature(poke_body("api", NOW_S - 301)), 401),
        (poke_body("api", NOW_S + 301), signature(poke_body("api", NOW_S + 301)), 401),
        (poke_body("api", "now"), signature(poke_body("api", "now")), 400),
        (poke_body(5), signature(poke_body(5)), 400),
        (b"", signature(b""), 400),
        (b"\xff" * 9, signature(b"\xff" * 9), 400),
        (b"[" * POKE_MAX_BYTES, signature(b"[" * POKE_MAX_BYTES), 400),
        (b" " * (POKE_MAX_BYTES + 1), signature(b" " * (POKE_MAX_BYTES + 1)), 413),
    ],
)
def test_an_invalid_poke_is_refused(body: bytes, headers: dict[str, str], status: int) -> None:
    with pytest.raises(Misdelivered) as refused:
        POKED.webhook(headers, body)
    assert refused.value.status == status
    assert SECRET not in str(refused.value)


RFC_4231 = (
    ("\x0b" * 20, "Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
    ("Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
)


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize(
    ("secret", "body", "wanted"),
    [
        *RFC_4231,
        *(
            (secret, "{}", hmac.new(secret.encode(), b"{}", hashlib.sha256).hexdigest())
            for secret in ("6\\%s $(x)'\"`" * 2, "k" * 64, "long" * 40, "größe" * 5)
        ),
    ],
)
def test_the_hook_signs_as_the_standard_says(shell: str, secret: str, body: str, wanted: str) -> None:
    text = (files("headgate.adapters.git") / "poke.sh").read_text()
    start, end = text.index("signed() {"), text.index("# Further words")
    inner, outer = pads(secret)
    script = f"inner='{inner}' outer='{outer}'\n{text[start:end]}\nsigned \"$1\"\n"
    done = subprocess.run([shell, "-c", script, shell, body], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == wanted


async def test_a_flood_of_hints_causes_one_poll_and_later_hints_one_more() -> None:
    hinted, stirred = Hinted(rest_s=0.02), asyncio.Event()
    for number in range(500):
        hinted.add(str(number), stirred)
    assert stirred.is_set()
    stirred.clear()
    assert len(hinted.taken()) == 500
    for number in range(500):
        hinted.add(str(number), stirred)
    assert not stirred.is_set()  # the previous poll has only begun
    async with asyncio.timeout(30):
        await stirred.wait()
    stirred.clear()
    hinted.add("late", stirred)
    assert len(hinted.taken()) == 501 and hinted.taken() == ()


async def test_a_hint_that_a_poll_has_answered_causes_no_further_poll() -> None:
    hinted, stirred = Hinted(rest_s=0.01), asyncio.Event()
    hinted.taken()
    hinted.add("one", stirred)
    assert hinted.taken() == ("one",)  # it was polled for another reason
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await stirred.wait()
    hinted.add("two", None)
    assert not stirred.is_set() and hinted.taken() == ("two",)
