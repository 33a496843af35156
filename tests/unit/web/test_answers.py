"""Test the interpretation of Accept headers of clients."""

from __future__ import annotations

import pytest

from headgate.web.answers import takes_gzip


@pytest.mark.parametrize(
    ("header", "accepts"),
    [
        ("gzip, deflate, br", True),
        ("deflate, GZIP;q=0.5", True),
        ("*", True),
        ("*;q=0, gzip", True),
        ("gzip;q=0, *", False),
        ("gzip; q=0.000", False),
        ("*;q=0", False),
        ("identity", False),
        ("", False),
    ],
)
def test_gzip_is_accepted_as_its_own_entry_says_and_else_as_that_of_all(header: str, accepts: bool) -> None:
    assert takes_gzip(header) is accepts
