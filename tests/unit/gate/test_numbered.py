"""Test changes of forges that number them: their names, and which of their parts stay the same."""

from __future__ import annotations

from msgspec.structs import replace

from headgate.gate.rules.refs import variables
from headgate.gate.state.change import Change

PULL = Change("hub", "github.com/acme/lib", "main", commit="a" * 40, ref="refs/pull/12/head", number="12")
GERRIT = replace(PULL, connection="review", project="review.acme/lib", number="4711", patchset="3", topic="big")
UPDATE = Change("hub", "github.com/acme/lib", "main", commit="b" * 40, ref="refs/heads/main")


def test_the_key_of_a_numbered_change_does_not_depend_on_its_branch() -> None:
    assert PULL.key == "github.com/acme/lib#12" == replace(PULL, branch="stable", commit="c" * 40).key
    assert GERRIT.key == "review.acme/lib#4711", "a topic is shared by many"
    assert PULL.is_change and not UPDATE.is_change


def test_a_patchset_is_named_by_its_number_or_by_its_commit() -> None:
    assert PULL.id == f"12,{'a' * 8}" and GERRIT.id == "4711,3"
    assert (variables(PULL)["change"], variables(PULL)["patchset"]) == ("12", "a" * 40)
    assert (variables(GERRIT)["patchset"], variables(GERRIT)["topic"]) == ("3", "big")


def test_plain_git_calls_its_changes_as_before() -> None:
    plain = Change("local", "acme/lib", "main", topic="mend", commit="a" * 40)
    assert (plain.key, plain.id, plain.name) == ("acme/lib/main/mend", f"mend,{'a' * 8}", "mend")
    assert variables(plain)["patchset"] == "a" * 40


def test_the_key_of_a_ref_needs_no_number() -> None:
    assert not UPDATE.name and UPDATE.key == "github.com/acme/lib@refs/heads/main"
    assert replace(UPDATE, ref="refs/tags/v1").tag == "v1" and not replace(PULL, ref="refs/tags/v1").tag
