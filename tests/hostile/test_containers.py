"""Jobs in containers, whose images somebody chose who means no good."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.adapters.process.containers.store import Supply
from headgate.testing.servers.images import Registry, shell
from tests.integration.builds.bench import Bench

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who has user namespaces for containers")
SECRET = "what-only-the-neighbour-has"
SOUGHT = SECRET.replace("has", "ha[s]")
"""A pattern that does not fit itself."""
VICTIM = f"umask 077; echo {SECRET} > private; echo {SECRET} > /private; export MINE={SECRET}; echo WAITING; sleep 300"
ATTACK = """
tried() { name=$1; shift; if out=$("$@" 2>&1); then echo "REACHED $name: $out"; fi; }
cd /
tried mount mount -t tmpfs none /etc
tried bind mount -o bind /proc /etc
tried remount mount -o remount,rw /proc/sys
tried umount umount /proc/sys
tried device mknod /disk b 254 0
tried device-in-memory mknod /tmp/disk b 254 0
tried unshare unshare -m true
tried user unshare -U true
for kind in mnt net pid user ipc; do tried setns-$kind nsenter --$kind=/proc/1/ns/$kind true; done
for file in /proc/sys/kernel/core_pattern /proc/sys/vm/overcommit_memory /proc/sysrq-trigger /proc/1/oom_score_adj; do
    tried "$file" sh -c "echo -999 > $file"
done
tried kcore head -c 1 /proc/kcore
for place in PLACES; do tried "$place" ls -d $place; done
tried chroot chroot /proc/1/root ls -d PRIVATE
mkdir -p /jail; tried out-of-it chroot /jail /bin/sh
tried setuid setuidgid 1000 /rooted id -u
for link in /proc/*/root /proc/*/cwd; do tried "$link" ls -d $link/PRIVATE; done
grep -rs SOUGHT /proc/*/environ /etc /var /run /home PLACES && echo REACHED the secret
ls -d /proc/[0-9]* | wc -l
echo DONE
"""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    found = Registry(tmp_path)
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(found.settings))
    yield found
    found.close()


def bench_of(root: Path) -> Bench:
    return Bench(root, "container", images=Supply(root / "images", ("127.0.0.1:*",), 10**9))


async def test_no_container_reaches_the_machine_or_another_one(tmp_path: Path, registry: Registry) -> None:
    own = tmp_path / "own"
    own.write_text(SECRET)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "podman.sock"))
        bench = bench_of(tmp_path)
        image = registry.put("team/evil", shell(rooted=(0o4755, Path("/bin/busybox").read_bytes())))
        victim = bench.start(run=(bench.script("victim", VICTIM),), image=image)
        await bench.says("| WAITING")
        theirs = bench.runner.root / bench.id
        places = [
            own, engine.getsockname(), theirs, theirs / "work", theirs / "container/upper/private",
            tmp_path / "images/store", "/run/podman/podman.sock", "/var/run/docker.sock",
            "/var/lib/containers", "/root/.ssh", "/usr/bin/python3", "/dev/vda", "/dev/mem", "/dev/kmsg",
        ]  # fmt: skip
        script = ATTACK.replace("SOUGHT", SOUGHT).replace("PLACES", " ".join(map(str, places)))
        attack = bench.script("attack", script.replace("PRIVATE", str(own)))
        outcome = await bench.build(run=(attack,), image=image)
        assert outcome.result == "SUCCESS" and "| DONE" in bench.log, bench.log
        reached = [line for line in bench.log.splitlines() if "REACHED" in line]
        assert not reached, "\n".join(reached)
        assert not victim.done()
        victim.cancel()
        await asyncio.wait({victim})
        await bench.runner.close()
        Bench.opened.remove(bench)


async def test_links_of_an_image_lead_nowhere(tmp_path: Path, registry: Registry) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o777)
    (outside / "hosts").write_text("as it was")
    bench = bench_of(tmp_path)
    for above in ("etc", "tmp", "proc", "sys"):
        entries = {name: entry for name, entry in shell().items() if not name.startswith(f"{above}/")}
        image = registry.put(f"team/{above}", {**entries, above: f"../../../../oldroot{outside}"})
        outcome = await bench.build(run=(bench.script("run", "echo RAN"),), image=image)
        assert outcome.result == "NODE_FAILURE" and f"/{above} of the image" in outcome.error, outcome
    assert [file.name for file in outside.iterdir()] == ["hosts"] and (outside / "hosts").read_text() == "as it was"
    await bench.runner.close()
    Bench.opened.remove(bench)


async def test_links_that_a_job_leaves_for_the_next_lead_nowhere(tmp_path: Path, registry: Registry) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    image = registry.put("team/tools", shell())
    bench = bench_of(tmp_path)
    first = bench.script("run", f"rm /etc/hosts; ln -s {outside}/hosts /etc/hosts; echo 127.0.0.1 x > /etc/resolv.conf")
    second = bench.script("post", "test ! -L /etc/hosts && grep localhost /etc/hosts && ! grep x /etc/resolv.conf")
    assert (await bench.build(run=(first,), post_run=(second,), image=image)).result == "SUCCESS", bench.log
    moving = bench.script("run", "mv /etc /e; ln -s /e /etc")
    outcome = await bench.build(run=(moving,), post_run=(second,), image=image)
    assert outcome.result == "POST_FAILURE" and "/etc of the image" in outcome.error, outcome
    assert not list(outside.iterdir())
    await bench.runner.close()
    Bench.opened.remove(bench)


BUILT = """
FROM BASE
COPY leaks into/
ENV LD_PRELOAD=/leak.so
RUN ls -d PLACES && echo REACHED; mount -t tmpfs none /etc && echo REACHED; cat /into/leak && echo REACHED; id -u
RUN ln -s / /built && mkdir -p PLACE/of && touch PLACE/of/mine
"""


async def test_a_file_of_a_proposal_builds_with_no_more_rights_than_a_job(tmp_path: Path, registry: Registry) -> None:
    own = tmp_path / "own"
    own.write_text(SECRET)
    bench = bench_of(tmp_path)
    store = tmp_path / "images"
    text = BUILT.replace("BASE", registry.put("team/tools", shell())).replace("PLACES", f"{own} {store}/store/root")
    (bench.source / "leaks").mkdir()
    (bench.source / "leaks/leak").symlink_to(own)
    (bench.source / "Containerfile").write_text(text.replace("PLACE", f"{store}/built"))
    (bench.source / "elsewhere").symlink_to(own)
    run = bench.script("run", "ls -ld /into/leak /built")
    outcome = await bench.build(run=(run,), image_file="Containerfile")
    assert outcome.result == "SUCCESS" and "| 0\n" in bench.log, bench.log
    assert "| REACHED" not in bench.log and SECRET not in bench.log
    assert len(list((store / "built").iterdir())) == 1, "what it wrote there is in its own layer"
    for odd in ("elsewhere", "elsewhere/x"):
        outcome = await bench.build(run=(run,), image_file=odd)
        assert outcome.result == "ERROR" and "symbolic link" in outcome.error, outcome
    endless = f"FROM {registry.address}/team/tools:1\nRUN sleep 300\n"
    (bench.source / "Endless").write_text(endless)
    outcome = await bench.build(run=(run,), image_file="Endless", timeout_s=1)
    assert outcome.result == "TIMED_OUT" and not list((store / "building").iterdir()), outcome
    await bench.runner.close()
    Bench.opened.remove(bench)
