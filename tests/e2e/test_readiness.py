"""Test with real pushes that permission to land is checked until the change has landed."""

from __future__ import annotations

import pytest

from headgate.testing.repositories import run_git
from tests.waiting import wait_for

from .headgate import Headgate
from .test_by_hand import say

API = "code/api"


def note(headgate: Headgate, commit: str, *words: str) -> str:
    """Return the note of the commit, once all of this is in it."""

    def note_with() -> str:
        found = headgate.repositories.note(API, commit)
        return found if all(word in found for word in words) else ""

    return str(wait_for(f"a note says {words}", note_with))


def in_the_gate(headgate: Headgate) -> list[str]:
    return [item["refs"][0]["id"].partition(",")[0] for item in headgate.items("gate")]


def push(headgate: Headgate, *specs: str) -> None:
    run_git("push", "-q", "-f", "origin", *specs, at=headgate.repositories.work(API))


def held(headgate: Headgate, topic: str) -> str:
    """Approve a change whose job in the gate does not end; return its commit."""
    commit = headgate.repositories.propose(API, topic, {"HOLD": "x\n", topic: "x\n"})
    note(headgate, commit, "Headgate (check)")
    headgate.repositories.approve(API, topic)
    wait_for(f"{topic} is tested", lambda: running(headgate, topic))
    return commit


def running(headgate: Headgate, topic: str, pipeline: str = "gate") -> list[str]:
    """Return the ids of its builds that have begun."""
    jobs = [j for i in headgate.items(pipeline) if i["refs"][0]["id"].startswith(f"{topic},") for j in i["jobs"]]
    return [job["uuid"] for job in jobs if job["uuid"] and job["result"] is None]


def on_top(headgate: Headgate, topic: str, files: dict[str, str]) -> str:
    work = headgate.repositories.work(API)
    headgate.repositories.write(API, files)
    run_git("commit", "-q", "-m", topic, at=work)
    push(headgate, f"HEAD:refs/for/master/{topic}")
    return run_git("rev-parse", "HEAD", at=work)


@pytest.mark.long
def test_an_approval_is_withdrawn_while_jobs_run_and_while_headgate_is_down(headgate: Headgate) -> None:
    before = headgate.repositories.head(API)
    first = held(headgate, "first")
    push(headgate, ":refs/approved/master/first")
    note(headgate, first, "Headgate (gate)", "This change cannot land", "is not approved")
    wait_for("it is out", lambda: in_the_gate(headgate) == [])
    second = held(headgate, "second")
    headgate.kill()
    push(headgate, ":refs/approved/master/second")
    headgate.start()
    note(headgate, second, "Headgate (gate)", "This change cannot land", "is not approved")
    wait_for("it is out", lambda: in_the_gate(headgate) == [])
    assert headgate.repositories.head(API) == before


@pytest.mark.long
def test_the_tip_of_a_stack_waits_for_the_changes_below(headgate: Headgate) -> None:
    before = headgate.repositories.head(API)
    lower = headgate.repositories.propose(API, "lower", {"line": "one\n"})
    note(headgate, lower, "Headgate (check)")
    upper = on_top(headgate, "upper", {"line": "two\n"})
    note(headgate, upper, "Headgate (check)")
    headgate.repositories.approve(API, "upper")
    note(headgate, upper, "Headgate (gate)", "lower is not approved; this change will be enqueued once it is")
    assert headgate.repositories.head(API) == before
    headgate.repositories.approve(API, "lower")
    for commit in (lower, upper):
        note(headgate, commit, "Landed on master")
    assert headgate.repositories.show(API, "line") == "two"


@pytest.mark.long
def test_a_branch_is_moved_past_the_gate(headgate: Headgate) -> None:
    held(headgate, "first")
    builds = running(headgate, "first")
    commit = headgate.repositories.propose(API, "beside", {"beside": "x\n"})
    push(headgate, f"{commit}:refs/heads/master")
    wait_for("it starts anew at once", lambda: (now := running(headgate, "first")) and now != builds)
    assert in_the_gate(headgate) == ["first"]
    first = run_git("rev-parse", "refs/for/master/first", at=headgate.repositories.hub / API)
    run_git("checkout", "-q", "--detach", commit, at=headgate.repositories.work(API))
    run_git("merge", "-q", "--no-edit", first, at=headgate.repositories.work(API))
    push(headgate, "HEAD:refs/heads/master")
    wait_for("what the branch has is out", lambda: in_the_gate(headgate) == [])


