"""Test that Headgate's own statuses on a forge start the pipelines that require them, like those of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.git import engine
from headgate.services import courier
from tests.integration.github.ground import SECRET

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
    trigger: {{{{hub: [{{{{event: {{event}}, action: status, status: {words}}}}}]}}}}
    require: {{{{hub: {{{{open: true, status: {words}}}}}}}}}
    success: {{{{hub: {{{{merge: true, comment: false}}}}}}}}
- job: {{{{name: unit, parent: null, run: jobs/unit}}}}
- project: {{{{name: ^127.0.0.1/.*, check: {{{{jobs: [unit]}}}}, gate: {{{{jobs: [unit]}}}}}}}}
"""
WORDS = {"github": '".*:example/check:success"', "gitea": '".*:example/check:success"', "pagure": "success"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier, "PAUSE_FIRST_S", 0.02)
    monkeypatch.setattr(engine, "REST_MAX_S", 0.0)


@pytest.mark.long
@pytest.mark.parametrize("name", list(WORDS))
async def test_a_status_of_the_check_brings_a_change_into_the_gate(name: str, tmp_path: Path) -> None:
    """Use pipelines in Zuul's form; full polls come only every few minutes."""
    async with placed(KINDS[name], tmp_path, CONFIG.format(words=WORDS[name])) as place:
        change = place.here.ada.propose(place.project, "one", {"one.txt": "1\n"}, "one", "")
        place.here.bob.comment(change, "test it")
        await place.merged(change)


@pytest.mark.long
async def test_a_check_run_of_an_app_brings_a_change_into_the_gate(tmp_path: Path) -> None:
    """Use the configuration of the how-to page."""

    def section_of(here: Any) -> dict[str, str]:
        key = tmp_path / "app.pem"
        key.write_text(here.hub.keys[here.app.id])
        where = {"server": here.hub.url, "webhook_token": SECRET}
        return {**where, "app_id": str(here.app.id), "app_key": str(key)}

    config = CONFIG.format(words=WORDS["github"]).replace("{{status: success,", "{{check: success,")
    config = config.replace("action: status, status:", "action: completed, check:")
    event = "trigger: {{hub: [{{event: {event}, action: completed"
    assert event in config
    config = config.replace(event, event.replace("{event}", "check_run"))
    async with placed(KINDS["github"]._replace(section=section_of), tmp_path, config) as place:
        change = place.here.ada.propose(place.project, "one", {"one.txt": "1\n"}, "one", "")
        place.here.bob.comment(change, "test it")
        await place.merged(change)
        assert [run.conclusion for run in place.project.check_runs.values()] == ["success"]
