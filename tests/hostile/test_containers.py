"""Test jobs in containers with hostile images."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.process import imagebuild
from headgate.adapters.process.bounds.limits import ProcessBounds
from headgate.adapters.process.containers import podman, store
from headgate.adapters.process.containers.store import ContainerStore, ImageSupply
from headgate.adapters.process.imagebuild import Layers
from headgate.adapters.process.processes import ProcessKeeper
from headgate.testing.servers.images import Entry, ImageRegistry, shell
from tests.integration.builds.bench import Bench

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, who has user namespaces for containers")
SECRET = "what-only-the-neighbour-has"
SOUGHT = SECRET.replace("has", "ha[s]")
"""A pattern that does not match itself."""
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
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageRegistry]:
    found = ImageRegistry(tmp_path)
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(found.settings))
    yield found
    found.close()


def bench_of(root: Path, size_max_bytes: int = 10**9, **more: Any) -> Bench:
    return Bench(root, "container", images=ImageSupply(root / "images", ("127.0.0.1:*",), size_max_bytes), **more)


@pytest.mark.long
async def test_no_container_reaches_the_machine_or_another_one(tmp_path: Path, registry: ImageRegistry) -> None:
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
            "/var/lib/containers", Path.home() / ".ssh", "/usr/bin/python3", "/dev/vda", "/dev/mem", "/dev/kmsg",
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


@pytest.mark.long
async def test_links_of_an_image_lead_nowhere(tmp_path: Path, registry: ImageRegistry) -> None:
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


@pytest.mark.long
async def test_links_that_a_job_leaves_for_the_next_lead_nowhere(tmp_path: Path, registry: ImageRegistry) -> None:
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


@pytest.mark.long
async def test_files_that_a_layer_removes_are_not_in_the_container(tmp_path: Path, registry: ImageRegistry) -> None:
    """Check that files that an image removed, such as a key used in its build, are in none of its containers."""
    above: dict[str, Entry] = {"d/.wh..wh..opq": (0o644, b""), "d/new": b"", "e/.wh.old": (0o644, b"")}
    image = registry.put("team/replaced", shell(d__old=b"x", e__old=b"x"), above)
    bench = bench_of(tmp_path)
    (bench.source / "Containerfile").write_text(f"FROM {image}\nRUN rm -r /d && mkdir /d\n")
    run = bench.script("run", "echo found: $(ls /d /e)")
    assert (await bench.build(run=(run,), image=image)).result == "SUCCESS", bench.log
    assert "| found: /d: new /e:\n" in bench.log, bench.log
    assert (await bench.build(run=(run,), image_file="Containerfile")).result == "SUCCESS", bench.log
    assert "| found: /d: /e:\n" in bench.log, bench.log
    await bench.runner.close()
    Bench.opened.remove(bench)


@pytest.mark.long
async def test_a_shell_of_an_image_is_held_to_limits_and_keeps_nobody_waiting(
    tmp_path: Path, registry: ImageRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "TRIAL_TIMEOUT_S", 3_600.0)
    bounds = ProcessBounds(processes_max=100, output_max_bytes=1_000_000)
    bench = bench_of(tmp_path, bounds=bounds)
    run = bench.script("run", "echo RAN")
    shells = {
        "endless": "sleep 600",
        "loud": "exec busybox cat /dev/zero",
        "many": "for i in $(busybox seq 200); do busybox sleep 60 & done; wait",
    }
    images = {
        name: registry.put(f"team/{name}", {**shell(), "bin/sh": f"#!/bin/busybox sh\nPATH=/bin\n{text}\n".encode()})
        for name, text in shells.items()
    }
    waits = bench.start(run=(run,), image=images["endless"])
    await bench.says("Storing signatures")
    outcome = await bench.build(run=(run,), image=registry.put("team/good", shell()))
    assert outcome.result == "SUCCESS", outcome
    assert not waits.done(), waits.result()
    for name, why in {"loud": "output limit of 1 MB reached", "many": "limit of 100 processes reached"}.items():
        outcome = await bench.build(run=(run,), image=images[name])
        assert outcome.result == "NODE_FAILURE" and why in outcome.error, outcome
    waits.cancel()
    await asyncio.wait({waits})
    assert not list((tmp_path / "images").glob("trial*"))
    await bench.runner.close()
    Bench.opened.remove(bench)


class Unheard:
    """Discard the output of a command."""

    def write(self, chunk: bytes) -> None: ...

    def say(self, text: str) -> None: ...


LOOKS = """#!/bin/sh
mine=$(mktemp) && echo kept > $mine && echo > /mnt/images/tmp/begun && read go < /mnt/images/tmp/go && cat $mine
"""


@pytest.mark.long
async def test_the_end_of_a_fetch_removes_nothing_from_under_a_command_that_reads(
    tmp_path: Path, registry: ImageRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = ProcessKeeper()
    images = ContainerStore(keeper, ImageSupply(tmp_path / "images", ("127.0.0.1:*",), 10**9))
    await images.begin()
    place = tmp_path / "images/store/tmp"
    for name in ("begun", "go"):
        os.mkfifo(place / name)
        os.chown(place / name, store.NUMBERS.first, store.NUMBERS.first)
    (place / "looks").write_text(LOOKS)
    (place / "looks").chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(store, "PROGRAM", "/mnt/images/tmp/looks")
        looking = asyncio.ensure_future(images._podman("images"))
        await asyncio.to_thread((place / "begun").read_text)
    async with images.taken(registry.put("team/tools", shell()), Unheard(), asyncio.Event()):
        await asyncio.to_thread((place / "go").write_text, "go\n")
        assert await looking == "kept\n"
    assert not list((tmp_path / "images/store/fetching").iterdir()), "the last of them cleans up"
    await images.close()
    keeper.close()


BUILT = """
FROM BASE
COPY leaks into/
ENV LD_PRELOAD=/leak.so
RUN ls -d PLACES && echo REACHED; mount -t tmpfs none /etc && echo REACHED; cat /into/leak && echo REACHED; id -u
RUN ln -s / /built && mkdir -p PLACE/of && touch PLACE/of/mine
"""


@pytest.mark.long
async def test_a_file_of_a_proposal_builds_with_no_more_rights_than_a_job(
    tmp_path: Path, registry: ImageRegistry
) -> None:
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
    (bench.source / ".git").mkdir()
    (bench.source / ".git/config").write_text(SECRET)
    for name, target in {"git": ".git", "config": ".git/config", "all": "."}.items():
        (bench.source / name).symlink_to(target)
    for source in (".git", "./leaks/../.git/config", "git", "config", "all", "all/git/config"):
        (bench.source / "Git").write_text(f"FROM {registry.address}/team/tools:1\nCOPY {source} /there\n")
        outcome = await bench.build(run=(run,), image_file="Git")
        assert outcome.result == "ERROR" and "contains git's own files" in outcome.error, outcome
    endless = f"FROM {registry.address}/team/tools:1\nRUN sleep 300\n"
    (bench.source / "Endless").write_text(endless)
    outcome = await bench.build(run=(run,), image_file="Endless", timeout_s=1)
    assert outcome.result == "TIMED_OUT" and not list((store / "building").iterdir()), outcome
    await bench.runner.close()
    Bench.opened.remove(bench)


def test_half_a_layer_is_never_one_that_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor dies while it removes surplus layers."""
    layers = Layers(tmp_path, 50_000)
    layers.begin()

    def made(name: str) -> Path:
        place = tmp_path / "building" / name
        place.mkdir()
        (place / "first").write_bytes(bytes(30_000))
        return place

    def dies(place: Path) -> None:
        (place / "first").unlink()
        raise KeyboardInterrupt

    layers.keep("a" * 64, made("a"))
    os.utime(tmp_path / "built" / ("a" * 64), (1, 1))
    with monkeypatch.context() as patched:
        patched.setattr(imagebuild, "remove", dies)
        with pytest.raises(KeyboardInterrupt):
            layers.keep("b" * 64, made("b"))
    after = Layers(tmp_path, 50_000)
    after.begin()
    assert not after.has("a" * 64) and after.has("b" * 64)
    assert not list((tmp_path / "building").iterdir())
    with after.held("b" * 64):
        after.keep("c" * 64, made("c"))
    assert after.has("b" * 64), "a build has it"


