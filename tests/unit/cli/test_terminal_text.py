"""Test that foreign text neither moves the cursor nor sets the title nor reverses a line in the output of commands."""

from __future__ import annotations

from collections.abc import Mapping

import click
import msgspec
import pytest

from headgate.base.errors import UserError
from headgate.cli import autohold, components, main, quarantine
from headgate.cli.inventory.calls import ServiceAddress, one_object, show
from headgate.cli.status import board, unreachable
from headgate.cli.terminal.screen import Drawing
from headgate.inventory.wire import inventory_pb2 as pb
from headgate.web.routes.autohold import HeldShape, HoldShape
from headgate.web.routes.quarantine import AsideShape, DamagedShape, OutboxShape, QuarantineShape, ReportsShape
from headgate.web.shapes import ComponentShape, Length, ProblemShape, StateShape, StatusShape

HOSTILE = "\x1b]0;taken over\x07\x1b[2J\x9b31m\u202egood\nbad"
ASIDE = AsideShape(id=HOSTILE, kind=HOSTILE, what=HOSTILE, tenant=HOSTILE, error=HOSTILE, since=0, tries=1, retry="")


def harmless(text: str) -> bool:
    whole_lines = not any(line.startswith("bad") for line in text.splitlines())
    return "good" in text and whole_lines and text.replace("\n", "").isprintable()


def drawn(what: Drawing) -> str:
    return "\n".join(line.plain for line in what.lines(200))


class Pages:
    """Answer like Headgate's pages, with text that anybody wrote."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        self._answers = answers

    def of(self, tenant: str | None) -> str:
        return "/api/tenant/example"

    def get(self, path: str) -> object:
        return msgspec.to_builtins(self._answers[path.partition("?")[0]])

    def post(self, path: str, body: object) -> None:
        """Accept the request."""


def test_a_problem_is_one_harmless_line() -> None:
    status = StatusShape(
        zuul_version="0",
        state=StateShape(loaded=True, trigger_queue_paused=True, reason=HOSTILE),
        trigger_event_queue=Length(0),
        management_event_queue=Length(0),
        connection_event_queues={},
        last_reconfigured=None,
        pipelines=(),
        problems=(ProblemShape("code/api", HOSTILE, 0),),
    )
    assert harmless(drawn(board(status)))
    assert harmless(drawn(unreachable(board(status), HOSTILE)))


def test_an_object_is_shown_as_harmless_lines(capsys: pytest.CaptureFixture[str]) -> None:
    found = pb.Object(name=HOSTILE, type="host", tags=[HOSTILE])
    found.properties["rack"] = HOSTILE
    address = ServiceAddress()
    one_object(address, found)
    show(address, [found], ["name"], [[HOSTILE]])
    assert harmless(capsys.readouterr().out)


HELD = HeldShape(build=HOSTILE, nodes=(HOSTILE,), directory=HOSTILE, executor=HOSTILE, until=0, over=False)
AUTOHOLD = HoldShape(
    id=HOSTILE, tenant="example", project=HOSTILE, job=HOSTILE, ref_filter=HOSTILE, max_count=1, current_count=1,
    reason=HOSTILE, node_expiration=1, expired=None, nodes=(HELD,), who=HOSTILE,
)  # fmt: skip
COMPONENT = ComponentShape(
    name=HOSTILE, hostname=HOSTILE, state=HOSTILE, version=HOSTILE, pid=1, accepting=True, zone=HOSTILE,
    lacks=(HOSTILE,),
)  # fmt: skip
PROBLEM = ProblemShape(HOSTILE, HOSTILE, 0)
ANSWERS: Mapping[str, object] = {
    "/api/tenant/example/autohold": [AUTOHOLD],
    "/api/components": {"web": [COMPONENT]},
    "/api/problems": [PROBLEM],
    "/api/quarantine": QuarantineShape(aside=(ASIDE,), damaged=(DamagedShape(HOSTILE, HOSTILE),)),
    "/api/reports": ReportsShape(
        outboxes=(OutboxShape(connection=HOSTILE, waiting=1, oldest=0, problem=HOSTILE, since=0),),
        undelivered=(ASIDE,),
    ),
}


@pytest.mark.parametrize(
    ("module", "command", "arguments"),
    [
        (autohold, autohold.command, ["list"]),
        (components, components.command, []),
        (components, components.command, ["pause", HOSTILE]),
        (quarantine, quarantine.quarantine_commands, ["list"]),
        (quarantine, quarantine.quarantine_commands, ["show", HOSTILE]),
        (quarantine, quarantine.reports_commands, ["list"]),
    ],
)
def test_lists_contain_no_control_characters(
    module: object,
    command: click.Command,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "pages", lambda *_: Pages(ANSWERS))
    command.main(arguments, standalone_mode=False)
    shown = capsys.readouterr().out
    if arguments[:1] == ["show"]:  # an error keeps its own lines
        shown = shown.replace("\nbad", "")
    assert harmless(shown), shown


def test_errors_that_quote_foreign_text_contain_no_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise UserError(f"no such change: {HOSTILE}")

    monkeypatch.setattr(main, "group", refuse)
    with pytest.raises(SystemExit):
        main.main()
    assert harmless(capsys.readouterr().err.replace("\nbad", ""))
