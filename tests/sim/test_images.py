"""Test images that jobs build, with clouds that lie and launchers that die, and that wrong keepers are found."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from headgate.config.machines import FlatLabel
from headgate.map.inventory.images import ImageUpload
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.services.nodes.images.choice import ImageUse, upload_checks
from headgate.services.nodes.images.keeper import ImageKeeper
from headgate.services.nodes.images.lifecycle import UploadLife
from headgate.store.types import At
from headgate.testing.nodes.doubles import MachineInvariantBroken
from headgate.testing.nodes.imageworld import ImagingSimulation, MakeKeeper

SEEDS = range(max(1, int(os.environ.get("SIM_SEEDS", "200")) // 150))


@pytest.mark.long
def test_machines_are_made_from_the_newest_good_image_and_no_upload_is_forgotten() -> None:
    runs = [ImagingSimulation(seed) for seed in SEEDS]
    for run in runs:
        run.run()
    assert sum(run.deaths for run in runs) >= len(runs) // 2
    assert sum(run.machines for run in runs) > 10 * len(runs)
    assert sum(run.sent for run in runs) > 4 * len(runs)
    assert sum(run.refused for run in runs) > 0


def is_found(keeper: MakeKeeper) -> bool:
    for seed in range(12):
        try:
            ImagingSimulation(seed, keeper).run()
        except MachineInvariantBroken:
            return True
    return False


class _Careless(UploadLife):
    """Delete images that machines are made from."""

    async def _users(self, one: ImageUpload) -> int:
        return 0


class CarelessKeeper(ImageKeeper):
    """Delete images without a check whether they are used."""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        life = self._life
        self._life = _Careless(life.uploads, life.accounts, life.files)


class HoardingKeeper(ImageKeeper):
    """Delete nothing."""

    def _surplus(self, wanted: Mapping[tuple[str, str], ImageUse]) -> list[ImageUpload]:
        return []


@pytest.mark.mutant
def test_the_simulation_detects_a_keeper_that_deletes_images_in_use() -> None:
    assert is_found(CarelessKeeper)


@pytest.mark.mutant
def test_a_keeper_that_keeps_everything_is_found() -> None:
    assert is_found(HoardingKeeper)


def unchecked(labels: list[FlatLabel], map: Map, mirror: Mirror) -> list[At] | None:
    found = upload_checks(labels, map, mirror)
    return [] if found is not None else None


@pytest.mark.mutant
def test_the_simulation_detects_a_launcher_that_does_not_check_uploads_of_machines() -> None:
    def breaks(seed: int) -> bool:
        try:
            ImagingSimulation(seed, checks=unchecked).run()
        except MachineInvariantBroken:
            return True
        return False

    assert any(breaks(seed) for seed in range(20))