@pytest.mark.long
async def test_an_image_that_a_build_has_stays_whatever_others_fetch(
    tmp_path: Path, registry: ImageRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "KNOWN_S", 0.0)
    bench = bench_of(tmp_path, size_max_bytes=10_000_000)
    image = registry.put("team/tools", shell())
    script = "echo UP; until [ -e go ]; do sleep 0.1; done; ls -d /bin/busybox"
    waits = bench.start(run=(bench.script("waits", script),), image=image)
    await bench.says("| UP")
    theirs = next(bench.work.glob("src/**/waits")).parent
    (tmp_path / "images/store/tmp/fetched").write_bytes(bytes(20_000_000))
    outcome = await bench.build(run=(bench.script("run", "true"),), image=image)
    assert outcome.result == "SUCCESS", outcome
    (theirs / "go").touch()
    assert (await waits).result == "SUCCESS"
    await bench.runner.close()
    Bench.opened.remove(bench)


def test_links_in_the_files_of_podman_are_not_followed(tmp_path: Path) -> None:
    """Act as if podman had a flaw: files have no owner, and root cleans up."""
    root, mine = tmp_path / "store/root", tmp_path / "mine"
    for name in ("overlay-images", "overlay-layers", "overlay/l", f"overlay/{'a' * 64}"):
        (root / name).mkdir(parents=True)
    (tmp_path / "aside").mkdir()
    mine.write_text(SECRET)
    link = root / "overlay" / ("a" * 64) / "link"
    link.write_text("../../../../mine")
    for images, layers in (([], ["a" * 64]), ([], ["../../../mine"]), (["../../../mine"], [])):
        (root / "overlay-images/images.json").write_text(json.dumps([{"id": one} for one in images]))
        (root / "overlay-layers/layers.json").write_text(json.dumps([{"id": one} for one in layers]))
        (root / "overlay-layers/layers.new").unlink(missing_ok=True)
        (root / "overlay-layers/layers.new").symlink_to(mine)
        with pytest.raises(OSError, match="is not a name in a store of images"):
            podman.take_out_orphans(root, tmp_path / "aside")
        assert mine.read_text() == SECRET and not list((tmp_path / "aside").iterdir())
