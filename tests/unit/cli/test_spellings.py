"""Test that the command line accepts the options of Zuul's client, and sends the same requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.base.errors import UserError
from headgate.cli.main import group
from tests.unit.cli.test_asking import Server, server

__all__ = ["server"]  # a fixture
T = "/api/tenant/t"
CALLS: list[tuple[str, str, str, dict[str, Any] | None]] = [
    ("autohold --project p --job j --reason r --count 2", "POST", f"{T}/project/p/autohold",
     {"job": "j", "count": 2, "reason": "r", "node_hold_expiration": None}),
    ("autohold --project p --job j --reason r --change 1,1 --count 1", "POST", f"{T}/project/p/autohold",
     {"job": "j", "count": 1, "reason": "r", "node_hold_expiration": None, "change": "1,1"}),
    ("autohold --project p --job j --reason r --ref x --node-hold-expiration 9", "POST", f"{T}/project/p/autohold",
     {"job": "j", "count": 1, "reason": "r", "node_hold_expiration": 9, "ref": "x"}),
    ("autohold-list", "GET", f"{T}/autohold", None),
    ("autohold-info 0000000001", "GET", f"{T}/autohold/0000000001", None),
    ("autohold-delete 0000000001", "DELETE", f"{T}/autohold/0000000001", None),
    ("enqueue --pipeline g --project p --change 1,1", "POST", f"{T}/project/p/enqueue",
     {"pipeline": "g", "change": "1,1", "reason": ""}),
    ("enqueue-ref --pipeline g --project p --ref refs/heads/m --oldrev a --newrev b", "POST", f"{T}/project/p/enqueue",
     {"pipeline": "g", "ref": "refs/heads/m", "oldrev": "a", "newrev": "b", "reason": ""}),
    ("dequeue --pipeline g --project p --change 1,1", "POST", f"{T}/project/p/dequeue",
     {"pipeline": "g", "change": "1,1", "reason": ""}),
    ("dequeue --pipeline g --project p --ref refs/heads/m", "POST", f"{T}/project/p/dequeue",
     {"pipeline": "g", "ref": "refs/heads/m", "reason": ""}),
    ("promote --pipeline g --changes 1,1 2,1 3,1", "POST", f"{T}/promote",
     {"pipeline": "g", "changes": ["1,1", "2,1", "3,1"], "reason": ""}),
    ("promote --changes 1,1 2,1 --pipeline g", "POST", f"{T}/promote",
     {"pipeline": "g", "changes": ["1,1", "2,1"], "reason": ""}),
    ("manage-events pause-result --reason r", "POST", f"{T}/state",
     {"trigger_queue_discarding": False, "trigger_queue_paused": True, "result_queue_paused": True, "reason": "r"}),
    ("builds --project p --pipeline g --change 1 --branch b --patchset 2 --ref r --newrev n --result S --uuid u",
     "GET", f"{T}/builds?project=p&pipeline=g&change=1&branch=b&patchset=2&ref=r&newrev=n&uuid=u&result=S"
     "&limit=50&skip=0", None),
    ("builds --job j --voting true --held false --final true --limit 3 --skip 4", "GET",
     f"{T}/builds?job_name=j&voting=true&final=true&held=false&limit=3&skip=4", None),
    ("builds --voting --not-held", "GET", f"{T}/builds?voting=true&held=false&limit=50&skip=0", None),
    ("build-info --uuid u", "GET", f"{T}/build/u", None),
    ("job-graph --pipeline g --project p --branch b", "GET", f"{T}/pipeline/g/project/p/branch/b/freeze-jobs", None),
    ("freeze-job --pipeline g --project p --branch b --job j", "GET",
     f"{T}/pipeline/g/project/p/branch/b/freeze-job/j", None),
    ("node-list", "GET", f"{T}/nodes", None),
    ("node-set-state u hold", "PUT", f"{T}/nodes/u", {"state": "hold", "comment": ""}),
    ("node-set-state u used", "PUT", f"{T}/nodes/u", {"state": "used", "comment": ""}),
    ("nodeset-request-list", "GET", f"{T}/nodeset-requests", None),
    ("nodeset-request-delete u", "DELETE", f"{T}/nodeset-requests/u", None),
]  # fmt: skip
"""Command line -> expected request (from the documentation of Zuul's client)."""


@pytest.mark.parametrize(("typed", "method", "path", "body"), CALLS, ids=[typed for typed, *_ in CALLS])
def test_commands_of_the_reference_send_the_same_requests(
    server: Server, typed: str, method: str, path: str, body: dict[str, Any] | None
) -> None:
    name, *words = typed.split()
    url = f"http://127.0.0.1:{server.server_port}"
    found = CliRunner().invoke(group, ["--zuul-url", url, "--auth-token", "abc", name, "--tenant", "t", *words])
    assert found.exit_code != 2, found.output
    asked_method, asked_path, token, sent = server.requests[0]
    query = sorted(path.partition("?")[2].split("&"))
    assert (asked_method, asked_path.partition("?")[0], token) == (method, path.partition("?")[0], "Bearer abc")
    assert sorted(asked_path.partition("?")[2].split("&")) == query
    assert sent == body


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("autohold p --project p j", "PROJECT exactly once"),
        ("autohold --project p", "JOB exactly once"),
        ("enqueue --pipeline g --project p", "CHANGE exactly once"),
        ("dequeue --pipeline g --project p", "exactly one of CHANGE"),
        ("dequeue --pipeline g --project p 1,1 --ref r", "exactly one of CHANGE"),
        ("promote --pipeline g", "at least one change"),
        ("builds --voting maybe", "maybe"),
        ("builds --voting --non-voting", "exclude"),
        ("node-set-state u ready", "ready"),
    ],
)
def test_repeated_or_missing_arguments_are_refused_before_any_request(server: Server, typed: str, why: str) -> None:
    found = CliRunner().invoke(group, ["--url", f"http://127.0.0.1:{server.server_port}", *typed.split()])
    assert (found.exit_code, why in found.output, server.requests) == (2, True, []), found.output


