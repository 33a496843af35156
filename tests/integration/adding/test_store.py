"""Test that a store is a module and a row, and behaves like every store: `docs/how-to/add/a-store.md`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from headgate.base.errors import UserError
from headgate.cli.resources import open_store
from headgate.cli.settings import Settings, read
from headgate.store.registry import STORES, StoreKind
from headgate.store.types import Append, Backend, Lease, Put
from headgate.testing.clock import VirtualLoop
from headgate.testing.conformance import Conformance, Gap
from headgate.testing.stores.machine import Run, Subject, machine

from .slate import SlateBackend


class TestSlate(Conformance):
    @pytest.fixture
    async def backend(self, tmp_path: Path) -> Backend:
        return SlateBackend(tmp_path / "slate")

    @pytest.fixture
    def gap(self, backend: SlateBackend) -> Gap:
        return lambda: missed(backend)


async def missed(backend: Backend) -> None:
    assert isinstance(backend, SlateBackend)
    backend.tree.gap()


async def past(backend: Backend, lease: Lease, ttl_s: float) -> None:
    await asyncio.sleep(ttl_s + 1)  # virtual time


@contextmanager
def virtual() -> Iterator[Run]:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        yield runner.run


@pytest.mark.long
def test_the_store_behaves_like_the_model(tmp_path: Path) -> None:
    async def fresh() -> Backend:
        return SlateBackend(Path(tempfile.mkdtemp(dir=tmp_path)) / "slate")

    kind = machine(Subject(virtual, fresh, missed, past))
    run_state_machine_as_test(
        kind, settings=settings(max_examples=5, stateful_step_count=25, deadline=None, derandomize=True)
    )


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STORES, "slate://", StoreKind(f"{__package__}.slate", "slate://FILE"))


def named(root: Path, url: str) -> Settings:
    (root / "headgate.conf").write_text(f"[store]\nurl = {url}\n")
    return read(root / "headgate.conf", {})


async def test_a_store_is_opened_by_its_url_and_keeps_its_entries(tmp_path: Path, row: None) -> None:
    url = f"slate://{tmp_path}/slate"
    first = await open_store(named(tmp_path, url))
    written = await first.commit([], [Put("/a/b", b"1"), Append("/q", b"2")])
    await first.close()
    again = await open_store(named(tmp_path, url))
    assert list(await again.list("")) == list(written)
    (entry,) = await again.commit([], [Append("/q", b"3")])
    assert entry is not None and written[1] is not None and entry.path > written[1].path


async def test_an_invalid_slate_is_reported_with_a_remedy(tmp_path: Path, row: None) -> None:
    (tmp_path / "slate").write_text("[1, 2")
    with pytest.raises(UserError, match=r"this is no slate: .*; move it away"):
        await open_store(named(tmp_path, f"slate://{tmp_path}/slate"))


async def test_a_directory_that_does_not_exist_is_named_with_what_to_do(tmp_path: Path, row: None) -> None:
    with pytest.raises(UserError, match=r"barn is not a directory: make it, or name another in the URL"):
        await open_store(named(tmp_path, f"slate://{tmp_path}/barn/slate"))


def test_a_url_that_no_store_has_names_all_shapes(tmp_path: Path, row: None) -> None:
    with pytest.raises(
        UserError, match=r"unknown kind of store 'slat://x'; write it as .*etcd://.*, slate://FILE or memory:$"
    ):
        _ = named(tmp_path, "slat://x").store_url
