"""Test which failed builds are held, for whom, and for how long."""

from __future__ import annotations

import pytest

from headgate.gate.state.autohold import EVERY, FORGOTTEN_S, RESULTS, HeldBuild, HoldRequest, chosen
from headgate.gate.state.change import Change

PROJECT = "git.example/code"
CHANGE = Change("local", PROJECT, "master", "fix", "c" * 40, ref="refs/for/master/fix")


def wanted(
    id: str = "1", ref_filter: str = EVERY, *, project: str = PROJECT, job: str = "unit", count: int = 1
) -> HoldRequest:
    return HoldRequest(id, "t", project, job, ref_filter, count, 60)


def held(build: str = "b", until_ms: int = 60_000) -> HeldBuild:
    return HeldBuild(build, "host", f"/builds/{build}", until_ms)


def choice(*requests: HoldRequest, change: Change = CHANGE, job: str = "unit", tenant: str = "t") -> str:
    found = chosen(requests, tenant, job, (change,))
    return found.id if found is not None else ""


def test_the_oldest_of_the_most_specific_requests_holds_a_build() -> None:
    every, alike, exact = wanted("1"), wanted("2", "refs/for/master/.*"), wanted("3", "refs/for/master/fix")
    assert choice(every, alike, exact) == "3"
    assert choice(alike, every) == "2"
    assert choice(wanted("5"), every) == "1"


@pytest.mark.parametrize(
    "other",
    [
        wanted(job="docs"),
        wanted(project="git.example/other"),
        wanted(ref_filter="refs/for/stable/.*"),
        wanted(ref_filter="refs/for/master/fi"),  # a filter matches the complete ref
        wanted(ref_filter="("),
        wanted(ref_filter="(?:(a+)+)+$" * 2),
    ],
)
def test_requests_for_others_hold_nothing(other: HoldRequest) -> None:
    assert choice(other) == ""


def test_nothing_is_held_for_another_tenant() -> None:
    assert choice(wanted(), tenant="other") == ""


def test_of_a_circle_each_change_counts() -> None:
    other = Change("local", "git.example/lib", "master", "fix", ref="refs/for/master/fix")
    assert chosen((wanted(),), "t", "unit", (other, CHANGE)) is not None


def test_results_are_those_of_the_reference() -> None:
    assert {"FAILURE", "RETRY_LIMIT", "POST_FAILURE", "TIMED_OUT"} == RESULTS


def test_an_autohold_holds_no_more_builds_than_its_count() -> None:
    one = wanted(count=2).holding(held("b1"), 1_000)
    assert one.expired_ms == 0 and choice(one) == "1"
    two = one.holding(held("b2"), 2_000)
    assert (two.expired_ms, [build.build for build in two.builds], choice(two)) == (2_000, ["b1", "b2"], "")


def test_each_build_is_released_in_time_and_the_request_is_deleted_a_day_later() -> None:
    request = wanted(count=2).holding(held("b1", 60_000), 0).holding(held("b2", 90_000), 30_000)
    assert request.next_ms == 60_000 and request.at(59_999) == request
    first = request.at(60_000)
    assert first is not None and [build.over for build in first.builds] == [True, False] and first.next_ms == 90_000
    second = first.at(90_000)
    assert second is not None and [build.over for build in second.builds] == [True, True]
    last_ms = 90_000 + FORGOTTEN_S * 1_000
    assert second.next_ms == last_ms and second.at(last_ms - 1) == second and second.at(last_ms) is None


def test_a_request_below_its_limit_waits_without_an_end() -> None:
    assert wanted().next_ms is None and wanted().at(10**15) == wanted()
    some = wanted(count=2).holding(held(), 0).at(60_000)
    assert some is not None and some.builds[0].over and some.next_ms is None and some.at(10**15) == some
