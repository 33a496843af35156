"""Install environments of Ansible completely or not at all, and supply each build with the one that it needs.

Several people and executors may request an environment at the same time: one process makes it, and the others wait. The
lock is a kernel lock that started programs inherit: after a process is killed, the next one waits until those programs
have ended."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec

from headgate.adapters.ansible import versions
from headgate.base.errors import UserError
from headgate.base.tasks import end
from headgate.config.keys.job import ANSIBLE_VERSIONS

ROOM_BYTES = 600_000_000
"""Disk space that an environment needs while it is made; half of it is free again afterwards."""
PYTHONS = {"9": ("3.11", "3.12"), "11": ("3.11", "3.12", "3.13")}
"""Version of Ansible -> versions of Python that both it and Headgate support."""
MODE, UMASK = 0o755, 0o022
"""Environments are readable by everybody, because builds may run as other users."""
_OWN = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_REQUIREMENT")
"""Variables that would make pip install other packages, or install them elsewhere."""
_UNREACHED = (
    "NewConnectionError", "Failed to establish", "ConnectTimeout", "ReadTimeout", "Max retries exceeded", "ProxyError",
    "name resolution", "Network is unreachable", "Connection refused", "SSLError",
)  # fmt: skip
_WORDS_MAX = 300
_OUTPUT_MAX_BYTES = 4_000
REMOVED_S = 0.2
"""Interval between two checks of an environment that is being removed."""

Say = Callable[[str], None]


class CannotInstall(UserError):
    """Report that a version cannot be installed; the text gives the reason and what to do."""


def install(
    environments: versions.Environments, version: str, *, say: Say, wheels: Path | None = None
) -> versions.Environment:
    """Return the environment of a version, and make it if necessary: from the files in `wheels` if given, otherwise
    from the package index. Raise CannotInstall."""
    known(version)
    if versions.PYTHON not in PYTHONS[version]:
        runs = ", ".join(PYTHONS[version])
        raise CannotInstall(f"Ansible {version} runs on Python {runs}; this Headgate runs on Python {versions.PYTHON}")
    try:
        place = environments.place(version)
        place.parent.mkdir(parents=True, exist_ok=True, mode=MODE)
        with _alone(place.parent / f".{version}.lock", say) as lock:
            found = _current(environments, version)
            if found is None:
                say(f"installing Ansible {version} (ansible-core {environments.core(version)}) into {place}")
                _make(environments, version, wheels, lock)
                found = _current(environments, version)
                assert found is not None, "it has been made"
            _sweep(environments, version)
            return found
    except OSError as error:
        why = f"{error.strerror or error}: {error.filename or environments.root}"
        raise CannotInstall(f"Ansible {version} cannot be installed: {why}") from error


def known(version: str) -> None:
    """Raise CannotInstall for a version that no job may request."""
    if version not in ANSIBLE_VERSIONS:
        names = " and ".join(ANSIBLE_VERSIONS)
        raise CannotInstall(f"there is no Ansible version {version}: jobs may ask for {names}, as `ansible-version`")


def _current(environments: versions.Environments, version: str) -> versions.Environment | None:
    return next((one for one in environments.all(version) if one.current), None)


@contextmanager
def _alone(path: Path, say: Say) -> Iterator[int]:
    """Hold the lock and yield its descriptor. Raise OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # any user who can read it could lock it
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process is installing this version; waiting for it")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _make(environments: versions.Environments, version: str, wheels: Path | None, lock: int) -> None:
    """Make the environment. Remove an incomplete one; if this process is killed first, the next installation removes
    it. Raise CannotInstall, OSError."""
    place = environments.place(version)
    shutil.rmtree(place, ignore_errors=True)
    free = shutil.disk_usage(place.parent).free
    if free < ROOM_BYTES:
        raise CannotInstall(_no_room(version, place, f"{free // 1_000_000} MB are free"))
    complete = False
    try:
        place.mkdir(mode=MODE)
        # `mkdir` applies the umask of the user, `chmod` does not.
        place.chmod(MODE)
        tmp = place / "tmp"
        tmp.mkdir()
        for words in _steps(environments.lock(version), environments.more, place, wheels):
            done = _run(words, tmp, lock)
            if done.returncode:
                added = str(environments.more) in words
                raise CannotInstall(explained(version, place, done.stdout, environments.more, added=added))
        shutil.rmtree(tmp)
        _seal(
            place,
            versions.EnvironmentMark(version, environments.core(version), versions.PYTHON, int(time.time() * 1000)),
        )
        complete = True
    finally:
        if not complete:
            shutil.rmtree(place, ignore_errors=True)


