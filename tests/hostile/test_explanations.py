"""Test that readers cannot occupy a server with the explanation of a job."""

from __future__ import annotations

from headgate.config.explain.origins import explained
from headgate.config.freeze.sections import FreezeTarget
from headgate.config.parse import TOO_LARGE
from tests.unit.config.places import layout

VARIANTS = 200


def test_a_job_of_countless_values_is_frozen_but_not_explained() -> None:
    """Each variant adds twenty tags, so its steps together describe 400,000."""
    tags = (", ".join(f"t{n}-{m}" for m in range(20)) for n in range(VARIANTS))
    variants = "".join(f"- job: {{name: unit, run: unit, tags: [{some}]}}\n" for some in tags)
    made = layout({"app": f"{variants}- project: {{check: {{jobs: [unit]}}}}\n"})
    (frozen,) = made.freeze("check", "git.acme/app", "master").jobs
    assert len(frozen.tags) == VARIANTS * 20
    found = explained(made, "unit", FreezeTarget("master"), "check", "git.acme/app")
    assert [error.name for error in found.errors] == [TOO_LARGE]
    assert 0 < len(found.variants) < VARIANTS, "what was explained until then is shown"
