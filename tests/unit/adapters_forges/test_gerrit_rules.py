"""Which votes a submit requirement waits for."""

from __future__ import annotations

import pytest

from headgate.adapters.forges.gerrit.entities import ChangeInfo, GerritExpression, Requirement
from headgate.adapters.forges.gerrit.translation import missing, rules

VERIFIED = "label:Verified=MAX AND -label:Verified=MIN"


def unmet(expression: str, passing: str = "", failing: str = "", status: str = "UNSATISFIED") -> Requirement:
    atoms = GerritExpression(
        expression=expression, passing_atoms=tuple(passing.split()), failing_atoms=tuple(failing.split())
    )
    return Requirement(name="Rule", status=status, submittability=atoms)


@pytest.mark.parametrize(
    ("requirement", "labels"),
    [
        (unmet(VERIFIED, "", "label:Verified=MAX label:Verified=MIN"), ("Verified",)),
        (unmet(VERIFIED, "label:Verified=MIN", "label:Verified=MAX"), ("Verified",)),
        (unmet(VERIFIED, "label:Verified=MAX label:Verified=MIN", ""), ("Verified",)),
        (unmet("label:A=MAX -label:A=MIN", "label:A=MAX label:A=MIN"), ("A",)),
        (unmet("label:A=MAX AND label:B=MAX", "label:B=MAX", "label:A=MAX"), ("A",)),
        (unmet("label:A=MAX AND label:B=MAX", "", "label:A=MAX label:B=MAX"), ("A", "B")),
        (unmet("label:Verified=MAX AND -has:unresolved", "has:unresolved", "label:Verified=MAX"),
         ("Verified", "has:unresolved")),
        (unmet("NOT has:unresolved", "has:unresolved"), ("has:unresolved",)),
        (unmet("-(label:A=MIN OR has:x)", "has:x", "label:A=MIN"), ("has:x",)),
        (unmet("NOT (has:x AND -has:y)", "has:x", "has:y"), ("has:x", "has:y")),
        (unmet("label:Verified=MAX OR label:Trusted=MAX", "", "label:Verified=MAX label:Trusted=MAX"), ("Verified",)),
        (unmet("label:Code-Review=MAX,user=non_uploader", "", "label:Code-Review=MAX,user=non_uploader"),
         ("Code-Review",)),
        (unmet("", "", ""), ("Rule",)),
        (unmet(") ( - AND NOT", "", ""), ("Rule",)),
    ],
)  # fmt: skip
def test_missing_labels_are_named_for_each_requirement(requirement: Requirement, labels: tuple[str, ...]) -> None:
    assert missing(requirement, {"Verified"}) == labels


def info(*requirements: Requirement, wip: bool = False) -> ChangeInfo:
    return ChangeInfo(
        number=1, project="p", branch="master", change_id="I1", status="NEW", requirements=requirements,
        work_in_progress=wip, permitted_labels={"Verified": ("-1", "+1")},
    )  # fmt: skip


@pytest.mark.parametrize("status", ["SATISFIED", "OVERRIDDEN", "NOT_APPLICABLE", "FORCED"])
def test_rules_that_are_met_or_do_not_apply_block_nothing(status: str) -> None:
    assert [rule.met for rule in rules(info(unmet(VERIFIED, status=status)))] == [True]


def test_requirements_with_errors_and_work_in_progress_keep_a_change_back() -> None:
    error, wip = rules(info(unmet("label:", status="ERROR"), wip=True))
    assert error.met is False and error.missing == ("Rule",) and "lacks Rule" in error.text
    assert wip.met is False and not wip.missing and "work in progress" in wip.text
