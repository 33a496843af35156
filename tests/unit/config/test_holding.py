"""Test broken configuration that is pushed past the gate: which branches are held back, and which take effect."""

from __future__ import annotations

import pytest

from headgate.config.quarantine import LOOKS_MAX, held

from .places import BASE, Files, branches, layout, tenant

USED = "- job: {name: used, run: r.yaml}\n- job: {name: kept, run: r.yaml}\n"
HAD: Files = {"lib": USED, "app": "- project: {gate: {jobs: [used]}}\n"}


def back(pushed: Files, had: Files = HAD) -> list[str]:
    """project@branch of those that are held back."""
    acme = tenant()
    found = held(layout(had), branches(acme, pushed))
    return sorted(f"{project.rpartition('/')[2]}@{branch}" for project, branch in found)


@pytest.mark.parametrize(
    "text",
    [
        "- job: [",
        "- job: {name: used, rnu: r.yaml}\n- job: {name: kept, run: r.yaml}\n",
        "- job: {name: used, run: r.yaml}\n- job: {name: [kept], run: r.yaml}\n",
        "- job: {name: used, run: r.yaml, timeout: 99999999}\n- job: {name: kept, run: r.yaml}\n",
        "- job: {name: used, parent: nowhere, run: r.yaml}\n- job: {name: kept, run: r.yaml}\n",
        "- job: {name: kept, run: r.yaml}\n",
    ],
    ids=["no yaml", "a key", "a name", "refused", "refers to nothing", "others refer to it"],
)
def test_broken_configuration_that_removes_something_is_held_back(text: str) -> None:
    assert back({"lib": text}) == ["lib@master"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        USED + "- job: {name: other, rnu: x}\n",
        USED + "- job: {name: other, parent: nowhere}\n",
        USED + "- pipeline: {name: mine, manager: independent}\n",
        "- job: {name: used, run: other.yaml}\n- job: {name: kept, run: other.yaml}\n",
        "- job: {name: used, run: r.yaml}\n",
    ],
    ids=["all of it", "new and torn", "new and wrong", "new and forbidden", "right", "on purpose"],
)
def test_errors_in_new_stanzas_and_deliberate_removals_hold_nothing_back(text: str) -> None:
    had = {"lib": USED} if not text else HAD
    assert back({"lib": text}, had) == []


def test_a_broken_pipeline_is_held_back() -> None:
    assert back({"ops": BASE.replace("manager: dependent", "manager: [dep")}) == ["ops@master"]
    assert back({"ops": BASE.replace("manager: dependent", "manager: nobody")}) == ["ops@master"]


def test_other_projects_take_effect_while_one_branch_is_held_back() -> None:
    right = "- job: {name: more, run: r.yaml}\n- project: {gate: {jobs: [used, more]}}\n"
    assert back({"lib": "- job: [", "app": right}) == ["lib@master"]


def test_a_configuration_is_judged_together_with_pushes_to_other_projects() -> None:
    without = {"lib": "- job: {name: kept, run: r.yaml}\n", "app": "- project: {gate: {jobs: [kept]}}\n"}
    assert back(without) == []
    needs = {"app": "- project: {gate: {jobs: [fresh]}}\n", "lib": USED + "- job: {name: fresh, run: r.yaml}\n"}
    assert back(needs) == [] and back({"app": needs["app"]}) == ["app@master"]


@pytest.mark.heavy
def test_of_many_branches_those_that_are_wrong_are_found() -> None:
    had = {f"lib@b{n:03d}": f"- job: {{name: j{n}, run: r.yaml}}\n" for n in range(300)}
    pushed = {where: text.replace("r.yaml", "s.yaml") for where, text in had.items()}
    for wrong in ("lib@b007", "lib@b123", "lib@b250"):
        pushed[wrong] = "- job: ["
    assert back(pushed, had) == ["lib@b007", "lib@b123", "lib@b250"]


@pytest.mark.heavy
def test_the_search_ends_even_if_very_many_branches_are_all_wrong() -> None:
    had = {f"lib@b{n:03d}": f"- job: {{name: j{n}, run: r.yaml}}\n" for n in range(2 * LOOKS_MAX)}
    assert len(back(dict.fromkeys(had, "- job: ["), had)) == len(had)


def test_an_error_that_was_there_before_blocks_nothing() -> None:
    had = {"lib": USED + "- job: {name: odd, parent: nowhere}\n"}
    assert back({"lib": "# more\n" + USED + "- job: {name: odd, parent: nowhere}\n"}, had) == []
