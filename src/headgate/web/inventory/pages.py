"""The page of the inventory: one document, filled in by its script from the JSON beside it."""

from __future__ import annotations

from headgate.rest import HttpRequest, NotFoundException, Response, get
from headgate.web.files import document, static_file

FILES = ("inventory.js", "live.js", "page.js", "style.css", "icon.svg")
"""Static files that the page needs; they are served even without a gate."""


@get("/", include_in_schema=False)
async def inventory_page() -> Response[str]:
    """Return the page; its files are found beside it, wherever the inventory is served."""
    text = document("inventory", "Inventory").replace('"/static/', '"static/').replace('href="/"', 'href="?"')
    return Response(text, media_type="text/html", headers={"Cache-Control": "no-cache"})


@get(["/static/{name:str}", "/static/{edition:str}/{name:str}"], include_in_schema=False)
async def inventory_file(request: HttpRequest, name: str, edition: str = "") -> Response[bytes | None]:
    """Serve one of the files that the page is made of."""
    headers = request.headers
    if name not in FILES:
        raise NotFoundException(f"there is no {name}")
    return static_file(name, edition, headers.get("accept-encoding", ""), headers.get("if-none-match", ""))


PAGES = (inventory_page, inventory_file)