def _steps(lock: Path, more: Path | None, place: Path, wheels: Path | None) -> Iterator[list[str]]:
    """Yield the commands that make an environment. They accept only wheels, so no fetched code runs before all packages
    match their hashes, provided that the operator's file has hashes, too."""
    python = str(place / "bin" / "python")
    here = importlib.util.find_spec("pip") is not None
    yield [sys.executable, "-m", "venv", *(["--without-pip"] if here else []), str(place)]
    # With the pip of Headgate's own environment, no other environment needs a copy.
    pip = [sys.executable, "-m", "pip", "--python", python] if here else [python, "-m", "pip"]
    source = ["--no-index", "--find-links", str(wheels)] if wheels is not None else ["--retries", "2"]
    # A source distribution runs its build script while other packages are still unchecked; wheels run nothing.
    flags = ["--no-input", "--disable-pip-version-check", "--no-compile", "--only-binary", ":all:"]
    yield [*pip, "install", "--quiet", *flags, *source, "--require-hashes", "--requirement", str(lock)]
    if more is not None:
        # The operator's packages must not change the versions with which Ansible was tested.
        pins = place / "tmp" / "pins.txt"
        pins.write_text("\n".join(re.findall(r"^[^\s#-]\S*==\S+", lock.read_text(), re.MULTILINE)))
        yield [*pip, "install", "--quiet", *flags, *source, "--constraint", str(pins), "--requirement", str(more)]
    # Compiled now, because builds cannot write there. Without the collections, which are large and mostly unused.
    yield [python, "-m", "compileall", "-q", "-x", "ansible_collections", str(place / "lib")]


def _run(words: Sequence[str], tmp: Path, lock: int) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _OWN}
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        cwd=tmp,
        env={**environment, "TMPDIR": str(tmp)},
        umask=UMASK,
        # pip continues when this process is killed. Because it inherits the lock, no other process writes there
        # in the meantime.
        pass_fds=(lock,),
    )


def _seal(place: Path, mark: versions.EnvironmentMark) -> None:
    """Write the mark atomically, after all other files are on the disk."""
    fresh = place / f".{versions.MARK}"
    with open(fresh, "wb") as file:
        file.write(msgspec.json.encode(mark))
        file.flush()
        os.fsync(file.fileno())
    # The mark must not reach the disk before the files whose completeness it states.
    os.sync()
    fresh.chmod(0o644)
    fresh.rename(place / versions.MARK)


