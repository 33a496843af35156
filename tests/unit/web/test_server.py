"""Test how a server of pages is set up."""

from __future__ import annotations

import logging
from logging.handlers import MemoryHandler
from typing import Any, cast

import pytest

from headgate.web.server import _configured


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    """Answer nothing."""


def test_a_server_leaves_the_log_of_the_process_alone(caplog: pytest.LogCaptureFixture) -> None:
    log, kept = logging.getLogger("headgate.sample"), MemoryHandler(10, flushLevel=logging.CRITICAL)
    log.addHandler(kept)
    try:
        log.warning("not written yet")
        _configured(cast(Any, _nothing))
        assert [record.getMessage() for record in kept.buffer] == ["not written yet"]
    finally:
        log.removeHandler(kept)
    logging.getLogger("uvicorn.error").error("something is wrong")
    assert "something is wrong" in caplog.text, "it has the format of all other lines"
