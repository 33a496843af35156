"""The files that pages are made of."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def document(script: str, title: str) -> str:
    """Return the document of a page."""
    return (STATIC / "page.html").read_text().replace("{title}", title).replace("{script}", script)
