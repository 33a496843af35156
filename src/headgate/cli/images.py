"""What the settings say of images for jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.base.errors import UserError
from headgate.cli.option import Option
from headgate.config.kinds.image import PUBLIC, BadImageName, ImageName

if TYPE_CHECKING:
    from headgate.adapters.process.containers.store import ImageSupply
    from headgate.cli.settings import Settings

MB_BYTES = 1_000_000
IMAGES = {
    "image": Option(
        "text", "", "Image of jobs that name none. Default: their programs are those of this machine, in bubblewrap."
    ),
    "images": Option(
        "text",
        PUBLIC,
        "Images that jobs may name: patterns with space between, `*` for any text. The executor fetches them, and may "
        "reach registries that jobs do not.",
    ),
    "image_dir": Option("path", "", "Where images are kept. Default: `images` in state_dir."),
    "images_size_max_mb": Option(
        "integer:1,1000000000", "50000", "Of all images; beyond half of it those go that were unused longest."
    ),
}
"""Options of executors."""


def image_supply(settings: Settings) -> ImageSupply | None:
    """Return what jobs in containers have; None: there are none.  Raises UserError."""
    from headgate.adapters.process.containers.store import ImageSupply

    get = settings.get
    if get("executor", "sandbox") != "container":
        return None
    if default := get("executor", "image"):
        try:
            ImageName.read(default)
        except BadImageName as bad:
            raise UserError(f"{settings.path}: [executor] image: {bad}") from bad
    return ImageSupply(
        settings.place("executor", "image_dir", "images"),
        tuple(get("executor", "images").split()),
        int(settings.number("executor", "images_size_max_mb") * MB_BYTES),
        default,
    )
