"""Measure other ways to process messages, as their users do it."""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench.queues.places import KEY, free_port, program, server, until
from headgate.testing.servers.databases import zookeeper


def original(partitions: int, count: int, size_bytes: int) -> float:
    """Measure SetPartitioner; for every message, read the progress, read the message, write the progress."""
    from kazoo.client import KazooClient

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with zookeeper(root / "zookeeper") as store, server(root, f"sqlite:///{root / 'm.sqlite'}") as (port, _):
            call = _Http(port)
            for queue, number in (("bench", partitions), ("qdo_status", 7)):
                call("POST", "/v1/queuey", f"queue_name={queue}&partitions={number}")
            batch = [{"body": "x" * size_bytes, "partition": n % partitions + 1} for n in range(count)]
            for first in range(0, count, 500):
                call(
                    "POST", "/v1/queuey/bench", json.dumps({"messages": batch[first : first + 500]}), "application/json"
                )
            status = {n: f"{(n - 1) % 7 + 1}%3A{uuid.uuid1().hex}" for n in range(1, partitions + 1)}
            for place in status.values():
                call("PUT", f"/v1/queuey/qdo_status/{place}", json.dumps({"processed": ""}))
            zk = KazooClient(f"127.0.0.1:{store.port}")
            zk.start()
            share = zk.SetPartitioner("/worker", set=tuple(status), time_boundary=0.1)
            while not share.acquired:
                share.wait_for_acquire(1)
            began_s, processed = time.time(), 0
            while processed < count:
                for n in list(share):
                    processed += _one(call, n, status[n])
            rate = count / (time.time() - began_s)
            share.finish()
            zk.stop()
            return rate


def _one(call: _Http, partition: int, status: str) -> int:
    state = json.loads(call("GET", f"/v1/queuey/qdo_status/{status}")["messages"][0]["body"])
    since = state["processed"]
    query = f"?partitions={partition}&limit=2" + (f"&since={since}" if since else "")
    fresh = [m for m in call("GET", f"/v1/queuey/bench{query}")["messages"] if m["message_id"] != since]
    if not fresh:
        return 0
    call("PUT", f"/v1/queuey/qdo_status/{status}", json.dumps({**state, "processed": fresh[0]["message_id"]}))
    return 1


class _Http:
    """Send requests over one persistent connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def __call__(self, method: str, path: str, body: str = "", kind: str = "application/x-www-form-urlencoded") -> dict:  # type: ignore[type-arg]
        headers = {"Authorization": f"Application {KEY}", "Content-Type": kind}
        self._connection.request(method, path, body or None, headers)
        return dict(json.loads(self._connection.getresponse().read()))


ACTORS = """
import os, time, dramatiq
from dramatiq.brokers.redis import RedisBroker
dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS"]))
@dramatiq.actor(max_retries=3)
def process(body, number, last):
    if number == last or number < 0:
        with open("done.tmp", "w") as file:
            file.write(str(time.time()))
        os.replace("done.tmp", "done")
