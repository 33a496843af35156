"""Provide an image with the usual contents of nodes, fetched once for all tests of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from headgate.adapters.process.containers.store import ImageSupply
from headgate.testing.servers.images import PYTHON, ImageRegistry, system

from .bench import Bench

LOOPBACK = ("127.0.0.1:*",)


@dataclass(frozen=True)
class Images:
    """`system` is the name of an image with Python, bash, rsync and the users `one` and `other`."""

    registry: ImageRegistry
    supply: ImageSupply
    system: str


@pytest.fixture
async def images(fetched_images: Images) -> AsyncIterator[Images]:
    """Lend the images to one test, and take them back at its end."""
    yield fetched_images
    while Bench.opened:
        await Bench.opened.pop().runner.close()


@pytest.fixture(scope="session")
def fetched_images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    if os.geteuid() != 0:
        pytest.skip("needs root, who has user namespaces for containers")
    if not PYTHON.exists() or not shutil.which("rsync"):
        pytest.skip("needs Debian's packages python3 and rsync")
    place = tmp_path_factory.mktemp("system")
    registry = ImageRegistry(place)
    before = os.environ.get("CONTAINERS_REGISTRIES_CONF")
    os.environ["CONTAINERS_REGISTRIES_CONF"] = str(registry.settings)
    yield Images(registry, ImageSupply(place / "kept", LOOPBACK, 10**9), registry.put("team/system", system()))
    registry.close()
    os.environ.pop("CONTAINERS_REGISTRIES_CONF")
    if before is not None:
        os.environ["CONTAINERS_REGISTRIES_CONF"] = before
