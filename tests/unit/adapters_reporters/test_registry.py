"""What a connection of a reporter shows to everybody with read access."""

from __future__ import annotations

import pytest

from headgate.adapters.reporters.registry import REPORTERS


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example/services/T0/token", "https://hooks.example"),
        ("https://hooks.example:8443?token=t", "https://hooks.example:8443"),
        ("https://[2001:db8::1]:8443/x", "https://[2001:db8::1]:8443"),
        ("https://user:pass@hooks.example/x", "https://hooks.example"),
        ("https://user:p@ss@hooks.example/x", "https://hooks.example"),
        ("https://user:pa/ss@hooks.example/x", "…"),
        ("https://user:12/ss@hooks.example/x", "…"),
        ("https://user:12?ss@hooks.example/x", "…"),
        ("https://user:12#ss@hooks.example/x", "…"),
        ("https://user:p@s/s@hooks.example/x", "…"),
        ("https://user:pass", "…"),
        ("user:pass@hooks.example/x", "…"),
    ],
)
def test_a_webhook_shows_its_host_and_no_part_of_its_password(url: str, shown: str) -> None:
    assert REPORTERS["http"].shown({"url": url}) == shown
