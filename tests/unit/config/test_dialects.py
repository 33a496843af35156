"""Test every key that a driver declares both ways: with a change or an event for which it holds, and one for which it
does not."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from headgate.config.drivers import DIALECTS
from headgate.config.forges.facts import Details, ForgeAccount, ForgeEvent, PipelineCheck, ProgramStatus, Vote, Word
from headgate.config.forges.keyterms import TermSubject, refused, triggered, unmet
from headgate.gate.state.change import ZEROS, Change, ChangeState

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
PULL = Change("hub", "hub.example/lib", "main", commit="a" * 40, ref="refs/pull/7/head", number="7", owner="Ann <a@x>")
PUSH = Change("hub", "hub.example/lib", "main", commit="b" * 40, old_commit="a" * 40, ref="refs/heads/main")
GONE = replace(PUSH, commit=ZEROS)


def vote(label: str, value: str, who: str = "ann", hours: int = 1, **more: Any) -> Vote:  # of a Vote
    account = ForgeAccount(who, f"{who}@example.org", more.pop("permission", "write"))
    return Vote(account, label, value, NOW_MS - hours * HOUR_MS, **more)


def seen(
    change: Change = PULL, *, here: bool = False, **more: Any
) -> TermSubject:  # members of Details, Standing, Happening
    happening = ForgeEvent.__struct_fields__ if "event" in more else ()
    of_details = {n: more.pop(n) for n in list(more) if n in Details.__struct_fields__ and n not in happening}
    of_standing = {name: more.pop(name) for name in list(more) if name in ChangeState.__struct_fields__}
    ours, kind = more.pop("ours", frozenset()), more.pop("kind", "")
    change_state = ChangeState(change, details=Details(**of_details), **of_standing)
    return TermSubject(change_state, "t", None if here else NOW_MS, kind, ForgeEvent(**more) if more else None, ours)


class Case(NamedTuple):
    driver: str
    part: str
    """trigger | require | reject"""
    written: dict[str, Any]
    holds: TermSubject
    """Return whether it triggers, is admitted, is rejected."""
    fails: TermSubject


def review(value: str, **more: Any) -> TermSubject:  # as of vote
    return seen(votes=(vote("review", value, **more),))


def comment(event: str, text: str, **more: Any) -> TermSubject:  # as of seen
    return seen(event=event, comments=(text,), **more)


OPEN, CLOSED = seen(), seen(open=False)
BOT = ForgeAccount("bot", "bot@example.org", "read")
ADMIN = ForgeAccount("root", "root@example.org", "admin")
GERRIT = [
    Case("gerrit", "trigger", {"event": ["comment-added"]}, seen(event="comment-added"), seen(event="vote-deleted")),
    Case(
        "gerrit",
        "trigger",
        {"event": "ref-updated", "branch": "^ma"},
        seen(PUSH, event="ref-updated"),
        seen(replace(PUSH, branch="stable"), event="ref-updated"),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "ref-updated", "ref": "^refs/heads/m"},
        seen(PUSH, event="ref-updated"),
        seen(replace(PUSH, ref="refs/tags/m"), event="ref-updated"),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "ref-updated", "ignore-deletes": False},
        seen(GONE, event="ref-updated"),
        seen(GONE, event="patchset-created"),
    ),
    Case(
        "gerrit", "trigger", {"event": "ref-updated"}, seen(PUSH, event="ref-updated"), seen(GONE, event="ref-updated")
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "comment-added", "approval": [{"Code-Review": 2}, {"Workflow": 1}]},
        seen(event="comment-added", votes=(vote("Code-Review", "2"), vote("Workflow", "1"))),
        seen(event="comment-added", votes=(vote("Code-Review", "2"),)),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "comment-added", "approval-change": [{"Workflow": 1}]},
        seen(event="comment-added", votes=(vote("Workflow", "1", old_value="0"),)),
        seen(event="comment-added", votes=(vote("Workflow", "1"),)),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "comment-added", "comment": "(?i)recheck$"},
        comment("comment-added", "Patch Set 3:\n\nRecheck"),
        comment("comment-added", "recheck this"),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "comment-added", "email": "@example.org$"},
        seen(event="comment-added", who=BOT),
        seen(event="comment-added", who=ForgeAccount("x", "x@else.where")),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "wip-state-changed", "username": "^bot"},
        seen(event="wip-state-changed"),
        seen(event="wip-state-changed", who=ADMIN),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "hashtags-changed", "added": "ship"},
        seen(event="hashtags-changed", added=("shipit",)),
        seen(event="hashtags-changed", removed=("shipit",)),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "hashtags-changed", "removed": ["hold", "wait"]},
        seen(event="hashtags-changed", removed=("wait",)),
        seen(event="hashtags-changed", added=("wait",)),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "pending-check", "uuid": "zuul:check"},
        seen(event="pending-check", checker="zuul:check"),
        seen(event="pending-check", checker="zuul:gate"),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "pending-check", "scheme": "zuul"},
        seen(event="pending-check", checker="zuul:gate"),
        seen(event="pending-check", checker="jenkins:gate"),
    ),
    Case(
        "gerrit",
        "trigger",
        {"require": {"approval": [{"Verified": 1}]}},
        seen(votes=(vote("Verified", "1"),)),
        seen(),
    ),
    Case("gerrit", "trigger", {"reject": {"wip": True}}, seen(draft=False), seen(draft=True)),
    Case(
        "gerrit",
        "trigger",
        {"require-approval": [{"username": "^ci$", "Verified": [1, 2]}]},
        seen(votes=(vote("Verified", "2", "ci"),)),
        seen(votes=(vote("Verified", "2", "ann"), vote("Other", "1", "ci"))),
    ),
    Case(
        "gerrit",
        "trigger",
        {"reject-approval": [{"Code-Review": -2}]},
        seen(votes=(vote("Code-Review", "-1"),)),
        seen(votes=(vote("Code-Review", "-2"),)),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "comment-added", "comment_filter": "go"},
        comment("comment-added", "go on"),
        comment("comment-added", "stop"),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "comment-added", "email_filter": "^root@"},
        seen(event="comment-added", who=ADMIN),
        seen(event="comment-added", who=BOT),
    ),
    Case(
        "gerrit",
        "trigger",
        {"event": "comment-added", "username_filter": "root"},
        seen(event="comment-added", who=ADMIN),
        seen(event="comment-added", who=BOT),
    ),
    Case(
        "gerrit",
        "require",
        {"approval": [{"username": "ann", "Code-Review": [1, 2]}]},
        seen(votes=(vote("Code-Review", "1"),)),
        seen(votes=(vote("Code-Review", "1", "bob"), vote("Workflow", "1", "ann"))),
    ),
    Case(
        "gerrit",
        "require",
        {"approval": [{"email": "example.org", "older-than": "2h", "Code-Review": 2}]},
        seen(votes=(vote("Code-Review", "2", hours=3),)),
        seen(votes=(vote("Code-Review", "2", hours=1),)),
    ),
    Case(
        "gerrit",
        "require",
        {"approval": [{"newer-than": "2h", "Code-Review": 2}, {"Workflow": 1}]},
        seen(votes=(vote("Code-Review", "2", hours=2), vote("Workflow", "1"))),
        seen(votes=(vote("Code-Review", "2", hours=3), vote("Workflow", "1"))),
    ),
    Case(
        "gerrit",
        "reject",
        {"approval": [{"Code-Review": -2}, {"Workflow": -1}]},
        seen(votes=(vote("Workflow", "-1"),)),
        seen(votes=(vote("Workflow", "1"),)),
    ),
    Case("gerrit", "require", {"open": True}, OPEN, CLOSED),
    Case("gerrit", "require", {"open": True}, OPEN, seen(PUSH)),
    Case("gerrit", "require", {"current-patchset": True}, OPEN, seen(current=False)),
    Case("gerrit", "require", {"wip": False}, seen(draft=False), seen()),
    Case("gerrit", "reject", {"wip": True}, seen(draft=True), seen()),
    Case(
        "gerrit", "require", {"hashtags": ["ship", "^ok"]}, seen(hashtags=("ok", "shipit")), seen(hashtags=("shipit",))
    ),
    Case("gerrit", "reject", {"hashtags": ["hold", "wait"]}, seen(hashtags=("wait",)), seen(hashtags=("go",))),
    Case("gerrit", "require", {"status": ["NEW", "MERGED"]}, seen(state="NEW"), seen(state="ABANDONED")),
]
_GREEN = ProgramStatus("ci", "acme/check", "success")
_RED = ProgramStatus("ci", "acme/check", "failure")
_RUN = ProgramStatus("app", "build", "success", check=True)


def pull(action: str = "opened", **more: Any) -> TermSubject:  # as of seen
    return seen(event="pull_request", action=action, **more)


def like_github(driver: str) -> list[Case]:
    return [
        Case(driver, "trigger", {"event": "pull_request"}, pull(), seen(event="push")),
        Case(driver, "trigger", {"event": "push"}, seen(PUSH, event="push"), seen(GONE, event="push")),
        Case(driver, "trigger", {"event": "pull_request", "action": ["opened", "changed"]}, pull(), pull("closed")),
        Case(
            driver,
            "trigger",
            {"event": "pull_request", "branch": ["^main$"]},
            pull(),
            pull(change=replace(PULL, branch="mains")),
        ),
        Case(
            driver,
            "trigger",
            {"event": "push", "ref": "^refs/tags/v"},
            seen(replace(PUSH, ref="refs/tags/v1", branch=""), event="push"),
            seen(PUSH, event="push"),
        ),
        Case(
            driver,
            "trigger",
            {"event": "pull_request", "action": "comment", "comment": r"^\s*recheck\s*$"},
            pull("comment", comments=("recheck",)),
            pull("comment", comments=("please recheck",)),
        ),
        Case(
            driver,
            "trigger",
            {"event": "pull_request", "label": ["gate"]},
            pull("labeled", added=("gate",)),
            pull("labeled", added=("gates",)),
        ),
        Case(
            driver,
            "trigger",
            {"event": "pull_request", "action": "unlabeled", "label": "hold"},
            pull("unlabeled", removed=("hold",)),
            pull("labeled", removed=("hold",)),
        ),
        Case(
            driver,
            "trigger",
            {"event": "pull_request", "status": "ci:.*:success"},
            pull("status", statuses=(_GREEN,)),
            pull("status", statuses=(_RED,)),
        ),
        Case(
            driver,
            "trigger",
            {"event": "pull_request_review", "state": ["approved"]},
            seen(event="pull_request_review", state="approved"),
            seen(event="pull_request_review", state="commented"),
        ),
        Case(driver, "trigger", {"event": "pull_request", "permission": "write"}, pull(who=ADMIN), pull(who=BOT)),
        Case(driver, "trigger", {"event": "pull_request", "permission": "read"}, pull(who=BOT), pull()),
        Case(driver, "trigger", {"require": {"draft": False}}, seen(draft=False), seen(draft=True)),
        Case(driver, "trigger", {"reject": {"label": ["hold"]}}, seen(labels=("go",)), seen(labels=("hold", "go"))),
        Case(
            driver,
            "require",
            {"status": ["other:x:y", "ci:acme/check:success"]},
            seen(statuses=(_GREEN,)),
            seen(statuses=(_RED,)),
        ),
        Case(driver, "require", {"status": ["app:build:success"]}, seen(statuses=(_RUN,)), seen(statuses=())),
        Case(driver, "require", {"status": ".*acme/check.*"}, seen(statuses=(_GREEN,)), seen(statuses=(_RUN,))),
        Case(driver, "reject", {"status": ["ci:.*:failure"]}, seen(statuses=(_GREEN, _RED)), seen(statuses=(_GREEN,))),
        Case(driver, "require", {"review": [{"type": "approved"}]}, review("approved"), review("commented")),
        Case(driver, "require", {"review": {"type": "approval"}}, review("approved"), review("changes_requested")),
        Case(
            driver,
            "require",
            {"review": [{"type": "approved", "permission": "write"}]},
            review("approved", permission="admin"),
            review("approved", permission="read"),
        ),
        Case(
            driver,
            "require",
            {"review": [{"username": "^ann$"}, {"email": "bob@"}]},
            seen(votes=(vote("review", "approved"), vote("review", "commented", "bob"))),
            seen(votes=(vote("review", "approved"),)),
        ),
        Case(
            driver,
            "reject",
            {"review": [{"type": "changes_requested", "newer-than": "1d"}]},
            review("changes_requested"),
            review("changes_requested", hours=25),
        ),
        Case(driver, "require", {"open": True}, OPEN, CLOSED),
        Case(driver, "require", {"open": True}, OPEN, seen(PUSH)),
        Case(driver, "require", {"merged": False}, OPEN, seen(landed=True)),
        Case(driver, "require", {"current-patchset": True}, OPEN, seen(current=False)),
        Case(driver, "require", {"draft": False}, seen(draft=False), seen()),
        Case(driver, "reject", {"draft": True}, seen(draft=True), seen()),
        Case(driver, "require", {"label": ["a", "b"]}, seen(labels=("a", "b", "c")), seen(labels=("a",))),
        Case(driver, "require", {"label": ["a"]}, seen(labels=("a",)), seen()),
        Case(driver, "reject", {"label": ["a", "b"]}, seen(labels=("b",)), seen(labels=("c",))),
    ]


GITHUB = [
    *like_github("github"),
    Case(
        "github",
        "trigger",
        {"event": "check_run", "action": "requested", "check": "app:build:.*"},
        seen(event="check_run", action="rerequested", statuses=(_RUN,)),
        seen(event="check_run", action="rerequested", statuses=(replace(_RUN, check=False),)),
    ),
    Case(
        "github",
        "trigger",
        {"event": "pull_request", "unlabel": ["hold"]},
        pull("unlabeled", removed=("hold",)),
        pull("labeled", added=("hold",)),
    ),
    Case("github", "trigger", {"require-status": "ci:.*"}, seen(statuses=(_GREEN,)), seen(statuses=(_RUN,))),
    Case("github", "trigger", {"reject-status": "ci:.*"}, seen(statuses=(_RUN,)), seen(statuses=(_GREEN,))),
]


def merge(action: str = "opened", **more: Any) -> TermSubject:  # as of seen
    return seen(event="gl_merge_request", action=action, **more)


GITLAB = [
    Case("gitlab", "trigger", {"event": ["gl_push"]}, seen(PUSH, event="gl_push"), seen(GONE, event="gl_push")),
    Case("gitlab", "trigger", {"event": "gl_merge_request", "action": ["approved"]}, merge("approved"), merge()),
    Case(
        "gitlab",
        "trigger",
        {"event": "gl_merge_request", "branch": "main"},
        merge(),
        merge(change=replace(PULL, branch="x")),
    ),
    Case(
        "gitlab",
        "trigger",
        {"event": "gl_merge_request", "comment": "retest"},
        merge("comment", comments=("do retest this",)),
        merge("comment", comments=("do test this",)),
    ),
    Case(
        "gitlab",
        "trigger",
        {"event": "gl_push", "ref": "refs/heads/main"},
        seen(PUSH, event="gl_push"),
        seen(replace(PUSH, ref="refs/heads/x"), event="gl_push"),
    ),
    Case(
        "gitlab",
        "trigger",
        {"event": "gl_merge_request", "labels": ["gate", "go"]},
        merge("labeled", added=("go",)),
        merge("labeled", removed=("go",)),
    ),
    Case(
        "gitlab",
        "trigger",
        {"event": "gl_merge_request", "unlabels": ["hold"]},
        merge("labeled", removed=("hold",)),
        merge("labeled", added=("hold",)),
    ),
    Case(
        "gitlab",
        "trigger",
        {"event": "gl_merge_request", "permission": "write"},
        merge("comment", who=ADMIN),
        merge("comment", who=ForgeAccount("eve", permission="read")),
    ),
    Case("gitlab", "require", {"open": True}, OPEN, CLOSED),
    Case("gitlab", "require", {"merged": False}, OPEN, seen(landed=True)),
    Case("gitlab", "require", {"approved": True}, seen(approved=True), seen()),
    Case("gitlab", "require", {"labels": ["a", "b"]}, seen(labels=("b", "a")), seen(labels=("a",))),
    Case("gitlab", "reject", {"labels": ["a", "b"]}, seen(labels=("a",)), seen(labels=())),
    Case("gitlab", "reject", {"merged": True}, seen(landed=True), OPEN),
]


def pagure(action: str = "opened", **more: Any) -> TermSubject:  # as of seen
    return seen(event="pg_pull_request", action=action, **more)


def thumb(name: str, permission: str, way: str = "up") -> Vote:
    return Vote(ForgeAccount(name, permission=permission), "review", f"thumbs{way}")


PAGURE = [
    Case(
        "pagure",
        "trigger",
        {"event": "pg_pull_request_review", "action": "thumbsup"},
        seen(event="pg_pull_request_review", action="thumbsup"),
        seen(event="pg_pull_request_review", action="thumbsdown"),
    ),
    Case("pagure", "trigger", {"event": "pg_pull_request"}, pagure(), seen(event="pg_pull_request_review", action="x")),
    Case(
        "pagure",
        "trigger",
        {"event": "pg_push", "ref": "^refs/heads/main$"},
        seen(PUSH, event="pg_push"),
        seen(replace(PUSH, ref="refs/heads/main2"), event="pg_push"),
    ),
    Case(
        "pagure",
        "trigger",
        {"event": "pg_pull_request", "comment": "recheck"},
        pagure("comment", comments=("recheck",)),
        pagure("comment"),
    ),
    Case(
        "pagure",
        "trigger",
        {"event": "pg_pull_request", "status": ["success"]},
        pagure("status", state="success"),
        pagure("status", state="failure"),
    ),
    Case(
        "pagure",
        "trigger",
        {"event": "pg_pull_request", "tag": ["gate"]},
        pagure("tagged", added=("gate",)),
        pagure("tagged", added=("x",)),
    ),
    Case("pagure", "require", {"score": 2}, seen(score=2), seen(score=1)),
    Case("pagure", "require", {"score": 0}, seen(score=0), seen()),
    Case("pagure", "require", {"open": True}, OPEN, CLOSED),
    Case("pagure", "require", {"merged": False}, OPEN, seen(landed=True)),
    Case(
        "pagure",
        "require",
        {"status": ["success"]},
        seen(us=("us",), statuses=(ProgramStatus("us", "Headgate", "success"),)),
        seen(
            us=("us",),
            statuses=(ProgramStatus("us", "Headgate", "pending"), ProgramStatus("us", "Headgate", "success")),
        ),
    ),
    Case(
        "pagure",
        "require",
        {"status": ["success"]},
        seen(us=("us",), here=True, statuses=(ProgramStatus("us", "Headgate", "pending"),)),
        seen(us=("us",), statuses=(ProgramStatus("anybody", "Headgate", "success"),)),
    ),
    Case("pagure", "trigger", {"event": "pg_pull_request", "action": "closed"}, pagure("merged"), pagure("opened")),
    Case(
        "pagure",
        "trigger",
        {"event": "pg_pull_request", "permission": "write"},
        pagure("comment", who=ADMIN),
        pagure("comment", who=BOT),
    ),
    Case(
        "pagure",
        "require",
        {"committer-score": 1},
        seen(votes=(thumb("root", "admin"), thumb("eve", "read"))),
        seen(
            votes=(thumb("eve", "read"), thumb(PULL.owner, "admin"), thumb("zoe", "write"), thumb("x", "write", "down"))
        ),
    ),
    Case("pagure", "require", {"committer-score": 0}, seen(votes=()), seen()),
    Case("pagure", "require", {"tags": ["a", "b"]}, seen(labels=("b",)), seen(labels=("c",))),
]
WORD = Word("ann", PULL.commit, "refs/approvals/ann/main/x", NOW_MS - HOUR_MS)
PASSED = PipelineCheck("t", "check", PULL.commit, "success")
GIT = [
    Case("git", "trigger", {"event": ["change-proposed"]}, seen(kind="change-proposed"), seen(kind="ref-updated")),
    Case(
        "git",
        "trigger",
        {"event": "change-proposed", "branch": "ma"},
        seen(kind="change-proposed"),
        seen(replace(PULL, branch="x"), kind="change-proposed"),
    ),
    Case(
        "git",
        "trigger",
        {"event": "ref-updated", "ref": "^refs/tags/"},
        seen(replace(PUSH, ref="refs/tags/v"), kind="ref-updated"),
        seen(PUSH, kind="ref-updated"),
    ),
    Case("git", "trigger", {"event": "ref-updated"}, seen(PUSH, kind="ref-updated"), seen(GONE, kind="ref-updated")),
    Case(
        "git",
        "trigger",
        {"event": "ref-updated", "ignore-deletes": False},
        seen(GONE, kind="ref-updated"),
        seen(GONE, kind="change-merged"),
    ),
    Case("git", "require", {"approved": True}, TermSubject(ChangeState(PULL, approved=PULL.commit)), seen()),
    Case("git", "require", {"open": True}, OPEN, CLOSED),
    Case("git", "require", {"current-patchset": True}, OPEN, CLOSED),
    Case("git", "require", {"approvals": {"count": 1}}, seen(approvals=(WORD,)), seen()),
    Case("git", "reject", {"approvals": {"of": ["ann"]}}, seen(approvals=(WORD,)), seen()),
    Case("git", "require", {"veto": False}, seen(), seen(vetoes=(WORD,))),
    Case("git", "reject", {"veto": True}, seen(vetoes=(WORD,)), seen()),
    Case("git", "require", {"check": "success"}, seen(checks=(PASSED,)), seen()),
    Case("git", "reject", {"check": {"check": "success"}}, seen(checks=(PASSED,)), seen()),
]
CASES = [*GERRIT, *GITHUB, *like_github("gitea"), *GITLAB, *PAGURE, *GIT]
NEVER_FALSE = {("git", "require", "current-patchset")}
"""Plain git has no older patchsets."""
SAYS_NOTHING = {"debug"}
"""Keys of triggers that are not conditions."""


def answer(case: Case, of: TermSubject) -> bool:
    dialect = DIALECTS[case.driver]
    if case.part == "trigger" and "event" not in case.written:
        of = of._replace(happening=ForgeEvent("whatever"))
    if case.part == "trigger":
        return triggered(dialect, case.written, of)
    if case.part == "require":
        return not unmet(dialect.require, case.written, of)
    return bool(refused(dialect.require, case.written, of))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.driver} {case.part} {case.written}")
def test_each_key_matches_one_change_and_not_the_other(case: Case) -> None:
    assert answer(case, case.holds)
    constant = {(case.driver, case.part, name) for name in case.written} <= NEVER_FALSE
    assert answer(case, case.fails) is constant


def test_every_declared_key_is_tested_here() -> None:
    for name, dialect in DIALECTS.items():
        covered = {(case.part, key) for case in CASES if case.driver == name for key in case.written}
        triggers = {key for part, key in covered if part == "trigger"}
        required = {key for part, key in covered if part in ("require", "reject")}
        assert triggers == dialect.trigger.keys() - SAYS_NOTHING - ({"ignore-deletes"} - triggers), name
        assert required == dialect.require.keys(), name


def test_old_names_give_way_to_new_ones() -> None:
    of = comment("comment-added", "go")
    trigger = {"event": "comment-added", "comment": "go"}
    assert triggered(DIALECTS["gerrit"], {**trigger, "comment_filter": "stop"}, of)
    assert not triggered(DIALECTS["gerrit"], {"event": "comment-added", "comment_filter": "stop"}, of)
    both = {"require": {"status": "ci:.*"}, "require-status": "nobody"}
    assert triggered(DIALECTS["github"], both, seen(statuses=(_GREEN,))._replace(happening=ForgeEvent("x")))


def test_a_negated_pattern_matches_all_others() -> None:
    trigger = {"event": "comment-added", "username": {"regex": "^bot$", "negate": True}}
    assert triggered(DIALECTS["gerrit"], trigger, seen(event="comment-added", who=ADMIN))
    assert not triggered(DIALECTS["gerrit"], trigger, seen(event="comment-added", who=BOT))


def test_a_proposal_without_details_matches_every_action_that_may_have_happened() -> None:
    for name, trigger in {
        "gerrit": {"event": "patchset-created"},
        "github": {"event": "pull_request", "action": ["changed"]},
        "gitlab": {"event": "gl_merge_request", "action": ["opened"]},
        "pagure": {"event": "pg_pull_request", "action": ["changed"]},
        "gitea": {"event": "pull_request", "action": "opened"},
    }.items():
        assert triggered(DIALECTS[name], trigger, seen(kind="change-proposed")), name
        assert not triggered(DIALECTS[name], trigger, seen(kind="change-stirred")), name


US = ("gatekeeper",)
OURS = ProgramStatus("gatekeeper", "t/gate", "pending")


def test_headgates_own_status_is_not_required_again_once_present() -> None:
    """A gate that requires its own check, and resets it at the start, does not empty itself."""
    wanted = {"status": "gatekeeper:t/gate:success"}
    requires = DIALECTS["github"].require
    assert unmet(requires, wanted, seen(us=US, statuses=(OURS,)))
    assert not unmet(requires, wanted, seen(us=US, statuses=(OURS,), here=True))
    assert unmet(requires, {"status": "ci:.*:success"}, seen(us=US, statuses=(OURS, _RED), here=True))
    assert not refused(requires, {"status": ".*:pending"}, seen(us=US, statuses=(OURS,), here=True))
    assert refused(requires, {"status": ".*:pending"}, seen(us=US, statuses=(OURS,)))


def test_votes_and_labels_that_the_pipeline_sets_are_not_required_again_either() -> None:
    verified = {"approval": [{"username": "gatekeeper", "Verified": 1}, {"Code-Review": 2}]}
    requires = DIALECTS["gerrit"].require
    review = vote("Code-Review", "2")
    assert unmet(requires, verified, seen(us=US, votes=(review,)))
    assert not unmet(requires, verified, seen(us=US, votes=(review,), here=True))
    assert unmet(requires, verified, seen(us=US, here=True)), "people may take back theirs"
    assert not unmet(requires, {"approval": [{"Verified": 1}]}, seen(ours=frozenset({"Verified"}), here=True))
    labels = DIALECTS["github"].require
    assert not unmet(labels, {"label": ["gate"]}, seen(ours=frozenset({"gate"}), here=True))
    assert unmet(labels, {"label": ["gate"]}, seen(ours=frozenset({"gate"})))


def test_the_age_of_a_vote_counts_only_when_the_change_enters() -> None:
    wanted = {"approval": [{"newer-than": "1h", "Code-Review": 2}]}
    old = (vote("Code-Review", "2", hours=48),)
    assert unmet(DIALECTS["gerrit"].require, wanted, seen(votes=old))
    assert not unmet(DIALECTS["gerrit"].require, wanted, seen(votes=old, here=True))


def test_missing_requirements_are_described() -> None:
    requires = DIALECTS["github"].require
    assert unmet(requires, {"open": True}, CLOSED) == "hub.example/lib#7 is not open"
    assert unmet(requires, {"label": ["gate"]}, OPEN) == "hub.example/lib#7 does not meet the requirement label: gate"
    assert refused(requires, {"draft": True}, seen(draft=True)) == "hub.example/lib#7 is draft"
    text = unmet(requires, {"review": [{"type": "approved", "permission": "write"}]}, OPEN)
    assert text.endswith("review: {type: approved, permission: write}")


@pytest.mark.parametrize("driver", sorted(DIALECTS.keys() - {"git"}))
def test_a_push_does_not_meet_requirements_on_changes(driver: str) -> None:
    requires = DIALECTS[driver].require
    assert unmet(requires, {"open": True}, seen(PUSH)) and not refused(requires, {"open": True}, seen(PUSH))


def test_a_dialect_knows_the_labels_that_its_reporter_sets() -> None:
    assert DIALECTS["gerrit"].sets({"Verified": 2, "comment": True, "submit": True}) == {"Verified"}
    for name in ("github", "gitlab", "gitea"):
        assert DIALECTS[name].sets({"label": ["a"], "unlabel": "b", "merge": True}) == {"a", "b"}, name


SLOW = r"(a*)*\1b|(a*)*\2c"
"""A pattern whose match on many letters is undecidable within the bound."""
TAGGED = seen(hashtags=("a" * 60 + "!",))
CHECKED = seen(statuses=(ProgramStatus("a" * 60, "ci", "success"),))


@pytest.mark.parametrize(("driver", "key", "subject"), [("gerrit", "hashtags", TAGGED), ("github", "status", CHECKED)])
def test_a_pattern_that_cannot_be_decided_lets_nobody_in(driver: str, key: str, subject: TermSubject) -> None:
    terms = DIALECTS[driver].require
    for why in (unmet(terms, {key: [SLOW]}, subject), refused(terms, {key: [SLOW]}, subject)):
        assert f"{key}: matching the pattern" in why and "takes more than" in why


@pytest.mark.parametrize(("driver", "label"), [("gerrit", {"Verified": 1}), ("github", {"type": "approved"})])
def test_a_vote_that_cannot_be_decided_neither_hides_nor_replaces_others(driver: str, label: dict[str, Any]) -> None:
    kind, value = ("Verified", "1") if driver == "gerrit" else ("review", "approved")
    key, other = ("approval", "0") if driver == "gerrit" else ("review", "commented")
    rule = {key: [{"username": SLOW, **label}]}
    terms = DIALECTS[driver].require
    assert not refused(terms, rule, seen(votes=(vote(kind, other, "a" * 60),))), "it is another vote"
    assert "takes more than" in refused(terms, rule, seen(votes=(vote(kind, value, "a" * 60),)))
    either = {key: [{"username": f"^zuul$|{SLOW}", **label}]}
    for votes in ((vote(kind, value, "a" * 60), vote(kind, value, "zuul")), (vote(kind, value, "zuul"),)):
        assert not unmet(terms, either, seen(votes=votes))


def test_an_event_triggers_nothing_by_a_pattern_that_cannot_be_decided() -> None:
    event = seen(event="comment-added", comments=("a" * 60,))
    assert not triggered(DIALECTS["gerrit"], {"event": ["comment-added"], "comment": [SLOW]}, event)
    assert triggered(DIALECTS["gerrit"], {"event": ["comment-added"], "comment": [SLOW, "^a*$"]}, event)


@pytest.mark.parametrize("rules", [[SLOW, "a*:ci:success"], ["a*:ci:success", SLOW]])
def test_a_matching_pattern_decides_even_if_another_cannot_be_decided(rules: list[str]) -> None:
    assert not unmet(DIALECTS["github"].require, {"status": rules}, CHECKED)
    assert "is rejected because of" in refused(DIALECTS["github"].require, {"status": rules}, CHECKED)
