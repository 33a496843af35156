"""Test that builds run as separate users."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from headgate.adapters.process.confinement.users import DEFAULT

from .bench import Bench

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who gives users to builds")

WHO = """
echo uid $(id -u) groups $(id -G) name $(id -un)
grep -E '^(Cap|NoNewPrivs)' /proc/self/status
echo open > /dev/stdout
touch /tmp/x /dev/shm/x $HOME/x $TMPDIR/x ok
git init -q . && git -c user.name=x -c user.email=y commit -q --allow-empty -m works && git log -1 --format=%s
"""


async def test_a_build_is_somebody_without_groups_and_capabilities(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap", keep_work_dir=True)
    run = bench.script("run", WHO)
    assert (await bench.build(run=(run,))).result == "SUCCESS", bench.log
    ids = re.search(r"uid (\d+) groups (\d+) name build", bench.log)
    assert ids and int(ids[1]) == int(ids[2]) and 0 <= int(ids[1]) - DEFAULT.first < DEFAULT.count
    assert len(re.findall(r"Cap\w+:\s+0{16}$", bench.log, re.MULTILINE)) == 5 and "NoNewPrivs:\t1" in bench.log
    assert "| open" in bench.log and "| works" in bench.log
    assert (bench.work / "src").stat().st_uid == int(ids[1])


async def test_two_builds_are_two_people(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    run = bench.script("run", "echo uid $(id -u); until test -e $ZUUL_LOG_DIR/go; do sleep 0.1; done")
    builds = [bench.start(run=(run,))]
    await bench.says("| uid")
    first, place = bench.log, bench.work
    builds.append(bench.start(run=(run,)))
    await bench.says("| uid")
    for go in (place / "logs/go", bench.work / "logs/go"):
        go.touch()
    assert [outcome.result for outcome in await asyncio.gather(*builds)] == ["SUCCESS"] * 2
    uids = [re.search(r"\| uid (\d+)", log) for log in (first, bench.log)]
    assert uids[0] and uids[1] and uids[0][1] != uids[1][1]


async def test_stored_logs_do_not_belong_to_the_user_of_the_build(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap")
    run = bench.script("run", "cd $ZUUL_LOG_DIR; mkdir d; cp /bin/true d/x; chmod 6777 d/x")
    assert (await bench.build(run=(run,))).result == "SUCCESS", bench.log
    file = bench.runner.log_root / bench.id / "d/x"
    assert file.stat().st_uid == 0 and not file.stat().st_mode & 0o6111
