"""An executor's side: each build gets the Ansible that its job asks for, installed first where the settings say so."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE

from headgate.adapters.ansible.environments import AnsibleNotInstalled, Environment, Environments, beside, used
from headgate.adapters.ansible.install import CannotInstall, Say, install
from headgate.base.tasks import end

_SAID_MAX_BYTES = 4_000
REMOVED_S = 0.2
"""Interval between two checks of an environment that is being removed."""


class AnsibleSupply:
    """Supply each build with its Ansible. `manages` says whether missing versions are installed."""

    def __init__(self, environments: Environments | None, *, manages: bool) -> None:
        self._environments, self._manages = environments, manages
        self._installing: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def taken(self, version: str, *, requested: bool, say: Say) -> AsyncIterator[Environment | None]:
        """Hold the program that runs the playbooks of a job; None: the one installed with Headgate, if there is one.
        `requested`: see `Environments.choose`. Raise AnsibleNotInstalled, CannotInstall."""
        while True:
            found = await self._chosen(version, requested, say)
            if found is None:
                yield None
                return
            # Held for as long as the build runs: an installation of a newer list would remove this one.
            with used(found) as still_there:
                if still_there:
                    yield found
                    return
            await asyncio.sleep(REMOVED_S)  # a process that keeps the lock needlessly delays this build alone

    async def _chosen(self, version: str, requested: bool, say: Say) -> Environment | None:
        if self._environments is None:
            return None
        try:
            return self._environments.choose(version, requested=requested or (self._manages and beside() is None))
        except AnsibleNotInstalled:
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
        assert self._environments is not None, "asked by who looked into them"
        # -P: a file in the current directory must not hide a module.
        words = [sys.executable, "-P", "-m", __name__, *map(str, self._environments.places), version]
        process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, start_new_session=True)
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    # The session, since pip is a child of this process and would go on.
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            why = output[-_SAID_MAX_BYTES:].decode(errors="replace").strip()
            raise CannotInstall(why or f"installing Ansible {version} ended with status {process.returncode}")

    async def close(self) -> None:
        """Stop; call this once no build runs any more."""
        await end(*self._installing.values())


def main() -> None:
    """Install a version below a directory, of the lists in another, with the packages that a file names."""
    *places, version = sys.argv[1:]
    try:
        install(Environments(*map(Path, places)), version, say=lambda _: None)
    except CannotInstall as error:
        print(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
