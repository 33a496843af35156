"""Which change a ref proposes, and which one a footer means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.adapters.git.poll.names import HEADS, Names
from headgate.config.operator.model import TenantProject

API, LIB = "git.example/code/api", "git.example/code/api/lib"


def names(**branches: str) -> Names:
    """`api` and `lib` -> their branches."""
    projects = {"api": API, "lib": LIB}
    found = Names(TenantProject(p, p.removeprefix("git.example/"), "local", False) for p in projects.values())
    for project, canonical in projects.items():
        found.saw(canonical, [HEADS + branch for branch in branches.get(project, "master").split()])
    return found


@pytest.mark.parametrize(
    ("ref", "branch", "topic"),
    [
        ("master/one", "master", "one"),
        ("stable/1.0/ada/fix", "stable/1.0", "ada/fix"),
        ("stable/ada", "", ""),
        ("master", "", ""),
        ("master/", "", ""),
        ("mastr/one", "", ""),
    ],
)
def test_of_branch_and_topic_the_branch_is_the_longest_there_is(ref: str, branch: str, topic: str) -> None:
    assert names(api="master stable/1.0").split(API, ref) == (branch, topic)


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=6), st.sets(st.sampled_from(["a", "a/b", "a/b/c", "b"])))
def test_branch_and_topic_together_are_the_ref(parts: list[str], branches: set[str]) -> None:
    ref = "/".join(parts)
    branch, topic = names(api=" ".join(branches) or "none").split(API, ref)
    if branch:
        assert f"{branch}/{topic}" == ref and branch in branches
        assert not any(ref.startswith(f"{longer}/") for longer in branches if len(longer) > len(branch))
    else:
        assert not any(ref.startswith(f"{known}/") for known in branches)


@pytest.mark.parametrize(
    ("footer", "key"),
    [
        ("code/api/master/one", f"{API}/master/one"),
        ("git.example/code/api/master/one", f"{API}/master/one"),
        ("code/api/lib/master/one", f"{LIB}/master/one"),
        ("code/api/stable/1.0/a/b", f"{API}/stable/1.0/a/b"),
        ("/code/api/master/one/", f"{API}/master/one"),
    ],
)
def test_a_footer_names_a_change_by_project_branch_and_topic(footer: str, key: str) -> None:
    found = names(api="master stable/1.0", lib="master").needs(f"Do it\n\nDepends-On: {footer}\n")
    assert found == ((key,), ())


@pytest.mark.parametrize("footer", ["code/api/nowhere/one", "nobody/master/one", "https://git.example/x", "code/api"])
def test_a_footer_that_names_nothing_stays_as_written(footer: str) -> None:
    assert names().needs(f"Do it\n\nDepends-On: {footer}\n") == ((), (footer,))


def test_footers_count_once_in_any_case_and_with_any_line_ends() -> None:
    footers = (
        "depends-on: code/api/master/one\r",
        "DEPENDS-ON:\tcode/api/master/two ",
        "Depends-On: code/api/master/one",
    )
    assert names().needs("\n".join(("Do it", "", *footers))) == ((f"{API}/master/one", f"{API}/master/two"), ())
    assert names().needs("Talks of Depends-On: code/api/master/one in a line") == ((), ())


def test_a_repository_without_branches_cannot_have_proposals() -> None:
    found = names()
    found.saw(API, ["refs/for/master/one", "refs/tags/v1"])
    assert "has no branches yet; push the first commit" in found.misfit(API, "master/one")
    assert "names no existing branch" in found.misfit(LIB, "mastr/one")
