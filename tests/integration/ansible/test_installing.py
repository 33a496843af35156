"""Test that environments are installed completely or not at all, despite crashes and simultaneous installations, and
without network access."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headgate.adapters.ansible.install import CannotInstall, install
from headgate.adapters.ansible.versions import MARK, Environments, used
from tests.integration.builds.bench import Bench

from .wheelhouse import Wheelhouse

DEADLINE_S = 120.0


@pytest.fixture
def house(tmp_path: Path) -> Wheelhouse:
    return Wheelhouse(tmp_path)


@pytest.fixture
def here(tmp_path: Path, house: Wheelhouse) -> Environments:
    house.offers("9", "2.16.1")
    return Environments(tmp_path / "state" / "ansible", house.locks)


def installed_output(environments: Environments, house: Wheelhouse, version: str = "9") -> list[str]:
    """Return the output of the installation."""
    lines = list[str]()
    found = install(environments, version, say=lines.append, wheels=house.files)
    assert found.current and found.mark.version == version
    return lines


@pytest.mark.long
def test_of_two_concurrent_installations_one_installs_a_working_version_which_is_renewed_when_unused(
    here: Environments, house: Wheelhouse
) -> None:
    received = list[list[str]]()
    threads = [threading.Thread(target=lambda: received.append(installed_output(here, house))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    lines = [line for lines in received for line in lines]
    assert len(received) == 2 and sum("installing Ansible 9 (ansible-core 2.16.1)" in line for line in lines) == 1
    first = here.find("9")
    assert first is not None
    ran = subprocess.run([first.program], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    assert ran.stdout == f"stand-in 2.16.1 {first.place}\n"
    assert first.place.stat().st_mode & 0o777 == 0o755 and not (first.place / "tmp").exists()
    assert (here.root / ".9.lock").stat().st_mode & 0o077 == 0, "nobody else can hold it"
    assert installed_output(here, house) == [], "it is there"
    house.offers("9", "2.16.2")
    assert here.find("9") is not None, "until it is renewed"
    with used(first) as there:
        assert there
        assert installed_output(here, house)
        assert (first.place / MARK).exists(), "a build has it"
    now = here.find("9")
    assert now is not None and now.mark.core == "2.16.2"
    assert installed_output(here, house) == [] and not first.place.exists()


@pytest.mark.long
def test_packages_of_the_operator_are_added_and_change_no_package_of_ansible(
    here: Environments, house: Wheelhouse, tmp_path: Path
) -> None:
    house.makes("cloud", "3.1", {"cloud.py": "VERSION = '3.1'\n"}, needs="ansible-core>=2.16")
    house.makes("ansible-core", "2.99", {"ansible/__init__.py": "newer = True\n"})
    more = tmp_path / "packages.txt"
    more.write_text("cloud\n")
    with_more = Environments(here.root, house.locks, more)
    assert installed_output(here, house)
    assert installed_output(with_more, house), "another environment than without them"
    found = with_more.find("9")
    assert found is not None and found.current and found.mark.core == "2.16.1"
    words = [
        str(found.place / "bin/python"),
        "-c",
        "import cloud, ansible; print(cloud.VERSION, vars(ansible).get('newer'))",
    ]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "3.1 None\n"

    more.write_text("cloud\nansible-core>2.90\n")
    with pytest.raises(CannotInstall, match=rf"cannot be installed with the packages of {more}: .*conflict"):
        installed_output(with_more, house)
    still = with_more.find("9")
    assert still is not None and still.place == found.place and not still.current, "builds go on with the earlier ones"
    more.unlink()
    assert with_more.find("9") is not None
    with pytest.raises(CannotInstall, match=rf"No such file or directory: {more}"):
        installed_output(with_more, house)


@pytest.mark.long
def test_without_a_network_the_error_describes_the_offline_installation(
    here: Environments, house: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = tmp_path / "packages.txt"
    more.write_text("cloud\n")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}/simple")
        monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
        with pytest.raises(CannotInstall, match=r"cannot be reached .*`headgate ansible install 9 --from wheels`"):
            install(here, "9", say=lambda _: None)
        with pytest.raises(CannotInstall, match=rf"cannot be reached .* -d wheels`, and the same with -r {more},"):
            install(Environments(here.root, house.locks, more), "9", say=lambda _: None)
    assert here.find("9") is None and list(here.root.glob("9-*")) == []


@contextmanager
def silent_index() -> Iterator[tuple[str, socket.socket, ExitStack]]:
    """Accept connections and answer nothing until the stack is closed."""
    with ExitStack() as closing, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.settimeout(DEADLINE_S)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/simple", listening, closing


@pytest.mark.long
def test_a_killed_installation_is_not_used_and_the_next_one_waits_for_its_processes(
    here: Environments, house: Wheelhouse
) -> None:
    words = [sys.executable, "-m", "headgate.adapters.ansible.install", *map(str, here.places), "9"]
    with silent_index() as (url, listening, closing):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        killed = subprocess.Popen(words, env={**environment, "PIP_INDEX_URL": url, "PIP_RETRIES": "0"})
        connection, _ = listening.accept()
        closing.callback(connection.close)
        killed.send_signal(signal.SIGKILL)
        killed.wait(DEADLINE_S)
        assert here.place("9").is_dir() and here.find("9") is None
        lines, waits = list[str](), threading.Event()

        def say(line: str) -> None:
            lines.append(line)
            waits.set()

        next_one = threading.Thread(target=lambda: install(here, "9", say=say, wheels=house.files))
        next_one.start()
        assert waits.wait(DEADLINE_S) and "waiting for it" in lines[0], "pip holds what its parent held"
        listening.close()
        closing.close()
        next_one.join(DEADLINE_S)
    assert "installing Ansible 9" in lines[1] and here.find("9") is not None


async def test_a_job_without_its_version_reports_the_command_to_run(tmp_path: Path, here: Environments) -> None:
    (tmp_path / "bench").mkdir()
    bench = Bench(tmp_path / "bench", ansible=here)
    outcome = await bench.start(
        run=(bench.script("x.yaml", "- hosts: all\n"),), ansible_version="9", ansible_is_named=True
    )
    assert outcome.result == "ERROR" and "headgate ansible install 9" in outcome.error and outcome.error in bench.log
    outcome = await bench.start(run=(bench.script("x", "echo plain"),), ansible_version="9", ansible_is_named=True)
    assert outcome.result == "SUCCESS", "which needs none"


@pytest.mark.long
async def test_an_executor_that_may_install_a_requested_version_does_so_once_for_all_waiting_builds(
    tmp_path: Path, here: Environments, house: Wheelhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(house.files))
    (tmp_path / "bench").mkdir()
    house.makes("cloud", "3.1", {"cloud.py": "VERSION = '3.1'\n"})
    more = tmp_path / "packages.txt"
    more.write_text("cloud\n")
    here = Environments(here.root, house.locks, more)
    bench = Bench(tmp_path / "bench", ansible=here, manage_ansible=True)
    job = {"run": (bench.script("x.yaml", "- hosts: all\n"),), "ansible_version": "9", "ansible_is_named": True}
    cancel = asyncio.Event()
    cancelled = bench.start(cancel, **job)
    await bench.says("it is being installed")
    others = [bench.start(**job) for _ in range(2)]
    cancel.set()
    assert (await cancelled).result == "CANCELED"
    for outcome in await asyncio.gather(*others):
        assert outcome.result == "SUCCESS", outcome.error
    assert "Ansible 9 (ansible-core 2.16.1) runs the playbooks" in bench.log
    found = here.find("9")
    assert found is not None and f"stand-in 2.16.1 {found.place}" in bench.log
    assert found.current and list(found.place.rglob("cloud.py")), "with the packages of the operator"
    house.offers("11", "2.18.1")
    house.names("11", "2.18.1", 64 * "1")
    outcome = await bench.start(**{**job, "ansible_version": "11"})
    assert (
        outcome.result == "ERROR"
        and "Ansible 11 cannot be installed: a file does not have the hash that" in outcome.error
    )
    assert list(here.root.glob("11-*")) == []
