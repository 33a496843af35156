"""Whether a machine has IPv6 that builds could use."""

from __future__ import annotations

import pytest

from headgate.adapters.process.network.veth import has_six

LOOPBACK = "00000000000000000000000000000001 01 80 10 80       lo\n"
LINK = "fe80000000000000505400fffe123456 02 40 20 80     eth0\n"
BUILD = "fd486561646700000000000000000000 07 7f 00 82   hg0-1\n"
GLOBAL = "20010db8000000000000000000000001 02 40 00 80     eth0\n"


@pytest.mark.parametrize(
    ("text", "has"),
    [("", False), (LOOPBACK, False), (LOOPBACK + LINK, False), (LINK + BUILD, False), (LOOPBACK + LINK + GLOBAL, True)],
)
def test_only_addresses_that_others_reach_count(text: str, has: bool) -> None:
    assert has_six(text) is has