@pytest.mark.long
def test_in_check_a_change_is_tested_on_a_newer_patchset_of_the_change_that_it_needs(headgate: Headgate) -> None:
    repositories = headgate.repositories
    repositories.write("config", {"jobs/unit": "#!/bin/sh\nwhile test -e SLOW -a ! -e lower2; do sleep 0.1; done\n"})
    run_git("commit", "-q", "-m", "slow", at=repositories.work("config"))
    run_git("push", "-q", "origin", "HEAD:refs/heads/master", at=repositories.work("config"))
    lower = repositories.propose(API, "lower", {"lower1": "x\n"})
    note(headgate, lower, "Headgate (check)", "SUCCESS")
    upper = repositories.propose(API, "upper", {"SLOW": "x\n"}, message="upper\n\nDepends-On: code/api/master/lower")
    wait_for("it is tested on what it needs", lambda: running(headgate, "upper", "check"))
    repositories.propose(API, "lower", {"lower2": "x\n"})
    text = note(headgate, upper, "Headgate (check)")
    assert "SUCCESS" in text, "it ended on the newer one alone, on which its job does not wait for ever"


@pytest.mark.long
def test_a_change_that_a_footer_names_may_be_proposed_later(headgate: Headgate) -> None:
    repositories = headgate.repositories
    upper = repositories.propose(API, "upper", {"a": "x\n"}, message="upper\n\nDepends-On: code/lib/master/lower")
    text = note(headgate, upper, "Headgate (check)", "SUCCESS")
    assert "code/lib/master/lower: there is no such change; it is ignored until it is proposed" in text
    repositories.propose("code/lib", "lower", {"b": "x\n"})
    wait_for("it is tested anew, on it", lambda: "no such change" not in repositories.note(API, upper))
    repositories.approve(API, "upper")
    note(headgate, upper, "Headgate (gate)", "code/lib/master/lower is not approved")
    repositories.approve("code/lib", "lower")
    note(headgate, upper, "Landed on master")


@pytest.mark.long
def test_the_git_servers_own_message_is_reported(headgate: Headgate) -> None:
    commit = headgate.repositories.propose(API, "one", {"a": "x\n"})
    note(headgate, commit, "Headgate (check)", "SUCCESS")
    hook = headgate.repositories.hub / API / "hooks" / "update"
    hook.write_text('#!/bin/sh\ntest "$1" != refs/heads/master || { echo "frozen until Monday" >&2; exit 1; }\n')
    hook.chmod(0o755)
    headgate.repositories.approve(API, "one")
    note(headgate, commit, "Headgate (gate)", "The git server says:\n  frozen until Monday")


@pytest.mark.long
def test_a_refused_landing_is_tried_again(headgate: Headgate) -> None:
    repositories = headgate.repositories
    commit = repositories.propose(API, "one", {"a": "x\n"})
    hook = repositories.hub / API / "hooks" / "update"
    hook.write_text('#!/bin/sh\ntest "$1" != refs/heads/master\n')
    hook.chmod(0o755)
    note(headgate, commit, "Headgate (check)", "SUCCESS")
    repositories.approve(API, "one")
    note(headgate, commit, "Headgate (gate)", "could not be landed")
    hook.unlink()
    status, output = say(headgate, "approve", "--url", headgate.url, "--project", API, "one")
    assert (status, output) == (0, f"one of {API} was already approved; Headgate tests it again: {commit}\n")
    note(headgate, commit, "Landed on master")
    other = repositories.propose(API, "two", {"b": "x\n"})
    note(headgate, other, "Headgate (check)", "SUCCESS")
    past = len(headgate.get("/api/tenant/example/buildsets?complete=true&pipeline=check"))
    assert say(headgate, "recheck", "--project", API, "two") == (0, f"Requested new tests of two of {API}: {other}\n")
    wait_for("it is", lambda: len(headgate.get("/api/tenant/example/buildsets?complete=true&pipeline=check")) > past)
    wait_for("the ref goes", lambda: "recheck" not in run_git("for-each-ref", at=repositories.hub / API))
