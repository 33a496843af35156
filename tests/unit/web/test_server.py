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
    log, memory = logging.getLogger("headgate.sample"), MemoryHandler(10, flushLevel=logging.CRITICAL)
    log.addHandler(memory)
    try:
        log.warning("not written yet")
        _configured(cast(Any, _nothing))
        assert [record.getMessage() for record in memory.buffer] == ["not written yet"]
    finally:
        log.removeHandler(memory)
    logging.getLogger("uvicorn.error").error("something is wrong")
    assert "something is wrong" in caplog.text, "it has the format of all other lines"
