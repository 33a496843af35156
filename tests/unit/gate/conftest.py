"""Every play is played twice: as one life, and with a restart of the scheduler after each act."""

from __future__ import annotations

import pytest

from headgate.testing.plays import Play
from tests.unit.gate.restarts import Restarts


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if Play in vars(metafunc.module).values():
        metafunc.parametrize("restarts", [False, True], ids=["", "restarted"], indirect=True)


@pytest.fixture(autouse=True)
def restarts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the scheduler knows after an act is what it wrote then."""
    if getattr(request, "param", False):
        known, act = Restarts(), Play.act

        def acted(play: Play, *events: object) -> None:
            act(play, *events)  # type: ignore[arg-type]  # whatever the play gives
            play.state = known.of(play).kept(play.state)

        monkeypatch.setattr(Play, "act", acted)
