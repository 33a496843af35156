from __future__ import annotations

from pathlib import Path

import pytest

from headgate.testing.repositories import Repositories

LINES = "".join(f"{n}\n" for n in range(1, 10))


@pytest.fixture
def repositories(tmp_path: Path) -> Repositories:
    """Provide `code`, with a file of nine lines and one of one line."""
    found = Repositories(tmp_path)
    found.create("code", {"a": LINES, "b": "b\n"})
    return found
