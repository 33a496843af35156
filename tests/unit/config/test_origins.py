"""Test that the explanation of a job matches its frozen form, in all the cases of the language."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.config.explain import describe
from headgate.config.explain.origins import Attribute, Elements, explained
from headgate.config.freeze.sections import FreezeTarget
from headgate.config.model import FrozenJob

from .places import TENANTS, layout
from .test_cases import CASES

UNSET = describe.job(FrozenJob(""))
NOBODY_SETS = {
    "name", "parent_chain", "inheritance", "noop", "roles",
    # set by graphs, tenants and other attributes
    "dependencies", "ansible_version", "ansible_is_named", "post_review", "pre_timeout",
    "reuse",
}  # fmt: skip


def found_at(steps: dict[str, Any], path: str) -> Any:
    """Attributes may have dots in the names of their mappings: the longest existing name counts."""
    value: Any = steps
    names = path.split(".")
    while names:
        size = next(n for n in range(len(names), 0, -1) if ".".join(names[:n]) in value)
        value, names = value[".".join(names[:size])], names[size:]
    return value


@pytest.mark.parametrize("case", CASES)
def test_every_attribute_is_explained_with_its_actual_value(case: dict[str, Any]) -> None:
    made = layout(case["says"], case.get("tenants", TENANTS))
    for project in made.tenant.projects:
        for pipeline in made.pipelines:
            for branch in made.branches.get(project.project, ()):
                graph = made.freeze(pipeline, project.project, branch)
                for job in (*graph.jobs, *graph.reporters):
                    check(describe.job(job), explained(made, job.name, FreezeTarget(branch), pipeline, project.project))


def check(steps: dict[str, Any], found: Any) -> None:
    assert not found.errors
    explained_paths = set()
    for one in found.attributes:
        explained_paths.add(one.path.split(".")[0])
        if isinstance(one, Elements):
            values = [setting.value for setting in one.settings]
            assert values == [value for value in steps[one.path] if value in values]
        else:
            assert isinstance(one, Attribute)
            if one.path.split(".")[0] not in NOBODY_SETS:
                assert one.settings[-1].value == found_at(steps, one.path), one.path
        for setting in one.settings:
            assert setting.origin.line > 0 or not setting.origin.project
            assert 0 <= setting.origin.step <= len(found.variants)
    set_by_somebody = {key for key, value in steps.items() if value != UNSET[key]} - NOBODY_SETS
    assert set_by_somebody <= explained_paths
