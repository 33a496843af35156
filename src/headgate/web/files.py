"""The files that pages are made of."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headgate.rest import NotFoundException, Response
from headgate.web.manners import matches, takes_gzip

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FOR_EVER = "public, max-age=31536000, immutable"
"""Cache policy of an address that names the edition: its content never changes."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Hold one file as it is sent."""

    kind: str
    body: bytes
    packed: bytes
    tag: str


@cache
def files() -> dict[str, StaticFile]:
    """Return all files by name, as they were at the first call."""
    found = dict[str, StaticFile]()
    for path in sorted(STATIC.iterdir()):
        if path.suffix in TYPES:
            body = path.read_bytes()
            packed, tag = gzip.compress(body, 9, mtime=0), hashlib.sha256(body).hexdigest()[:24]
            found[path.name] = StaticFile(TYPES[path.suffix], body, packed, f'W/"{tag}"')
    return found


@cache
def edition() -> str:
    """Return an identifier of this version of all files."""
    return hashlib.sha256("".join(one.tag for one in files().values()).encode()).hexdigest()[:12]


def document(script: str, title: str) -> str:
    """Return the document of a page."""
    text = (STATIC / "page.html").read_text().replace("{title}", title).replace("{script}", script)
    return text.replace('"/static/', f'"/static/{edition()}/')


def static_file(name: str, asked_edition: str, accepted: str, known: str) -> Response[bytes | None]:
    """Answer a request for a file: of an edition, or, for an empty one, as it is now.  Modules name each other
    relatively, so that a page has all of one edition; after an upgrade, pages that are open get the files that there
    are.  Raise 404."""
    file = files().get(name)
    if file is None:
        raise NotFoundException(f"there is no {name}")
    # During an upgrade another process may answer for its edition: caches must not keep that under this address.
    cache_control = FOR_EVER if asked_edition == edition() else "no-cache"
    headers = {"Cache-Control": cache_control, "ETag": file.tag, "Vary": "Accept-Encoding"}
    if matches(known, file.tag):
        return Response(None, status_code=304, headers=headers)
    if takes_gzip(accepted):
        return Response(file.packed, media_type=file.kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.body, media_type=file.kind, headers=headers)
