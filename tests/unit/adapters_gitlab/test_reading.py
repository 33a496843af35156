"""Test the interpretation of GitLab's answers: missing requirements, events, and settings of the connection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headgate.adapters.forges.gitlab.client import account, word
from headgate.adapters.forges.gitlab.poll import GitLabMark, events, marked
from headgate.adapters.forges.gitlab.request import Approval, GitLabMergeRequest, GitLabUser, Job, Remark, rule_book
from headgate.base.errors import UserError
from headgate.config.forges.facts import Details, ForgeAccount, ProgramStatus, Vote
from headgate.gate.state.change import Change, ChangeState

ADA, BOB, GATE = GitLabUser(1, "ada"), GitLabUser(2, "bob"), GitLabUser(3, "gate")
PLAIN = GitLabMergeRequest(
    project="lab/acme/rocket", number=7, title="T", body="B", url="u", state="opened", draft=False, updated="t1",
    head="a" * 40, target="main", base="", author=ADA, status="mergeable", mergeable=True, approved=False,
    approvals_left=None, approvals=(), labels=(), remarks=(), jobs=(),
)  # fmt: skip


def job(name: str, state: str, *, may_fail: bool = False) -> Job:
    return Job(ProgramStatus("ci", name, state), may_fail)


@pytest.mark.parametrize(
    ("status", "met", "text"),
    [
        ("checking", None, "waits for GitLab"),
        ("unchecked", None, "waits for GitLab"),
        ("preparing", None, "waits for GitLab"),
        ("approvals_syncing", None, "waits for GitLab"),
        ("not_approved", False, "needs 2 more approvals"),
        ("discussions_not_resolved", False, "threads"),
        ("need_rebase", False, "newest commit of main"),
        ("requested_changes", False, "requested changes"),
        ("merge_request_blocked", False, "block it"),
        ("locked_paths", False, "locked"),
        ("jira_association_missing", False, "Jira"),
        ("security_policy_violations", False, "security policies"),
        ("status_checks_must_pass", False, "external status checks"),
        ("merge_time", False, "time"),
        ("title_regex", False, "title"),
        ("commits_status", False, "branch"),
        ("of_tomorrow", False, "of_tomorrow"),
    ],
)
def test_every_word_becomes_an_event(status: str, met: bool | None, text: str) -> None:
    (rule,) = rule_book(replace(PLAIN, status=status, approvals_left=2))
    assert rule.met is met and text in rule.text and not rule.missing


def test_nothing_is_missing_or_it_is_reported_in_another_way() -> None:
    assert [rule_book(replace(PLAIN, status=word)) for word in ("mergeable", "draft_status", "conflict")] == [()] * 3


@pytest.mark.parametrize(
    ("jobs", "met", "missing"),
    [
        ((), None, ()),
        ((job("t/gate", "running"),), None, ("t/gate",)),
        ((job("t/gate", "failed"), job("build", "success")), False, ("t/gate",)),
        ((job("t/gate", "running"), job("build", "failed")), False, ("build", "t/gate")),
        ((job("lint", "failed", may_fail=True), job("t/gate", "pending")), None, ("t/gate",)),
        ((job("deploy", "manual"),), False, ("deploy",)),
    ],
)
def test_of_a_pipeline_those_that_do_not_pass_are_missing(
    jobs: Any, met: bool | None, missing: tuple[str, ...]
) -> None:
    (rule,) = rule_book(replace(PLAIN, status="ci_must_pass", jobs=jobs))
    assert (rule.met, rule.missing) == (met, missing)
    assert all(name in rule.text for name in missing)


# --- what happened


def change_state(request: GitLabMergeRequest, was: Details | None = None, **more: Any) -> ChangeState:
    change = Change("lab", request.project, request.target, commit=request.head, number="7", message=request.body)
    votes = tuple(Vote(ForgeAccount(one.who.name), "review", "approved", one.at_ms) for one in request.approvals)
    mark = marked(request, GitLabMark.of(was.mark if was else "")).text
    details = Details(draft=request.draft, votes=votes, approved=request.approved, labels=request.labels, mark=mark)
    return ChangeState(
        change, **{"open": request.state == "opened", "landed": request.state == "merged", **more}, details=details
    )


def event_names(before: GitLabMergeRequest | None, after: GitLabMergeRequest) -> list[str]:
    was = change_state(before) if before is not None else None
    now = change_state(after, was.details if was else None)
    found = list(events(now, was, after, frozenset({"gate"}), 10**12, first=before is None))
    assert [event.id for event in found] == [
        event.id for event in events(now, was, after, frozenset({"gate"}), 10**12 + 5, first=before is None)
    ], "told again it is the same"
    return [event.happening.action for event in found if event.happening]


def yes(who: GitLabUser, at_ms: int = 1) -> Approval:
    return Approval(who, at_ms)


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ({}, {}, []),
        ({}, {"head": "b" * 40}, ["changed"]),
        ({}, {"body": "C"}, ["changed"]),
        ({}, {"target": "x"}, ["changed"]),
        ({}, {"title": "Other"}, []),
        ({}, {"draft": True}, []),
        ({"draft": True}, {}, ["changed"]),
        ({}, {"labels": ("a",)}, ["labeled"]),
        ({"labels": ("a",)}, {"labels": ("b",)}, ["labeled"]),
        ({}, {"approvals": (yes(BOB),), "approved": True}, ["approved"]),
        ({}, {"approvals": (yes(BOB),)}, []),
        ({}, {"approvals": (yes(GATE),), "approved": True}, []),
        ({"approved": True}, {"approvals": (yes(BOB),), "approved": True}, ["approved"]),
        ({"approvals": (yes(BOB),), "approved": True}, {"approvals": (yes(BOB, 2),), "approved": True}, ["approved"]),
        ({"approvals": (yes(BOB),), "approved": True}, {}, ["unapproved"]),
        ({"approvals": (yes(BOB),), "approved": True}, {"head": "b" * 40}, ["changed"]),
        (
            {"approvals": (yes(BOB, 0),), "approved": True},
            {"head": "b" * 40, "approvals": (yes(BOB, 0),), "approved": True},
            ["changed"],
        ),
        ({}, {"remarks": (Remark(5, BOB, "recheck", 1),)}, ["comment"]),
        ({}, {"remarks": (Remark(5, GATE, "told", 1),)}, []),
        ({}, {"state": "merged"}, ["merged"]),
        ({}, {"state": "closed"}, ["closed"]),
        ({"state": "closed"}, {}, ["reopened"]),
        ({"state": "closed"}, {"state": "closed", "labels": ("a",)}, []),
    ],
)
def test_events_are_the_differences_between_two_states(before: Any, after: Any, wanted: list[str]) -> None:
    assert event_names(replace(PLAIN, **before), replace(PLAIN, updated="t2", **after)) == wanted


def test_older_comments_of_an_unknown_change_cause_no_events() -> None:
    old, new = Remark(1, BOB, "recheck", 10**12 - 4_000_000), Remark(2, BOB, "recheck", 10**12 - 1)
    assert event_names(None, replace(PLAIN, remarks=(old, new))) == ["opened", "comment"]


# --- settings


def test_a_section_of_the_settings_becomes_an_account() -> None:
    one = account("lab", {"api_token": "t"})
    assert (one.web, one.api, one.canonical_hostname) == (
        "https://gitlab.com",
        "https://gitlab.com/api/v4",
        "gitlab.com",
    )
    assert one.path("gitlab.com/a/b/c") == "/projects/a%2Fb%2Fc"
    below = account("lab", {"api_token": "t", "server": "git.example", "baseurl": "https://example.org/lab/"})
    assert (below.api, below.canonical_hostname) == ("https://example.org/lab/api/v4", "git.example")
    assert below.clone == "https://example.org/lab"
    assert account("lab", {"api_token": "t", "baseurl": "https://example.org/lab"}).canonical_hostname == "example.org"
    assert "t0p" not in repr(account("lab", {"api_token": "t0p", "webhook_token": "t0p"}))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"api_token": ""}, "api_token"),
        ({"server": "a/b"}, "not a host name"),
        ({"server": "http://git.example"}, "http://"),
        ({"baseurl": "ssh://git.example"}, "not an address"),
        ({"baseurl": "https://me:pw@git.example"}, "leave name and password out"),
        ({"webhook_signing_token": "secret"}, "whsec_"),
        ({"webhook_signing_token": "whsec_?"}, "whsec_"),
    ],
)
def test_errors_in_a_section_are_reported(settings: dict[str, str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        account("lab", {"api_token": "t", **settings})


@pytest.mark.parametrize(
    ("level", "permission"),
    [
        ({"access_level": 5}, "none"),
        ({"access_level": 10}, "read"),
        ({"access_level": 15}, "read"),
        ({"access_level": 30}, "write"),
        ({"access_level": 40}, "admin"),
        ({"access_level": 50, "state": "blocked"}, "none"),
        ({"access_level": "50"}, "none"),
        ({}, "none"),
    ],
)
def test_access_levels_are_translated_to_common_permissions(level: dict[str, object], permission: str) -> None:
    assert word(level) == permission