"""


@contextmanager
def _dramatiq(root: Path, threads: int) -> Iterator[object]:
    """Provide an actor, with a worker process of this many threads beside a Redis that appends to a file."""
    import sys

    port = free_port()
    os.environ["BENCH_REDIS"] = f"redis://127.0.0.1:{port}/0"
    (root / "bench_actors.py").write_text(ACTORS)
    redis = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "yes", "--dir", str(root)]
    work = [sys.executable, "-m", "dramatiq", "bench_actors", "--processes", "1", "--threads", str(threads)]
    with program(redis, root):
        time.sleep(0.5)
        sys.path.insert(0, str(root))
        # The module of an earlier measurement has a broker at another port.
        sys.modules.pop("bench_actors", None)
        try:
            import bench_actors  # type: ignore[import-not-found]  # written just now

            with program([*work, "--path", str(root)], root):
                time.sleep(3)
                yield bench_actors.process
        finally:
            sys.path.remove(str(root))


def _done(root: Path) -> float:
    file = root / "done"
    until(file.exists, 300)
    at_s = float(file.read_text())
    file.unlink()
    return at_s


def dramatiq(threads: int, count: int, size_bytes: int) -> float:
    """Measure Dramatiq; several threads do not process messages in order."""
    with tempfile.TemporaryDirectory() as name, _dramatiq(Path(name), threads) as actor:
        began_s = time.time()
        for n in range(count):
            actor.send("x" * size_bytes, n, count - 1)  # type: ignore[attr-defined]  # an actor
        return count / (_done(Path(name)) - began_s)


def dramatiq_latency(threads: int, tries: int, size_bytes: int) -> list[float]:
    found = []
    with tempfile.TemporaryDirectory() as name, _dramatiq(Path(name), threads) as actor:
        for _ in range(tries):
            began_s = time.time()
            actor.send("x" * size_bytes, -1, 0)  # type: ignore[attr-defined]  # an actor
            found.append(_done(Path(name)) - began_s)
            time.sleep(0.02)
    return sorted(found)


def skip_locked(url: str, threads: int, count: int, size_bytes: int) -> float:
    """Measure a table whose workers lock, process and delete the oldest free row; several do not keep the order."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop table if exists plain; create table plain (id bigserial primary key, body text)")
        left, end = [count], threading.Event()

        def work() -> None:
            with psycopg.connect(url) as own:
                while not end.is_set():
                    row = own.execute(
                        "select id, body from plain order by id for update skip locked limit 1"
                    ).fetchone()
                    if row is not None:
                        own.execute("delete from plain where id = %s", (row[0],))
                        left[0] -= 1
                    own.commit()
                    if left[0] <= 0:
                        end.set()

        workers = [threading.Thread(target=work) for _ in range(threads)]
        began_s = time.time()
        for worker in workers:
            worker.start()
        for first in range(0, count, 500):
            rows = [("x" * size_bytes,)] * min(500, count - first)
            with connection.cursor() as cursor, connection.transaction():
                cursor.executemany("insert into plain (body) values (%s)", rows)
        for worker in workers:
            worker.join()
        return count / (time.time() - began_s)


POLL_S = 0.1
"""Interval at which an idle worker of a plain table polls."""


def skip_locked_latency(url: str, tries: int, size_bytes: int) -> list[float]:
    found: list[float] = []
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop table if exists plain; create table plain (id bigserial primary key, body text)")

        def work() -> None:
            with psycopg.connect(url, autocommit=True) as own:
                while len(found) < tries:
                    row = own.execute(
                        "delete from plain where id = (select id from plain order by id for update skip locked limit 1)"
                        " returning body"
                    ).fetchone()
                    if row is None:
                        time.sleep(POLL_S)
                    else:
                        found.append(time.time() - began_s)

        began_s = time.time()
        worker = threading.Thread(target=work)
        worker.start()
        for n in range(tries):
            # Pauses of different lengths, so that posts fall into all phases of the poll interval.
            time.sleep(0.02 + 0.1 * n / tries)
            began_s = time.time()
            connection.execute("insert into plain (body) values (%s)", ("x" * size_bytes,))
            until(lambda n=n: len(found) > n)
        worker.join()
    return sorted(found)


def raw_postgres(url: str, count: int, size_bytes: int) -> float:
    """Measure the database alone: insertion in batches of 500, each committed, then reading in pages."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop table if exists raw; create table raw (id bigserial primary key, body text)")
        began_s = time.time()
        for _ in range(0, count, 500):
            with connection.transaction(), connection.cursor().copy("copy raw (body) from stdin") as copy:
                for _ in range(500):
                    copy.write_row(("x" * size_bytes,))
        for after in range(0, count, 500):
            connection.execute("select id, body from raw where id > %s order by id limit 500", (after,)).fetchall()
        return count / (time.time() - began_s)


def raw_sqlite(root: Path, count: int, size_bytes: int) -> float:
    import apsw

    connection = apsw.Connection(str(root / "raw.sqlite"))
    # Each commit is on disk when it returns, as it is with ours.
    connection.execute("pragma journal_mode = wal; pragma synchronous = full")
    connection.execute("create table raw (id integer primary key, body text)")
    began_s = time.time()
    for _ in range(0, count, 500):
        connection.execute("begin immediate")
        connection.executemany("insert into raw (body) values (?)", [("x" * size_bytes,)] * 500)
        connection.execute("commit")
    for after in range(0, count, 500):
        connection.execute("select id, body from raw where id > ? order by id limit 500", (after,)).fetchall()
    return count / (time.time() - began_s)
