"""Test that a missing or broken package of an extra is distinguished from a defect of Headgate."""

from __future__ import annotations

import pytest

from headgate.base.errors import MissingPackage, needing

ABSENT = ModuleNotFoundError("No module named 'grpc'", name="grpc.aio")
UNLOADABLE = ImportError("no pq wrapper available")
DEFECTS = (
    ModuleNotFoundError("No module named 'headgate.nowhere'", name="headgate.nowhere"),
    ImportError("cannot import name 'x'", name="headgate.base"),
)


@pytest.mark.parametrize(
    ("error", "why"), [(ABSENT, "the package grpc is not installed"), (UNLOADABLE, "no pq wrapper available")]
)
def test_the_error_names_the_feature_its_extra_and_the_reason(error: ImportError, why: str) -> None:
    with pytest.raises(MissingPackage) as raised, needing("a store", "etcd"):
        raise error
    assert str(raised.value) == f"a store needs pip install 'headgate[etcd]' ({why})"


@pytest.mark.parametrize("error", DEFECTS)
def test_import_errors_caused_by_defects_are_not_translated(error: ImportError) -> None:
    with pytest.raises(type(error)) as raised, needing("a store", "etcd"):
        raise error
    assert raised.value is error


def test_without_an_extra_nothing_is_promised() -> None:
    with pytest.raises(ModuleNotFoundError) as raised, needing("a store", ""):
        raise ABSENT
    assert raised.value is ABSENT
