"""`headgate image`: images that jobs build, their artifacts, and where they are uploaded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import click

from headgate.cli.identity.pages import pages
from headgate.cli.tables import common, show_answer, table
from headgate.cli.terminal.say import say

WHY_MAX_CHARS = 100


@click.group(name="image")
def command() -> None:
    """Show images of machines and where they are; build, validate, upload again and delete them."""


@command.command(name="list")
@common
@click.argument("image", required=False)
def listing(config: str | None, url: str | None, tenant: str | None, form: str | None, image: str | None) -> None:
    """List images, the artifacts built for each, and where they are; the newest first."""
    at = pages(config, url)
    found = [one for one in at.get(f"{at.of(tenant)}/images") if image in (None, one["name"])]
    rows = [row for one in found for row in _rows(one)]
    heads = ("IMAGE", "TYPE", "ARTIFACT", "BUILT", "UPLOAD", "AT", "STATE", "VALIDATED", "ABOUT")
    show_answer(found, form, partial(table, heads, rows, "There are no such images.", WHY_MAX_CHARS))


def _rows(image: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each upload, and one for each artifact or image that has none."""
    head, built = (image["name"], image["type"]), image.get("build_artifacts") or []
    if not built:
        yield *head, "", "", "", "", "", "", "nothing is built" if image["type"] == "zuul" else ""
    for artifact in built:
        of = (*head, artifact["uuid"], artifact["timestamp"])
        if not artifact["uploads"]:
            yield *of, "", "", artifact["state"], "", "it is nowhere"
        for one in artifact["uploads"]:
            valid = "yes" if one["validated"] else "no"
            yield *of, one["uuid"], one["endpoint_name"], one["state"], valid, one.get("why") or ""


@command.command()
@common
@click.argument("image")
def build(config: str | None, url: str | None, tenant: str | None, form: str | None, image: str) -> None:
    """Run the jobs that build an image."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/image/{quote(image, safe='')}/build", {})
    say(f"Requested a build of {image}.")


@command.command()
@common
@click.option("--upload", is_flag=True, help="ID names an upload: the artifact and its other uploads stay.")
@click.argument("id")
def delete(config: str | None, url: str | None, tenant: str | None, form: str | None, upload: bool, id: str) -> None:
    """Delete an artifact and its uploads, once no machine is made from it: the one before it is used again."""
    at = pages(config, url)
    kind = "image-upload" if upload else "image-build-artifact"
    at.delete(f"{at.of(tenant)}/{kind}/{quote(id, safe='')}")
    say(f"{id} is deleted once no machine is made of it.")


@command.command()
@common
@click.argument("upload")
def validate(config: str | None, url: str | None, tenant: str | None, form: str | None, upload: str) -> None:
    """Run the jobs that validate an upload again."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/image-upload/{quote(upload, safe='')}/validate", {})
    say(f"{upload} is tried again.")


@command.command()
@common
@click.argument("upload")
def retry(config: str | None, url: str | None, tenant: str | None, form: str | None, upload: str) -> None:
    """Try a failed upload again."""
    at = pages(config, url)
    at.post(f"{at.of(tenant)}/image-upload/{quote(upload, safe='')}/upload", {})
    say(f"{upload} is uploaded again.")
