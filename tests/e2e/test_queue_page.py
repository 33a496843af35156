"""Test that every line of docs/how-to/use-queues.md runs unchanged, in a separate network where its ports are free."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from headgate.cli.queue.workerfile import read_worker_file
from headgate.cli.settings import read
from headgate.testing.clock import DEADLINE_S
from headgate.testing.servers.databases import new_database, zookeeper

from .copied import BIN, Page, run

PAGE = Page("use-queues.md", __file__)
block, lines = PAGE.block, PAGE.lines


def written(root: Path) -> None:
    (root / "worker.conf").write_text(block("# worker.conf"))
    (root / "jobs.py").write_text(block("# jobs.py"))


@pytest.mark.long
def test_from_the_first_message_to_a_worker_that_is_steered(tmp_path: Path) -> None:
    written(tmp_path)
    (serve,), (post, peek) = lines("headgate queue serve   "), lines("headgate queue post orders")
    export, worker, mail = lines("export KEY")
    listed, lag, groups, dead, replay, *steering, seek = lines("headgate queue list")
    again, from_old = lines("headgate queue import")
    (node,), (of_key,) = lines("node worker.mjs"), lines("headgate queue post -c worker.conf --key")
    (tmp_path / "worker.mjs").write_text(block("// worker.mjs"))
    (tmp_path / "parcels.py").write_text(block("# parcels.py"))
    (parcels,) = lines("python parcels.py")
    delay, *later = lines("headgate queue post -c worker.conf --delay")
    later += lines("headgate queue schedule") + lines("headgate queue bound")
    later += lines("headgate queue post -c worker.conf --priority")
    output = run(
        f"""
{serve} & until_up http://127.0.0.1:5000/__heartbeat__
echo 127.0.0.1 old > hosts; {post}; {peek}
{export}
{worker} > worker.log 2>&1 & until_said worker.log Processing
{mail}; headgate queue post -c worker.conf orders '{{"v": 2}}'
until_said worker.log "processed"; until_said worker.log "sent later"; until_said worker.log "giving up on message"
{listed}; {lag}; {groups}; {dead}; {replay}
{steering[0]}; headgate queue list -c worker.conf; {steering[1]}; {seek}
kill %2; wait %2
{node} > node.log 2>&1 & node=$!; until_said node.log "node processed.*v: 2"
{of_key}; until_said node.log "customer: 7"
{delay}; until_said node.log "reminder: true"; {"; ".join(later)}
{parcels} > parcels.log 2>&1 & parcels=$!; until_said parcels.log "packed 7"
kill $node $parcels; wait $node; wait $parcels
{again}
{from_old.replace("old:5000", "127.0.0.1:5000")}
""",
        tmp_path,
    )
    for text in (
        "posted to orders, a new queue",
        '"body":"{\\"v\\": 1}"',
        "unknown version",
        "1 posted again",
        "paused",
    ):
        assert text in output, output
    assert "processed {'v': 1}" in (tmp_path / "worker.log").read_text()


@pytest.mark.long
def test_a_server_for_more_than_one_machine(tmp_path: Path, postgres_server: str) -> None:
    """Without a separate network, because the database is outside."""
    (serve,) = lines("headgate queue serve --database")
    url = new_database(postgres_server)
    line = serve.replace("postgresql://queues@database/queues", url).replace("0.0.0.0:5000", "127.0.0.1:0")
    program = subprocess.Popen([str(BIN / "headgate"), *line.split()[1:]], cwd=tmp_path, stdout=-1, text=True)
    assert program.stdout is not None
    try:
        assert re.search(r"served at http://127.0.0.1:\d+/v1/sync/", program.stdout.readline())
    finally:
        program.terminate()
        program.communicate(timeout=DEADLINE_S)


@pytest.mark.long
def test_several_workers_share_queues_through_zookeeper(tmp_path: Path) -> None:
    written(tmp_path)
    with zookeeper(tmp_path / "zookeeper") as server:
        hosts = "zk1:2181,zk2:2181,zk3:2181"
        assert hosts in block("[zookeeper]")
        with (tmp_path / "worker.conf").open("a") as file:
            file.write(block("[zookeeper]").replace(hosts, f"127.0.0.1:{server.port}"))
        found = read_worker_file(tmp_path / "worker.conf", {"KEY": "x"})
        assert not found.choice.manual and found.store_url.startswith("zookeeper://127.0.0.1")
        command = [str(BIN / "headgate"), "worker", "-c", "worker.conf"]
        worker = subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "KEY": "x"}, stdout=-1, text=True)
        assert worker.stdout is not None
        try:
            assert "Processing queues of queuey" in worker.stdout.readline()
        finally:
            worker.terminate()
            worker.communicate(timeout=DEADLINE_S)


def test_workers_share_queues_through_the_server(tmp_path: Path) -> None:
    """test_worker_beside_gate.py tests that it works; here the page's file must be valid, with its job."""
    written(tmp_path)
    (tmp_path / "shared.conf").write_text(block("# shared.conf"))
    found = read_worker_file(tmp_path / "shared.conf", {"KEY": "x"})
    assert found.leases and found.routes().of("orders")


