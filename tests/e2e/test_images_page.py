"""Test the page of images: builds of each image, their places, ages and errors, and permitted actions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.async_api import Page, expect

from headgate.config.files.document import Table
from headgate.config.files.source import Source
from headgate.config.machines import FlatImage, FlatProvider
from headgate.config.parse import Stanza
from headgate.map.inventory.images import ImageArtifact, ImageFile, ImageUpload
from headgate.map.inventory.nodes import MadeNode
from headgate.store.types import Op
from headgate.testing.clock import DEADLINE_S
from headgate.web.access import Access
from headgate.web.site import Site

from .crowd import crowded
from .test_crowd import page, shoot
from .test_everybody import AXE, AXE_RUN, SIZES

__all__ = ["page"]

HOUR_MS = 3_600_000
NOW_MS = int(time.time() * 1000)
"""Open it as browsers do."""
NAME, FAR = "git.example%2Fconfig/debian", "local//d1"
EVIL = "</td><script>document.title = 'taken'</script>"
FILE = ImageFile(
    image=NAME, name="debian", project="git.example/config", connection="local", branch="master", build="b" * 32,
    format="qcow2", url="http://logs/root.qcow2", sha256="ab12" * 16, md5="cd34" * 8,
)  # fmt: skip
OLD = ImageArtifact(id="art1", tenant="example", file=FILE, made_ms=NOW_MS - 48 * HOUR_MS, since_ms=NOW_MS)
NEW = replace(OLD, id="art2", made_ms=NOW_MS - 2 * HOUR_MS)
THERE = ImageUpload(
    id="up1", artifact="art1", file=FILE, tenant="example", connection="local", digest="d1", state="ready",
    validated=True, external_id="img-1", made_ms=OLD.made_ms, since_ms=NOW_MS - 47 * HOUR_MS,
)  # fmt: skip
FAILED = replace(THERE, id="up2", artifact="art2", state="failed", validated=None, external_id="",
                 why=f"the cloud answers 507 {EVIL}", made_ms=NEW.made_ms, since_ms=NOW_MS - HOUR_MS)  # fmt: skip
PROVIDER = FlatProvider(
    "git.example%2Fconfig/main", "local", "podman", (),
    images=(FlatImage("debian", NAME, "git.example/config", "local", "master", "qcow2", digest="d1"),),
)  # fmt: skip
NODE = MadeNode(
    id="a" * 32, provider=PROVIDER.name, connection="local", label="small", state="ready", tenant="example",
    settings={"label": {}, "image": {"upload": "up1"}, "flavor": {}, "provider": {}},
)  # fmt: skip
MAY = ("build-image", "upload-image", "validate-image-upload", "delete-image-build-artifact", "delete-image-upload")


@dataclass(frozen=True)
class Furnished:
    site: Site
    url: str

    async def commit(self, *ops: Op) -> None:
        """Write, and wait until the pages can see it."""
        context = self.site.context
        for entry in await context.store.commit([], ops):
            assert entry is not None, "nothing is deleted here"
            await context.mirror.reached(entry.path, entry.version)


@pytest.fixture
async def furnished(tmp_path: Path) -> AsyncIterator[Furnished]:
    async with crowded(tmp_path, Access("operators")) as (site, url):
        yield await furnish(site, url)


async def furnish(site: Site, url: str) -> Furnished:
    """Provide two builds of an image, one of them only failed; an image that the cloud provides, and one that nobody
    built."""
    found, map = Furnished(site, url), site.context.map
    landed, source = site.tenant("example").layouts.landed, Source(FILE.project, "local", "master", "z.yaml", True, "")
    images = {"debian": {"type": "zuul"}, "bought": {"type": "cloud"}, "coming": {"type": "zuul"}}
    for name, more in images.items():
        body = Table(1)
        body |= {"name": name, **more}
        landed.singles["image"][name] = Stanza("image", body, source, 1)
    body = Table(1)
    body |= {"name": "main", "section": "none", "images": [{"name": "debian"}]}
    landed.singles["provider"]["main"] = Stanza("provider", body, source, 1)
    await found.commit(
        *(map.images.artifacts(one.id).record.put(one) for one in (OLD, NEW)),
        *(map.image_uploads.uploads(one.id).record.put(one) for one in (THERE, FAILED)),
        map.nodes.providers("example").provider("main").record.put(PROVIDER),
        map.nodes.made(NODE.id).record.put(NODE),
    )
    return found


@pytest.mark.long
async def test_the_page_shows_the_builds_of_images_and_their_uploads(furnished: Furnished, page: Page) -> None:
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    await page.goto(f"{furnished.url}/t/example/providers")
    await page.locator("main").get_by_role("link", name="images").click()
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(4)
    newest, older = rows.nth(2), rows.nth(3)
    await expect(newest).to_contain_text("2 h ago")
    for text in ("qcow2", "sha256 ab12ab12", "md5 cd34", "failed", "local", "main", "507"):
        await expect(newest).to_contain_text(text)
    assert await page.title() != "taken" and await page.locator("main script").count() == 0, "texts are texts"
    for text in ("2 days ago", "ready", "validated", "img-1", "1 machine uses it"):
        await expect(older).to_contain_text(text)
    await expect(rows.filter(has_text="bought")).to_contain_text("provided by the cloud")
    await expect(rows.filter(has_text="coming")).to_contain_text("not built yet")
    await expect(page.get_by_role("button", name="Delete upload")).to_have_count(0), "who looks on steers nothing"
    await page.get_by_label("Filter images").fill("507")
    await expect(rows).to_have_count(1)
    await page.get_by_label("Filter images").fill("")
    map = furnished.site.context.map
    await furnished.commit(map.image_uploads.uploads("up2").record.put(replace(FAILED, state="uploading", why="")))
    await expect(newest).to_contain_text("uploading")
    assert not wrong


@pytest.mark.long
async def test_permitted_people_control_images_on_the_page(furnished: Furnished, page: Page) -> None:
    await page.goto(f"{furnished.url}/t/example/images")
    await page.evaluate("sessionStorage.setItem('headgate-token', 'operators')")
    await page.reload()
    await page.get_by_role("button", name="Retry upload up2").click()
    await page.get_by_label("Reason, which").fill("it has room now")
    await page.locator("dialog button.go").click()
    await expect(page.locator("dialog")).to_have_count(0)
    place = furnished.site.context.map.images.orders("up2").record
    async with asyncio.timeout(DEADLINE_S):
        entry = await furnished.site.context.store.get(place.path)
    assert entry is not None and place.decode(entry.value).do == "upload"
    await expect(page.get_by_role("button", name="Build bought")).to_have_count(0)
    await shoot(page, "images")


@pytest.mark.long
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: `make tests/node/node_modules`")
async def test_axe_finds_nothing_on_a_page_of_images(furnished: Furnished, page: Page) -> None:
    await page.goto(f"{furnished.url}/t/example/images")
    await page.evaluate("sessionStorage.setItem('headgate-token', 'operators')")
    for size, (viewport, scheme) in SIZES.items():
        await page.set_viewport_size(viewport)  # type: ignore[arg-type]  # width and height
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # light or dark
        await page.reload()
        await expect(page.locator("tbody tr")).to_have_count(4)
        await expect(page.get_by_role("button", name="Delete upload up1")).to_be_visible()
        await page.evaluate(AXE.read_text())
        assert await page.evaluate(AXE_RUN) == [], size
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), size
        await shoot(page, f"images-{size}")