def test_a_file_of_profiles_is_named_and_its_only_profile_is_meant(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "mine.conf"
    file.write_text(f"[one]\nurl = http://127.0.0.1:{server.server_port}\ntenant = one\nauth_token = abc\n")
    file.chmod(0o600)
    found = CliRunner().invoke(group, ["-v", "--format", "JSON", "-c", str(file), "builds"])
    assert json.loads(found.stdout)[0]["uuid"] == "b1"
    assert server.requests[0][2] == "Bearer abc"
    assert found.stderr.startswith(f"GET http://127.0.0.1:{server.server_port}/api/tenant/one/builds?")
    file.write_text(file.read_text() + "[two]\nurl = http://two.example\n")
    found = CliRunner().invoke(group, ["-c", str(file), "builds"])
    assert isinstance(found.exception, UserError) and "--use-config: one, two" in str(found.exception)


def test_the_token_of_a_profile_is_shown_to_nobody_else(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "mine.conf"
    file.write_text("[one]\nurl = http://one.example\ntenant = one\nauth_token = abc\n")
    file.chmod(0o600)
    url = f"http://127.0.0.1:{server.server_port}"
    CliRunner().invoke(group, ["-c", str(file), "--zuul-url", url, "builds"])
    CliRunner().invoke(group, ["-c", str(file), "builds", "--url", url])
    assert [one[2] for one in server.requests] == ["", ""]


@pytest.mark.parametrize(
    ("words", "meant"), [(["statis"], "'status'"), (["queue", "posst"], "'post'"), (["inventry"], "'inventory'")]
)
def test_a_mistyped_command_is_answered_with_its_neighbours(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(group, words)
    assert result.exit_code == 2 and "Did you mean" in result.output and meant in result.output
