"""Test what a line of `stream-events` says about where to poll, and how the stream is opened."""

from __future__ import annotations

import json

import pytest

from headgate.adapters.forges.gerrit.server import Server
from headgate.adapters.forges.gerrit.stream import GerritHint, command, hint


@pytest.mark.parametrize(
    ("event", "found"),
    [
        ({"type": "comment-added", "change": {"project": "p", "number": 7, "id": "I1"}}, GerritHint(7, "p")),
        ({"type": "patchset-created", "change": {"project": "p", "number": 7}, "patchSet": {}}, GerritHint(7, "p")),
        ({"type": "ref-updated", "refUpdate": {"project": "p", "refName": "refs/heads/x", "newRev": "a" * 40}},
         GerritHint(0, "p", "refs/heads/x")),
        ({"type": "ref-updated", "refUpdate": {"project": "p", "refName": "x"}}, GerritHint(0, "p", "refs/heads/x")),
        ({"type": "ref-updated", "refUpdate": {"project": "p", "refName": "refs/changes/07/7/meta"}},
         GerritHint(7, "p", "refs/changes/07/7/meta")),
        ({"type": "ref-updated", "refUpdate": {"project": "p", "refName": "refs/changes/odd"}}, None),
        ({"type": "project-created", "projectName": "p", "headName": "refs/heads/main"}, GerritHint()),
        ({"type": "something-new"}, GerritHint()),
        ({"type": "ref-replicated", "project": "p", "ref": "refs/heads/x"}, None),
        ({"type": "ref-replication-done", "project": "p"}, None),
        ({"type": "fetch-ref-replicated", "project": "p"}, None),
        ({"type": "cache-eviction"}, None),
    ],
)  # fmt: skip
def test_a_line_of_the_stream_becomes_a_hint(event: dict[str, object], found: GerritHint | None) -> None:
    assert hint(json.dumps(event).encode() + b"\n") == found


@pytest.mark.parametrize("line", [b"\n", b"{", b"[]", b"\xff\xfe", b'{"type": 1}', b'{"type": "x", "change": 1}'])
def test_an_unreadable_event_causes_a_poll_of_everything(line: bytes) -> None:
    assert hint(line) == GerritHint()


def test_nothing_is_prompted_for_and_no_host_key_is_learned() -> None:
    section = {"server": "review.example", "user": "ci", "password": "s3cret", "sshkey": "/keys/id", "keepalive": "5"}
    words = command(Server.of("review", {**section, "known_hosts": "/etc/known"}))
    options = {words[n + 1] for n, word in enumerate(words) if word == "-o"}
    assert {"BatchMode=yes", "StrictHostKeyChecking=yes", "ServerAliveInterval=5", "IdentitiesOnly=yes"} <= options
    assert {'UserKnownHostsFile="/etc/known"', "GlobalKnownHostsFile=/dev/null"} <= options
    assert words[-3:] == ["--", "review.example", "gerrit stream-events"] and "s3cret" not in " ".join(words)


def test_a_server_cannot_be_an_option_of_ssh() -> None:
    words = command(
        Server.of("review", {"server": "-oProxyCommand=sh", "user": "ci", "password": "x", "baseurl": "http://a"})
    )
    assert words.index("--") < words.index("-oProxyCommand=sh")
