"""Provide a Glance that receives images, for the tests of its driver."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest

from headgate.adapters.nodes.clouds.openstack.images import GlanceImages
from headgate.ports.clouds import SYSTEM_TAG, UPLOAD_TAG, WantedImage
from headgate.testing.clouds.glance import Glance
from headgate.testing.clouds.openstack import OpenStackGround, glance_ground


@pytest.fixture
async def ground() -> AsyncIterator[OpenStackGround]:
    async with glance_ground() as found:
        yield found


@pytest.fixture
def glance(ground: OpenStackGround) -> Glance:
    return ground.services.glance


@pytest.fixture
async def images(ground: OpenStackGround) -> AsyncIterator[GlanceImages]:
    driver = ground.driver()
    yield driver.images
    await driver.close()


def wanted(content: bytes, format: str, id: str, /, **tags: str) -> WantedImage:
    """Return an image of Headgate's with that id; `tags` are set besides its own, and before them."""
    digest = hashlib.sha256(content).hexdigest()
    tags = {SYSTEM_TAG: "ours", UPLOAD_TAG: id, **tags}
    return WantedImage(id, "debian", format, digest, {}, {"region": "RegionOne"}, tags)
