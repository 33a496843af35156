"""The page of the inventory: one document, filled in by its script from the JSON beside it."""

from __future__ import annotations

from litestar import MediaType, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from headgate.web.files import STATIC, TYPES, document

FILES = ("inventory.js", "page.js", "style.css", "icon.svg")
"""What the page needs, also where no gate is served."""


@get("/", include_in_schema=False)
async def inventory_page() -> Response[str]:
    """Its files are found beside it, wherever the inventory is served."""
    text = document("inventory", "Inventory").replace('"/static/', '"static/').replace('href="/"', 'href="?"')
    return Response(text, media_type=MediaType.HTML, headers={"Cache-Control": "no-cache"})


@get("/static/{name:str}", include_in_schema=False)
async def inventory_file(name: FromPath[str]) -> Response[bytes]:
    if name not in FILES:
        raise NotFoundException(f"there is no {name}")
    file = STATIC / name
    kind = f"{TYPES[file.suffix]}; charset=utf-8"
    return Response(file.read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})


PAGES = (inventory_page, inventory_file)
