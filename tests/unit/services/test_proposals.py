"""Test which proposals are judged at once, and what a turn sees of the others."""

from __future__ import annotations

import asyncio

import pytest

from headgate.config.dynamic import Judgement, LayoutRequest, TenantLayouts
from headgate.ports.judge import Judging
from headgate.services.scheduler.proposals import TIMES_MAX, Proposals

from ..config.places import layouts, texts

OWN = "- job: {name: j, run: r}\n- project: {check: {jobs: [j]}}\n"


class Slow:
    """Answer on request."""

    def __init__(self) -> None:
        self.requests: list[LayoutRequest] = []
        self.may_answer = asyncio.Event()
        self.broken = False

    async def judged(self, layouts: TenantLayouts, request: LayoutRequest) -> Judgement:
        self.requests.append(request)
        await self.may_answer.wait()
        if self.broken:
            raise ValueError("it does not work")
        return layouts.judged(request)


def request_for(made: TenantLayouts, text: str, files: tuple[str, ...] = ("zuul.yaml",)) -> LayoutRequest:
    found = texts(made.tenant, {"app": text})
    (project,) = found
    return LayoutRequest("b1", "check", project, "master", "", files, found)


@pytest.mark.parametrize(
    ("text", "files", "at_once"),
    [
        (OWN, ("a",), True),
        (OWN + "#" * 5_000, ("a",), False),
        (OWN, tuple(f"f{n}" for n in range(101)), False),
        (OWN + "- job: {name: k, vars: {a: &a [1], b: *a}}\n", ("a",), False),
        (OWN + "- job: {name: k, branches: '^(?!x)'}\n", ("a",), False),
        (OWN + '- job: {name: k, branches: "\\x28?!x)"}\n', ("a",), False),
        (OWN + '- job: {name: k, branches: "(\\\n  ?!x)"}\n', ("a",), False),
        (OWN + "- job: {name: k, branches: '(a)\\1'}\n", ("a",), False),
        (OWN + "- job: {name: k, branches: 'a++'}\n", ("a",), False),
        (OWN + "- job: {name: k, branches: '^stable/.*$'}\n", ("a",), True),
    ],
)
async def test_short_and_simple_proposals_are_judged_immediately(
    text: str, files: tuple[str, ...], at_once: bool
) -> None:
    made, judge = layouts({}), Slow()
    async with Proposals(Judging(judge), lambda: None) as proposals:
        found = proposals.over(made).judged(request_for(made, text, files))
    assert (found is not None) == at_once


async def test_landed_configuration_does_not_count_towards_the_size_of_a_proposal() -> None:
    made, judge = layouts({"app": OWN + "#" * 20_000}), Slow()
    async with Proposals(Judging(judge), lambda: None) as proposals:
        assert proposals.over(made).judged(request_for(made, OWN + "#" * 20_000)) is not None
        assert proposals.over(made).judged(LayoutRequest("b", "check", "git.acme/app", "master")) is not None


async def test_only_the_new_lines_of_a_file_count_towards_its_size() -> None:
    long = OWN + "".join(f"# {n}\n" * 10 for n in range(500))
    made, judge = layouts({"app": long + "# more\n"}), Slow()
    async with Proposals(Judging(judge), lambda: None) as proposals:
        assert proposals.over(made).judged(request_for(made, long + "- job: {name: k}\n")) is not None
        again = LayoutRequest(
            "b2", "check", "git.acme/app", "master", texts=texts(made.tenant, {"app": long + OWN * 100})
        )
        assert proposals.over(made).judged(again) is None, "lines said again are new"
        large = LayoutRequest("b3", "check", "git.acme/app", "master", texts=texts(made.tenant, {"app": long * 3}))
        assert proposals.over(made).judged(large) is None


async def test_an_answer_causes_a_turn() -> None:
    made, judge, stirred = layouts({}), Slow(), asyncio.Event()
    async with Proposals(Judging(judge, at_once_max_bytes=0), stirred.set) as proposals:
        question = request_for(made, OWN)
        assert proposals.judged(made, question) is None and proposals.judged(made, question) is None
        judge.may_answer.set()
        await stirred.wait()
        assert proposals.answered == 1 and len(judge.requests) == 1, "asked once"
        found = proposals.judged(made, question)
        assert found == made.judged(question)


@pytest.mark.parametrize("answered", [False, True], ids=["before the answer", "after the answer"])
async def test_a_layout_that_lands_while_a_proposal_is_judged_is_the_one_that_counts(answered: bool) -> None:
    old, new, judge, stirred = layouts({}), layouts({"lib": "- job: {name: k, run: r}\n"}), Slow(), asyncio.Event()
    async with Proposals(Judging(judge, at_once_max_bytes=0), stirred.set) as proposals:
        question = request_for(old, "- project: {check: {jobs: [k]}}\n")
        assert proposals.judged(old, question) is None
        if not answered:
            assert proposals.judged(new, question) is None
        judge.may_answer.set()
        await stirred.wait()
        stirred.clear()
        assert proposals.judged(new, question) is None, "asked again, about the new layout"
        await stirred.wait()
        found = proposals.judged(new, question)
        assert found == new.judged(question) != old.judged(question)
        assert len(judge.requests) == 2


async def test_an_item_is_frozen_at_last_though_layouts_keep_landing() -> None:
    judge, stirred = Slow(), asyncio.Event()
    judge.may_answer.set()
    made = [layouts({"lib": f"- job: {{name: k{n}, run: r}}\n"}) for n in range(5)]
    async with Proposals(Judging(judge, at_once_max_bytes=0), stirred.set) as proposals:
        question = request_for(made[0], OWN)
        for one in made[:TIMES_MAX]:
            assert proposals.judged(one, question) is None
            await stirred.wait()
            stirred.clear()
        assert proposals.judged(made[TIMES_MAX], question) == made[TIMES_MAX - 1].judged(question)
        assert len(judge.requests) == TIMES_MAX


async def test_a_judge_that_fails_is_an_error_of_the_item() -> None:
    made, judge, stirred = layouts({}), Slow(), asyncio.Event()
    judge.broken = True
    judge.may_answer.set()
    async with Proposals(Judging(judge, at_once_max_bytes=0), stirred.set) as proposals:
        assert proposals.judged(made, request_for(made, OWN)) is None
        await stirred.wait()
        found = proposals.judged(made, request_for(made, OWN))
    assert found is not None and "it does not work" in found.errors[0].text and found.errors[0].path == "zuul.yaml"
