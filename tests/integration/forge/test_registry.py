"""Test that a driver is a row of the registry: its connections are created, used in pipelines, and reached by
mergers."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.forges.registry import FORGES, ForgeDriver
from headgate.adapters.option import ConnectionOption
from headgate.base.errors import UserError
from headgate.cli.resources import connected, connection_shapes, connections, known_connections
from headgate.cli.settings import Settings

from .board import HOST, Board

ROW = ForgeDriver(
    "tests.integration.forge.board",
    {"token": ConnectionOption("text", "", "how it is spoken to")},
    ("token", "a token"),
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORGES, "board", ROW)


def settings(tmp_path: Path, token: str = "not a secret") -> Settings:
    hub = {"driver": "board", "token": token, "canonical_hostname": ""}
    local = {"driver": "git", "baseurl": str(tmp_path), "canonical_hostname": "git.example"}
    return Settings(tmp_path / "headgate.conf", {}, {"hub": hub, "local": local})


def test_its_connections_are_made_of_their_sections(tmp_path: Path) -> None:
    found = connected(settings(tmp_path))["hub"]
    assert isinstance(found.forge, Board) and found.forge.name == "hub"
    assert found.git.url(f"{HOST}/code/api") == str(tmp_path / "board" / "hub" / "code" / "api")


def test_mergers_and_tenants_know_forges_next_to_plain_git(tmp_path: Path) -> None:
    of = settings(tmp_path)
    at = connections(of)
    assert list(at) == ["local", "hub"]
    known = known_connections(of, at)
    assert (known["hub"].driver, known["hub"].canonical_hostname) == ("board", HOST)
    assert {one.name: one.source for one in connection_shapes(of)} == {"hub": True, "local": True}


def test_errors_in_a_section_name_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"headgate.conf: \[connection hub\]: the token is not a token"):
        connected(settings(tmp_path, token="short"))
