"""Test images that jobs build, as clients of the API see and control them."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from headgate.cli.main import group
from headgate.config.files.document import Table
from headgate.config.files.source import Source
from headgate.config.layout import Layout
from headgate.config.model import Pipeline, TriggerFilter
from headgate.config.parse import Stanza
from headgate.map.inventory.images import ImageArtifact, ImageFile, ImageUpload

from .conftest import TENANT, World, token
from .notation import shape, unlike
from .shapes import NAMED, READS

PROJECT = "git.example/config"
NAME = "git.example%2Fconfig/debian"
FILE = ImageFile(
    image=NAME, name="debian", project=PROJECT, connection="local", branch="master", build="b1", format="tar",
    url="http://logs/root.tar", sha256="a" * 64,
)  # fmt: skip
BUILT = ImageArtifact(id="art1", tenant="example", file=FILE, made_ms=61_000, since_ms=61_000)
OTHERS = replace(BUILT, id="art2", tenant="other")
THERE = ImageUpload(
    id="up1", artifact="art1", file=FILE, tenant="example", connection="local", region="r", state="failed",
    why="its server answers 503", tries=3, made_ms=61_000, since_ms=62_000,
)  # fmt: skip
READY = replace(THERE, id="up2", state="ready", validated=True, external_id="i-1", why="")
THEIRS = replace(READY, id="up3", artifact="art2", tenant="other")


async def furnished(world: World) -> Layout:
    """Provide two uploads of the tenant's own image and one of another's, and a pipeline that builds images."""
    map, store = world.running.context.map, world.running.context.store
    puts = [map.images.artifacts(one.id).record.put(one) for one in (BUILT, OTHERS)]
    puts += [map.image_uploads.uploads(one.id).record.put(one) for one in (THERE, READY, THEIRS)]
    for entry in await store.commit([], puts):
        assert entry is not None
        await world.running.context.mirror.reached(entry.path, entry.version)
    landed = world.site.tenant("example").layouts.landed
    source = Source(PROJECT, "local", "master", "zuul.yaml", True, "")
    for name, type in (("debian", "zuul"), ("bought", "cloud")):
        body = Table(1)
        body |= {"name": name, "type": type}
        landed.singles["image"][name] = Stanza("image", body, source, 1)
    return landed


async def test_images_are_listed_with_their_builds_and_uploads(world: World) -> None:
    await furnished(world)
    bought, debian = await world.get("T/images")
    assert not list(unlike([bought, debian], shape(READS["T/images"]), NAMED))
    assert "build_artifacts" not in bought and debian["canonical_name"] == NAME
    (artifact,) = debian["build_artifacts"]
    assert (artifact["uuid"], artifact["build_tenant"], artifact["sha256"]) == ("art1", True, "a" * 64)
    uploads = {one["uuid"]: (one["state"], one["validated"], one["endpoint_name"]) for one in artifact["uploads"]}
    assert uploads == {"up1": ("failed", False, "local/r"), "up2": ("ready", True, "local/r")}


@pytest.mark.parametrize(
    ("method", "path", "of", "do"),
    [
        ("DELETE", "image-build-artifact/art1", "art1", "delete"),
        ("DELETE", "image-upload/up2", "up2", "delete"),
        ("POST", "image-upload/up2/validate", "up2", "validate"),
        ("POST", "image-upload/up1/upload", "up1", "upload"),
    ],
)
async def test_people_with_permission_can_order_work_on_images(
    world: World, method: str, path: str, of: str, do: str
) -> None:
    await furnished(world)
    place = world.running.context.map.images.orders(of).record
    body = {} if method == "POST" else None
    for who, status in (({}, 401), (token(zuul=None), 403)):
        answer = await world.client.request(method, f"{TENANT}/{path}", json=body, headers=who)
        assert answer.status_code == status, answer.text
    assert await world.running.context.store.get(place.path) is None
    answer = await world.client.request(method, f"{TENANT}/{path}", json=body, headers=token())
    assert answer.status_code == (204 if method == "DELETE" else 200), answer.text
    entry = await world.running.context.store.get(place.path)
    assert entry is not None and place.decode(entry.value).do == do


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "image-build-artifact/art2", 404),
        ("DELETE", "image-upload/up3", 404),
        ("POST", "image-upload/up3/validate", 404),
        ("POST", "image-upload/up1/validate", 400),
        ("POST", "image-upload/up2/upload", 400),
        ("POST", "image/bought/build", 409),
        ("POST", "image/debian/build", 409),
    ],
)
async def test_requests_about_unknown_images_and_impossible_ones_are_refused(
    world: World, method: str, path: str, status: int
) -> None:
    await furnished(world)
    body = {} if method == "POST" else None
    answer = await world.client.request(method, f"{TENANT}/{path}", json=body, headers=token())
    assert answer.status_code == status, answer.text
    assert not list(world.running.context.mirror.under(world.running.context.map.images.orders.path))


async def test_a_requested_build_goes_to_the_pipelines_that_build_images(world: World) -> None:
    landed = await furnished(world)
    builds = Pipeline("b", "independent", triggers=(TriggerFilter("zuul", ("image-build",)),))
    landed.pipelines["b"] = builds
    await world.running.looked_at(PROJECT)
    answer = await world.client.post(f"{TENANT}/image/debian/build", json={}, headers=token())
    assert (answer.status_code, answer.json()) == (200, None), answer.text
    (did,) = [one for one in await world.get("T/actions") if one["verb"] == "build-image"]
    assert did["subject"] == "debian"


class Canned:
    """Answer like the pages, and record requests."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.requests = answer, list[tuple[str, str]]()

    def get(self, path: str) -> Any:  # JSON
        return self.answer

    def post(self, path: str, body: dict[str, Any]) -> None:
        self.requests.append(("POST", path))

    def delete(self, path: str) -> None:
        self.requests.append(("DELETE", path))

    def of(self, tenant: str | None) -> str:
        return TENANT


async def test_the_command_line_lists_and_steers_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await furnished(world)
    canned = Canned(await world.get("T/images"))
    monkeypatch.setattr("headgate.cli.nodes.pages", lambda config, url: canned)
    listed = CliRunner().invoke(group, ["image", "list"])
    assert listed.exit_code == 0, listed.output
    assert "its server answers 503" in listed.output and "local/r" in listed.output and "bought" in listed.output
    for words in (
        ["build", "debian"],
        ["delete", "art1"],
        ["delete", "--upload", "up1"],
        ["validate", "up2"],
        ["retry", "up1"],
    ):
        done = CliRunner().invoke(group, ["image", *words])
        assert done.exit_code == 0, done.output
    assert canned.requests == [
        ("POST", f"{TENANT}/image/debian/build"),
        ("DELETE", f"{TENANT}/image-build-artifact/art1"),
        ("DELETE", f"{TENANT}/image-upload/up1"),
        ("POST", f"{TENANT}/image-upload/up2/validate"),
        ("POST", f"{TENANT}/image-upload/up1/upload"),
    ]
