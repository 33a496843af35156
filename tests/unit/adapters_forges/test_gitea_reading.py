"""Test the parsing of Gitea's settings, patterns and reviews."""

from __future__ import annotations

import pytest

from headgate.adapters.forges.gitea.client import account
from headgate.adapters.forges.gitea.pull import GiteaPull, Opinion, matches, rule_book
from headgate.adapters.forges.pulls import ProgramReport
from headgate.base.errors import UserError
from headgate.config.forges.facts import ForgeAccount, ProgramStatus

SECTION = {"server": "git.example:3000", "api_token": "t"}


def test_a_section_says_where_everything_is() -> None:
    plain = account("hub", SECTION)
    assert (plain.web, plain.api) == ("https://git.example:3000", "https://git.example:3000/api/v1")
    assert (plain.canonical_hostname, plain.clone) == ("git.example", "https://git.example:3000")
    below = account("hub", {**SECTION, "baseurl": "https://example.org/code/", "sshkey": "/key"})
    assert (below.api, below.root, below.host) == ("https://example.org/code/api/v1", "/code", "example.org")
    assert (below.canonical_hostname, below.clone) == ("git.example", "ssh://git@example.org")
    assert below.short(below.canonical("a/b")) == "a/b"
    assert "secret" not in repr(account("hub", {**SECTION, "api_token": "secret", "webhook_token": "secret"}))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"api_token": ""}, "api_token is missing"),
        ({"baseurl": "http://git.example"}, "http:// is allowed only for this machine"),
        ({"baseurl": "https://"}, "is not an address"),
        ({"baseurl": "https://[x"}, "is not an address"),
        ({"baseurl": "https://me:secret@git.example"}, "is not an address"),
        ({"cloneurl": "http://git.example"}, "cloneurl: http://"),
        ({"server": ""}, "is not an address"),
    ],
)
def test_a_section_that_is_wrong(settings: dict[str, str], why: str) -> None:
    with pytest.raises(UserError, match=why):
        account("hub", {**SECTION, **settings})


@pytest.mark.parametrize(
    ("pattern", "text", "separators", "found"),
    [
        ("example/gate", "example/gate", "", True),
        ("example/*", "example/gate/x", "", True),
        ("*.txt", "a.txt", "./", True),
        ("*.txt", "docs/a.txt", "./", False),
        ("**.txt", "docs/a.txt", "./", True),
        ("*", "a.txt", "./", False),
        ("lint-?y", "lint-py", "", True),
        ("[a-c]x", "bx", "", True),
        ("[!a-c]x", "bx", "", False),
        ("{a,b}/x", "b/x", "", True),
        ("a,b", "a,b", "", True),
        ("a.b", "axb", "", False),
        ("{a", "{a", "", True),
        ("a}", "a}", "", True),
        ("[z-a]", "[z-a]", "", True),
        ("*" * 40 + "x", "y" * 4_000, "", False),
    ],
)
def test_patterns_match_as_in_gitea(pattern: str, text: str, separators: str, found: bool) -> None:
    assert matches(pattern, text, separators) is found


def opinion(who: str, state: str = "APPROVED", official: bool = True, **more: bool) -> Opinion:
    return Opinion(who, state, official, more.get("stale", False), more.get("dismissed", False))


def pull(*opinions: Opinion, statuses: tuple[tuple[str, str], ...] = (), **branch: object) -> GiteaPull:
    return GiteaPull(
        project="a/b", number=1, title="T", body="", url="", state="OPEN", draft=False, created_ms=0, updated="",
        head="h", base="main", base_commit="b", author=ForgeAccount("ada"), mergeable=None, merge_commit="", labels=(),
        reviews=(), remarks=(),
        reports=tuple(ProgramReport(ProgramStatus("x", name, state), 0) for name, state in statuses),
        merge_base="b", opinions=opinions, branch={"protected": True, **branch} if branch else None,
    )  # fmt: skip


def test_only_official_current_approvals_count() -> None:
    one = pull(
        opinion("ada"), opinion("ada"), opinion("eve", official=False), opinion("old", stale=True),
        opinion("gone", dismissed=True), opinion("bob", "REQUEST_CHANGES"), required_approvals=2,
    )  # fmt: skip
    assert one.approvals() == ("ada",) and not one.approved
    assert one.approvals(stale=True) == ("ada", "old")
    assert not pull(opinion("ada")).approved, "of a branch that asks for none"


@pytest.mark.parametrize(
    ("patterns", "statuses", "found"),
    [
        (["gate"], (), (False, ("gate",))),
        (["gate"], (("gate", "pending"),), (None, ("gate",))),
        (["gate"], (("gate", "success"), ("other", "failure")), (True, ())),
        (["g*"], (("gate", "failure"), ("go", "success")), (False, ("gate",))),
        (["g*", "lint"], (("gate", "pending"),), (False, ("gate", "lint"))),
        ([], (("lint", "warning"),), (False, ("lint",))),
    ],
)
def test_requested_statuses_are_required(
    patterns: list[str], statuses: tuple[tuple[str, str], ...], found: tuple[bool | None, tuple[str, ...]]
) -> None:
    one = pull(statuses=statuses, enable_status_check=True, status_check_contexts=patterns)
    (rule,) = rule_book(one, None, None) or ()
    assert (rule.met, rule.missing) == found


def test_a_branch_without_protection_and_one_that_is_not_seen() -> None:
    assert rule_book(pull(), None, None) is None
    assert rule_book(pull(protected=False), None, None) == ()


def test_changes_to_protected_files_are_not_permitted() -> None:
    rules = rule_book(pull(name="main"), {"protected_file_patterns": "*.lock; Docs/**"}, ("docs/x/y", "a.py"))
    assert [(one.text, one.met) for one in rules or ()] == [("needs to leave protected files alone (docs/x/y)", False)]
