"""What Headgate says at a forge starts the pipelines that ask for it, as what anybody else says there."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.git import engine
from headgate.services.reporting import courier

from .test_untested import KINDS, placed

CONFIG = """
- pipeline:
    name: check
    manager: independent
    trigger: {{{{hub: [{{{{event: {{event}}, action: comment, comment: ^test it$}}}}]}}}}
    success: {{{{hub: {{{{status: success, comment: false}}}}}}}}
- pipeline:
    name: gate
    manager: dependent
    trigger: {{{{hub: [{{{{event: {{event}}, action: status, status: {said}}}}}]}}}}
    require: {{{{hub: {{{{open: true, status: {said}}}}}}}}}
    success: {{{{hub: {{{{merge: true, comment: false}}}}}}}}
- job: {{{{name: unit, parent: null, run: jobs/unit}}}}
- project: {{{{name: ^127.0.0.1/.*, check: {{{{jobs: [unit]}}}}, gate: {{{{jobs: [unit]}}}}}}}}
"""
WORDS = {"github": '".*:example/check:success"', "gitea": '".*:example/check:success"', "pagure": "success"}


@pytest.mark.parametrize("name", list(WORDS))
async def test_a_status_of_the_check_brings_a_change_into_the_gate(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pipelines of the reference have it; all of it is looked at only every few minutes."""
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    monkeypatch.setattr(engine, "REST_MAX_S", 0.0)
    async with placed(KINDS[name], tmp_path, CONFIG.format(said=WORDS[name])) as place:
        change = place.here.ada.propose(place.project, "one", {"one.txt": "1\n"}, "one", "")
        place.here.bob.comment(change, "test it")
        await place.merged(change)
