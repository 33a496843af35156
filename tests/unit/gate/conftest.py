"""Run plays as one life, or with a restart of the scheduler after each act.

`make soak` runs each play in both ways, `make test` in one that depends on its name.
"""

from __future__ import annotations

import pytest

from headgate.testing.plays import Play
from tests.tiers import SOAK, is_named, turn
from tests.unit.gate.restarts import Restarts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if Play in vars(metafunc.module).values():
        lives = {"": False, "restarted": True}
        if not (SOAK or is_named(metafunc.config)):
            name = list(lives)[turn(metafunc.function.__qualname__, len(lives))]
            lives = {name: lives[name]}
        metafunc.parametrize("restarts", list(lives.values()), ids=list(lives), indirect=True)


@pytest.fixture(autouse=True)
def restarts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an act, the scheduler knows exactly what it wrote."""
    if getattr(request, "param", False):
        known, act = Restarts(), Play.act

        def acted(play: Play, *events: object) -> None:
            act(play, *events)  # type: ignore[arg-type]  # whatever the play gives
            play.state = known.of(play).reloaded(play.state)

        monkeypatch.setattr(Play, "act", acted)
