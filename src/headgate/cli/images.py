"""Options of the settings about images for jobs."""

from __future__ import annotations

from headgate.cli.option import Option
from headgate.config.kinds.image import PUBLIC

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
    "image_dir": Option("path", "", "Where images are stored. Default: `images` in state_dir."),
    "images_size_max_mb": Option(
        "integer:1,1000000000",
        "50000",
        "Size of all images; above half of it, the least recently used ones are deleted.",
    ),
}
"""Options of executors about images."""