def test_two_keys_are_good_and_one_of_them_for_a_time(tmp_path: Path) -> None:
    (tmp_path / "headgate.conf").write_text(block("# in headgate.conf\n[application_keys]"))
    settings = read(tmp_path / "headgate.conf", {})
    assert settings.application_keys == {"sync": ["OLD-KEY", "NEW-KEY"]}
    assert list(settings.application_keys_until) == ["OLD-KEY"]


@pytest.mark.long
def test_a_gate_and_its_pipelines_receive_messages(tmp_path: Path) -> None:
    """The settings and the pipeline are checked together with the example of `headgate init`."""
    both = block("# in headgate.conf\n[published_events]") + block("# in headgate.conf\n[connection bus]")
    (tmp_path / "more.conf").write_text(both)
    (tmp_path / "pipeline.yaml").write_text(block("- pipeline"))
    merged = """
import yaml, sys
have, more = yaml.safe_load(open(sys.argv[1])), yaml.safe_load(open("pipeline.yaml"))
gate = next(one["pipeline"] for one in have if one.get("pipeline", {}).get("name") == "gate")
for name, value in more[0]["pipeline"].items():
    gate[name] = {**gate[name], **value} if isinstance(value, dict) and name in gate else value
open(sys.argv[1], "w").write(yaml.safe_dump(have))
"""
    (tmp_path / "merge.py").write_text(merged)
    output = run(
        """
headgate init gate > /dev/null; cat more.conf >> gate/headgate.conf
git clone -q gate/repositories/config work; file=$(grep -l "name: gate" work/*.yaml work/*/*.yaml 2>/dev/null | head -1)
python merge.py $file; git -C work -c user.name=a -c user.email=a@b commit -qam more; git -C work push -q
headgate check --config gate/headgate.conf
""",
        tmp_path,
        HEADGATE_MESSAGES_KEY="cafe",
    )
    assert ": no errors" in output, output


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("scheme", ["zookeeper://127.0.0.1:2181", "etcd://127.0.0.1:2181/x"])
def test_a_silent_store_is_reported_within_two_seconds(tmp_path: Path, scheme: str) -> None:
    text = f"[qdo-worker]\njob = os:getcwd\n[queuey]\napp_key = x\n[store]\nurl = {scheme}\n"
    (tmp_path / "worker.conf").write_text(text)
    (tmp_path / "mute.py").write_text(
        "import socket, time\ns = socket.create_server(('127.0.0.1', 2181))\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    run(
        """
python mute.py > mute.log & until_said mute.log up
headgate worker --version > /dev/null; began=$(date +%s%N)
headgate worker --version > /dev/null; start=$(( ($(date +%s%N) - began) / 1000000 )); began=$(date +%s%N)
headgate worker -c worker.conf > worker.log 2>&1 &
until_said worker.log "does not answer"
took=$(( ($(date +%s%N) - began) / 1000000 )); echo "$took ms, of which a process takes $start ms to start"
test $took -lt $(( 10000 + 10 * start ))  # the machine may be busy
""",
        tmp_path,
    )


def test_every_block_is_run_by_one_of_these() -> None:
    assert not PAGE.left_out
