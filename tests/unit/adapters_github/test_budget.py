"""Test how long GitHub asks clients to wait: with its current messages, older ones, and without any."""

from __future__ import annotations

import pytest

from headgate.adapters.forges.accounts import CallBudget
from headgate.ports.limits import QuietUntil


def left(remaining: int, reset: int, limit: int = 5000) -> dict[str, str]:
    figures = {"limit": limit, "remaining": remaining, "reset": reset}
    return {f"x-ratelimit-{name}": str(value) for name, value in figures.items()}


def test_an_exhausted_budget_is_waited_for_and_its_last_part_is_for_urgent_calls() -> None:
    budget = CallBudget()
    assert budget.wait_s(0) == 0
    budget.learn(left(501, 1000), 0)
    assert budget.wait_s(10, urgent=False) == 0
    budget.learn(left(500, 1000), 0)
    assert budget.wait_s(10, urgent=False) == 991
    assert budget.wait_s(10) == 0
    budget.learn(left(0, 1000), 0)
    assert budget.wait_s(10) == 991
    assert budget.wait_s(1001) == 0


def test_limits_seen_by_another_process_are_respected_and_reported() -> None:
    one, other = CallBudget(), CallBudget()
    one.refused(429, {"retry-after": "30"}, "", 1000)
    assert one.quiet(1000) == QuietUntil(1031, 0)
    assert other.wait_s(1001, others=one.quiet(1000)) == 30
    assert other.wait_s(1032, others=one.quiet(1000)) == 0
    one.learn(left(400, 2000), 1040)
    assert one.quiet(1040) == QuietUntil(0, 2001), "a tenth is left"
    assert other.wait_s(1041, others=one.quiet(1040)) == 0
    assert other.wait_s(1041, others=one.quiet(1040), urgent=False) == 960
    one.learn(left(0, 2000), 1042)
    assert one.quiet(1042) == QuietUntil(2001, 2001)
    assert one.quiet(2002) == QuietUntil(0, 0)


def test_the_last_quarter_is_for_projects_that_had_less_than_their_part() -> None:
    budget = CallBudget()
    budget.learn(left(5000, 3600), 0)
    for _ in range(3749):
        budget.counted("busy")
    budget.learn(left(1251, 3600), 1)
    assert budget.wait_s(1, project="busy") == 0, "nobody else is there"
    budget.counted("calm")
    assert budget.wait_s(1, project="busy") == 0
    budget.learn(left(1250, 3600), 1)
    assert budget.wait_s(1, project="busy") == 3600 and budget.wait_s(1, project="calm") == 0
    assert budget.wait_s(1, project="new") == 0 and budget.wait_s(1) == 0
    for _ in range(2600):
        budget.counted("calm")
    assert budget.wait_s(1, project="busy") == 0, "who had their part has nothing kept for them"
    budget.learn(left(5000, 7200), 3601)
    assert budget.wait_s(3601, project="busy") == 0 and not budget.had


def test_answers_that_overtake_one_another() -> None:
    budget = CallBudget()
    budget.learn(left(10, 1000), 0)
    budget.learn(left(12, 1000), 1)
    assert budget.remaining == 10
    budget.learn(left(4999, 4600), 1001)
    assert budget.remaining == 4999


@pytest.mark.parametrize(
    ("status", "message", "headers", "wait_s"),
    [
        (403, "You have exceeded a secondary rate limit. Please wait", {"retry-after": "30"}, 31),
        (403, "You have triggered an abuse detection mechanism", {"retry-after": "5"}, 6),
        (429, "Too many requests", {"retry-after": "7"}, 8),
        (403, "API rate limit exceeded for installation ID 1", left(0, 1500), 501),
        (403, "You have exceeded a secondary rate limit", {}, 60),
        (429, "", {}, 60),
        (200, "API rate limit exceeded for installation ID 1", left(0, 1500), 501),
        (403, "Resource not accessible by integration", left(40, 1500), None),
        (404, "Not Found", {}, None),
        (403, "You have exceeded a secondary rate limit", {"retry-after": "soon"}, 60),
        (403, "You have exceeded a secondary rate limit", {"retry-after": "9" * 15}, 86400),
    ],
)
def test_a_refusal_sets_the_time_to_wait(
    status: int, message: str, headers: dict[str, str], wait_s: float | None
) -> None:
    budget = CallBudget()
    assert budget.refused(status, headers, message, 1000) == wait_s
    assert budget.wait_s(1000) == (wait_s or 0)


def test_without_a_given_delay_each_wait_is_longer() -> None:
    budget = CallBudget()
    waits = [budget.refused(403, {}, "secondary rate limit", 1000) for _ in range(8)]
    assert waits == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    budget.answered()
    assert budget.refused(403, {}, "secondary rate limit", 1000) == 60
