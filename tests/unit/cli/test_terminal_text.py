"""Test that text from outside moves no cursor, sets no title and turns no line where commands draw it."""

from __future__ import annotations

import pytest
from rich.console import Console

from headgate.cli.board import board, unreachable
from headgate.cli.inventory.client import ServiceAddress
from headgate.cli.inventory.tables import one_object, show
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.web.shapes import Length, StateShape, StatusShape, TroubleShape

HOSTILE = "\x1b]0;taken over\x07\x1b[2J\x9b31m\u202egood\nbad"


def harmless(text: str) -> bool:
    return "good" in text and text.replace("\n", "").isprintable()


def drawn(what: object) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_a_trouble_is_one_harmless_line() -> None:
    status = StatusShape(
        zuul_version="0",
        state=StateShape(loaded=True, trigger_queue_paused=True, reason=HOSTILE),
        trigger_event_queue=Length(0),
        management_event_queue=Length(0),
        connection_event_queues={},
        last_reconfigured=None,
        pipelines=(),
        troubles=(TroubleShape("code/api", HOSTILE, 0),),
    )
    assert harmless(drawn(board(status)))
    assert harmless(drawn(unreachable(board(status), HOSTILE)))


def test_an_object_is_shown_as_harmless_lines(capsys: pytest.CaptureFixture[str]) -> None:
    found = pb.Object(name=HOSTILE, type="host", tags=[HOSTILE])
    found.properties["rack"] = HOSTILE
    said = ServiceAddress()
    one_object(said, found)
    show(said, [found], ["name"], [[HOSTILE]])
    assert harmless(capsys.readouterr().out)