def _sweep(environments: versions.Environments, version: str) -> None:
    """Remove earlier environments of the version that no build uses; the next installation tries again to remove the
    others."""
    now = environments.place(version)
    for place in environments.root.glob(f"{version}-*"):
        if place == now:
            continue
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The mark is removed first: an interrupted removal leaves an incomplete environment, which is never used.
            (place / versions.MARK).unlink(missing_ok=True)
            shutil.rmtree(place, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(fd)


def explained(version: str, place: Path, output: str, more: Path | None = None, *, added: bool = False) -> str:
    """Return an explanation of the output of a failed installer, with advice. `more`: the operator's file; `added`:
    whether its packages were being installed."""
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return _no_room(version, place, "no space was left")
    last = _last(output)
    also = f" with the packages of {more}" if added else ""
    begin = f"Ansible {version} cannot be installed{also}: "
    if "DO NOT MATCH THE HASHES" in output:
        names = more if added else "this Headgate"
        return f"{begin}a file does not have the hash that {names} lists; where did the package index get it? {last}"
    if any(word in output for word in _UNREACHED):
        own = f", and the same with -r {more}," if more is not None else ""
        return (
            f"{begin}the package index cannot be reached{_reason(output)}. Without a network: "
            f"`headgate ansible requirements {version} > ansible-{version}.txt`; where there is one, `pip download "
            f"--only-binary :all: -r ansible-{version}.txt -d wheels`{own} with Python {versions.PYTHON}; and here "
            f"`headgate ansible install {version} --from wheels`"
        )
    if "ensurepip" in output:
        return f"{begin}this Python cannot make environments; install python3-venv (apt-get install python3-venv)"
    return f"{begin}{last}"


def _no_room(version: str, place: Path, why: str) -> str:
    return (
        f"Ansible {version} cannot be installed: {place.parent} needs {ROOM_BYTES // 1_000_000} MB of disk space, "
        f"and {why}; free some space, or set [executor] ansible_root to a directory on another disk"
    )


def _reason(output: str) -> str:
    """Return the system's error about a connection."""
    found = re.search(r"\[Errno -?\d+\] ([^')\"\n]+)", output)
    return f" ({found[1]})" if found else ""


def _last(output: str) -> str:
    """Return the most informative line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it printed nothing"])[-1][:_WORDS_MAX]


class AnsibleSupply:
    """Supply each build with its Ansible. `manages`: whether to install missing versions."""

    def __init__(self, environments: versions.Environments | None, *, manages: bool) -> None:
        self._environments, self._manages = environments, manages
        self._installing: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def taken(self, version: str, *, requested: bool, say: Say) -> AsyncIterator[versions.Environment | None]:
        """Hold the environment that runs the playbooks of a job; None: the Ansible installed with Headgate, if there is
        one. `requested`: see `Environments.choose`. Raise AnsibleNotInstalled, CannotInstall."""
        while True:
            found = await self._chosen(version, requested, say)
            if found is None:
                yield None
                return
            # Held for as long as the build runs: otherwise an installation with a newer list would remove this one.
            with versions.used(found) as still_there:
                if still_there:
                    yield found
                    return
            await asyncio.sleep(REMOVED_S)  # a process that holds the lock for long delays only this build

    async def _chosen(self, version: str, requested: bool, say: Say) -> versions.Environment | None:
        if self._environments is None:
            return None
        try:
            return self._environments.choose(
                version, requested=requested or (self._manages and versions.beside() is None)
            )
        except versions.AnsibleNotInstalled:
            if not self._manages:
                raise
        say(f"Ansible {version} is not installed here; it is being installed, which takes a minute or so")
        await self._installed(version)
        return self._environments.find(version)

    async def _installed(self, version: str) -> None:
        """Install a version once for all builds that wait for it; a build that is cancelled does not stop the
        others."""
        running = self._installing.get(version)
        if running is None:
            running = self._installing[version] = asyncio.ensure_future(self._install(version))
            running.add_done_callback(lambda _: self._installing.pop(version))
        await asyncio.shield(running)

    async def _install(self, version: str) -> None:
        """Install in a process, which can be ended.  Raise CannotInstall."""
        assert self._environments is not None, "`_chosen` has read them"
        # -P: a file in the current directory must not hide a module.
        words = [sys.executable, "-P", "-m", __name__, *map(str, self._environments.places), version]
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, start_new_session=True)
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    # The complete process group: pip is a child of the installer, and would continue without it.
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            why = output[-_OUTPUT_MAX_BYTES:].decode(errors="replace").strip()
            raise CannotInstall(why or f"installing Ansible {version} ended with status {process.returncode}")

    async def close(self) -> None:
        """Stop installations; call this once no build runs any more."""
        await end(*self._installing.values())


def main() -> None:
    """Install a version. Arguments: directory for environments, directory of lists, optional file of more packages,
    version."""
    *places, version = sys.argv[1:]
    try:
        install(versions.Environments(*map(Path, places)), version, say=lambda _: None)
    except CannotInstall as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
