"""Test that reports on a change link to its page, whatever characters its names have."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace as changed

from headgate.gate.builds.report import page_url, refusal
from headgate.gate.state.change import Change
from headgate.gate.state.world import World
from headgate.testing.plays import Play


def world(root_url: str, tenant: str = "example") -> World:
    return replace(Play().world, root_url=root_url, tenant=tenant)


CHANGE = Change("local", "git.example/code/api", "main", topic="one", commit="1" * 40)


def test_a_refusal_links_to_the_page_of_the_change() -> None:
    here = world(root_url="https://gate.example")
    reason = refusal(CHANGE, ("it lacks an approval",), here)
    assert reason.endswith(
        "\n\nhttps://gate.example/t/example/change?project=git.example%2Fcode%2Fapi&change=main%2Fone"
    )
    assert "http" not in refusal(CHANGE, ("it lacks an approval",), world(root_url=""))


@pytest.mark.parametrize("name", ["a b", "a&project=x", "a#b", 'a"><script>', "ä/../..", "%2F"])
def test_a_name_stays_one_name(name: str) -> None:
    address = urlsplit(page_url(changed(CHANGE, topic=name), world(root_url="https://gate.example", tenant="a/b")))
    assert address.path == "/t/a%2Fb/change" and address.fragment == ""
    assert parse_qs(address.query) == {"project": [CHANGE.project], "change": [f"main/{name}"]}


def test_an_update_of_a_ref_has_no_page_of_its_own() -> None:
    update = Change("local", "git.example/code/api", "main", commit="1" * 40, ref="refs/heads/main")
    assert page_url(update, world(root_url="https://gate.example")).endswith("/t/example/status")
