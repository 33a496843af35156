"""Test that the places of queue workers match the published layout byte for byte."""

from __future__ import annotations

from headgate.map.check import check
from headgate.map.tree import render
from headgate.map.trees import StoreTree
from headgate.map.workers import ROOT, WORKER_PREFIX, Control, QueueMap, WorkerRecord
from headgate.queueing.partitions import QueuePartition
from headgate.queueing.progress import NEW, Progress
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store
from headgate.store.types import Append, Entry, Put

NS = "/mozilla/services/qdo"
QUEUE = "a4bb2fb6dcda4b68aad743a4746d7f58"
SYNC = QueueMap().app("sync")


def test_the_seed_places_of_queues_are_those_of_the_contract() -> None:
    assert ROOT == NS
    seeds = {row.template for row in render(QueueMap, ROOT) if row.seed}
    assert seeds == {f"{NS}/<app_name>{rest}" for rest in ("", "/workers", "/queues", "/queues/<queue>")}


def test_queues_and_their_progress() -> None:
    assert SYNC.progress(QueuePartition(QUEUE)).path == f"{NS}/sync/queues/{QUEUE}"
    assert SYNC.progress(QueuePartition(QUEUE)).put(NEW).value == b'{"last":""}'
    assert SYNC.progress(QueuePartition(QUEUE, 2)).path == f"{NS}/sync/queues/{QUEUE}/partitions/2"


async def test_workers_are_numbered_and_list_their_queues() -> None:
    store, value = Store(MemoryBackend()), SYNC.workers.encode(WorkerRecord((QUEUE,)))
    (entry,) = await store.commit([], [Append(SYNC.workers.path, value, None, WORKER_PREFIX)])
    assert entry is not None
    assert (entry.path, entry.value) == (
        f"{NS}/sync/workers/worker-0000000000",
        b'{"queues":["a4bb2fb6dcda4b68aad743a4746d7f58"]}',
    )


def test_a_store_written_by_others_is_on_the_map() -> None:
    written = {
        "workers/worker-0000000101": b'{"queues": []}',
        f"queues/{QUEUE}": b'{"last": "135471512647131000L"}',
        "queues/958f8c0643484f13b7fb32f27a4a2a9f": b'{"last": ""}',
    }
    entries = [Entry(f"{NS}/sync/{path}", value, 1, 1) for path, value in written.items()]
    ours = [
        Put(SYNC.owner(QueuePartition(QUEUE)).path, b"worker-0000000101"),
        SYNC.progress(QueuePartition(QUEUE, 7)).put(Progress("", epoch=1)),
        SYNC.controls(QueuePartition(QUEUE)).put(Control(paused=True)),
    ]
    entries += [Entry(put.path, put.value, 1, 1) for put in ours]
    findings = check(entries, [StoreTree(ROOT, QueueMap)])
    assert findings.good, findings.text()
    assert findings.alive == findings.seeds
    assert check(entries).good, "it is one of the trees"


def test_foreign_entries_are_reported() -> None:
    findings = check([Entry(f"{NS}/sync/queue-locks/x", b"", 1, 1)])
    assert not findings.good
