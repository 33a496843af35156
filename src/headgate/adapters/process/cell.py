"""Decide as which user, and in which namespaces, the commands of one build run."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from headgate.adapters.process.access import AGENT_PROGRAM, SOCKET_VARIABLE, Agent
from headgate.adapters.process.bounds import machine
from headgate.adapters.process.confinement import users
from headgate.adapters.process.confinement.errands import found_program
from headgate.adapters.process.containers.box import BuildNode, Container, boxed
from headgate.adapters.process.containers.store import NUMBERS
from headgate.adapters.process.joblog import JobLog
from headgate.adapters.process.network.networks import Fleet, NetworkChoice, Networks
from headgate.adapters.process.network.sockets import NetworkTarget, Serve
from headgate.adapters.process.processes import ProcessKeeper
from headgate.adapters.process.sandbox import AGENT, CONTAINER, NOWHERE_ELSE, Network, Sandbox, Spaces
from headgate.adapters.process.zygotes.entry import HOLDER
from headgate.adapters.process.zygotes.pool import Zygotes
from headgate.base.tasks import run_to_end

log = logging.getLogger("headgate.executor")

NO_COPIES = "Each playbook is a new process that must import Ansible: builds have no users of their own here"
WITHOUT_USERS = "Jobs run as the user of this executor, and only bubblewrap isolates them: {}"


@dataclass(frozen=True, slots=True)
class Command:
    """Describe one command of a build."""

    words: Sequence[str]
    environment: Mapping[str, str]
    directory: Path
    root: Path
    """Directory of the build."""
    whose: str
    """Owner of the build, a project of a tenant: all builds of one owner share one portion of the processors."""
    trusted: bool
    writable: Sequence[Path]
    """Writable directories; the first one is the work directory."""
    readable: Sequence[Path]
    private: Sequence[Path] = ()
    """Files with secrets for this command alone."""
    secret: bool = False
    """Whether keys that the command adds to the build's agent are removed afterwards."""
    contained: bool = False
    """Whether the command runs in the image of the build, if the build has one."""
    container: Container | None = None
    """A container to use instead of the build's own."""
    exposed: Sequence[Path] | None = None
    """Paths that are read-only in the build's container; None if the command has no access to that container."""
    begins: Callable[[], None] = lambda: None
    """Called when everything that the command needs is prepared."""
    plays: bool = False
    """Whether the command runs a playbook, with the arguments of ansible-playbook."""


@dataclass(frozen=True, slots=True)
class Reached:
    """List what a build may reach: its machines, and files of earlier builds."""

    nodes: tuple[NetworkTarget, ...] = ()
    keys: tuple[Path, ...] = ()
    """Private keys of the machines, for the agent of the build."""
    earlier: Serve | None = None
    """Serves the files of earlier builds, see `network.sockets`."""


class Cells:
    """Open a cell for each build. What this machine does not support is detected and logged once."""

    def __init__(
        self,
        keeper: ProcessKeeper,
        sandbox: Sandbox,
        numbers: users.Numbers | None,
        choice: NetworkChoice,
        fleet: Fleet,
        zygotes: Zygotes | None = None,
    ) -> None:
        self._keeper, self._sandbox, self._wanted, self._zygotes = keeper, sandbox, numbers, zygotes
        self._networks = Networks(keeper, choice, fleet)
        self._beginning = asyncio.Lock()
        self._begun = False
        self._users: users.Users | None = None
        self.spaces: Spaces = NOWHERE_ELSE
        """User namespace with the users of builds, unless this process is root."""
        self._lacks: list[str] = []

    async def begin(self) -> None:
        """Detect once what this machine supports."""
        async with self._beginning:
            if self._begun or not self._sandbox.usable:
                return
            try:
                await (self._as_root() if os.geteuid() == 0 else self._as_ordinary_user())
            except OSError as why:
                self._lacks.append(WITHOUT_USERS.format(why))
                log.warning(self._lacks[-1])
            await self._networks.begin(self.spaces)
            self._begun = True

    @property
    def lacks(self) -> list[str]:
        """Return messages about what builds lack on this machine."""
        return [*self._lacks, *self._networks.lacks]

    async def _as_root(self) -> None:
        """Prepare users for builds, as root. Raise OSError with the reason if that is impossible."""
        numbers = users.numbers_of_root(self._wanted, Path("/proc/self/uid_map").read_text())
        if numbers is None:
            raise OSError("the users in [executor] build_users do not exist here (/proc/self/uid_map)")
        await self._tried(users.Users(numbers, numbers.first))

    async def _as_ordinary_user(self) -> None:
        """Make a user namespace in which this process is root and has the users of /etc/subuid.  Raise OSError."""
        numbers, me = users.subordinates_of_this_user(), os.geteuid()
        if numbers is None:
            await self._alone()
            why = f"/etc/subuid and /etc/subgid have no entry for user {me}; an administrator can add it with "
            raise OSError(why + users.addition(me))
        uids = [[0, me, 1], [1, numbers.first, numbers.count]]
        gids = [[0, os.getegid(), 1], [1, numbers.first_group, numbers.count]]
        try:
            self.spaces = {"user": await self._keeper.user_namespace(uids, gids)}
            await self._tried(users.Users(numbers, 1))
        except OSError:
            self._leave()
            await self._alone()
            raise

    async def _alone(self) -> None:
        """Make a user namespace in which this process is root and the only user: that suffices to create networks."""
        try:
            user = await self._keeper.user_namespace([[0, os.geteuid(), 1]], [[0, os.getegid(), 1]])
            self.spaces = {"user": user}
        except OSError as error:
            log.info("%s", error)

    def _leave(self) -> None:
        for fd in self.spaces.values():
            os.close(fd)
        self.spaces = NOWHERE_ELSE

    async def _tried(self, found: users.Users) -> None:
        """Check that a build can have a user. Raise OSError."""
        if not found_program(users.PROGRAM):
            raise OSError(f"the program {users.PROGRAM} is not installed; install the package util-linux")
        try:
            user = found.take()
        except users.NoUser as none:
            raise OSError(str(none)) from none
        try:
            confined = self._sandbox.command(["true"], [], [], trusted=False, user=user, network=Network(self.spaces))
            await self._keeper.program(self.spaces, confined)
        finally:
            user.close()
        self._users = found
        self._lacks += users.shared(found.outside)

    async def close(self) -> None:
        """Release networks and namespaces; requires that no build runs."""
        await self._networks.close()
        self._leave()
        self._users, self._begun = None, False

    @asynccontextmanager
    async def opened(self, build: str, machines: Reached, container: Container | None = None) -> AsyncIterator[Cell]:
        """Open a cell for a build. Raise NoUser, OSError."""
        await self.begin()
        async with AsyncExitStack() as stack:
            user = None
            if self._users is not None:
                user = self._users.take()
                stack.callback(user.close)
            warm = self._zygotes if user is not None else None
            if warm is None and self._zygotes is not None:
                self._zygotes.without(NO_COPIES)
            yield Cell(build, self._keeper, self._sandbox, self._networks, user, machines, stack, container, warm)

    def apart(self, *, trusted: bool) -> bool:
        """Return whether trusted (or untrusted) playbooks have another network than this process. Valid after
        `begin`."""
        return self._networks.apart(trusted=trusted)

    async def regain(self, *places: Path) -> None:
        """Take ownership of files that an earlier process left to users of builds. Raise OSError."""
        await self.begin()
        if self.spaces:
            await _chown(self._keeper, self.spaces, 0, places)


@dataclass(slots=True)
class Cell:
    """Confine the commands of one build. While a command runs, the files that the build's user may write belong to that
    user; between commands they do so only if this process is root, which can read them anyway."""

    build: str
    _keeper: ProcessKeeper
    _sandbox: Sandbox
    _networks: Networks
    _user: users.BuildUser | None
    _machines: Reached
    _stack: AsyncExitStack
    _container: Container | None = None
    _zygotes: Zygotes | None = None
    """None if builds have no users of their own: a copy could then modify the Python installation that it runs."""
    _open: dict[str, Network] = field(default_factory=dict)
    """Kind -> network, opened for the first command that uses it."""
    _given: dict[Path, int] = field(default_factory=dict)  # path -> the user that it belongs to
    _agent: Agent | None = None
    _user_space: int | None = None
    _served: int = 0  # commands that reached the container

    @property
    def user_name(self) -> str:
        """Return the user name that its commands see."""
        user = self._user
        return (machine.JobUser(user.inside, user.inside, "") if user else machine.JobUser.this()).name

    def expect(self, program: str | None) -> None:
        """Prepare to run playbooks of this program as copies of a process that has imported Ansible."""
        if self._zygotes is not None and program is not None:
            self._zygotes.expect(program)

    async def arm(self, place: Path) -> bool:
        """Start the agent of the build, in the directory `place`, with the keys of its machines; return whether there
        is one. Raise NoKey, OSError."""
        if self._sandbox.agent_socket(place) is None or not found_program(AGENT_PROGRAM):
            return False
        opened = Agent.opened(self._keeper, self._networks.user, self._user, place)
        self._agent = await self._stack.enter_async_context(opened)
        for key in dict.fromkeys(self._machines.keys):
            await self._agent.add(key)
        return True

    @asynccontextmanager
    async def _lent(self, command: Command) -> AsyncIterator[None]:
        """Give a command access to the agent; keys that it adds stay, unless the command has secrets. Raise OSError."""
        if self._agent is None or not command.secret:
            yield
            return
        before = await self._agent.signing()
        try:
            yield
        finally:
            # Do this even after a cancellation: the next playbook may be untrusted, and could sign with the secret key.
            await run_to_end(self._agent.back_to(before))

    async def run(self, command: Command, log: JobLog, cancel: asyncio.Event, timeout_s: float) -> int | str:
        """Run a command of the build; see `ProcessKeeper.run`.  Raise OSError."""
        async with self._lent(command):
            return await self._run(command, log, cancel, timeout_s)

    async def _run(self, command: Command, log: JobLog, cancel: asyncio.Event, timeout_s: float) -> int | str:
        network = await self._network(trusted=command.trusted)
        container = command.container or (self._container if command.contained else None)
        if container is not None:
            return await self._contained(container, command, network, log, cancel, timeout_s)
        if command.exposed is None or self._container is None:
            return await self._apart(command, network, log, cancel, timeout_s)
        self._served += 1
        place = command.root / f"commands-{self._served}"
        place.mkdir(mode=0o755)
        owner = self._user.inside if self._user else 0
        # This holds even for a trusted playbook: the code in the container is the change's.
        network = await self._network(trusted=False)
        node = BuildNode(self._sandbox, self._container, place, owner, command.exposed, network)
        start = partial(
            self._keeper.run, build=self.build, whose=command.whose, root=command.root, log=log,
            spaces={**node.network.spaces, "user": await self._space()},
        )  # fmt: skip
        async with node.running(start, log, cancel, timeout_s) as over:
            return await self._apart(command, network, log, over, timeout_s, place)

    async def _apart(
        self, command: Command, network: Network, log: JobLog, cancel: asyncio.Event, timeout_s: float,
        commands: Path | None = None,
    ) -> int | str:  # fmt: skip
        """Run a command outside of containers; see `run`.  `commands` is the directory of the socket that connects it
        to the container."""
        if self._zygotes is not None and command.plays:
            loop = asyncio.get_running_loop()
            begun_s = loop.time()
            async with self._zygotes.lent(command.words[0], cancel, timeout_s) as zygote:
                if zygote is not None:
                    return await self._sandboxed(zygote, command, network, log, cancel, timeout_s, commands)
            timeout_s = max(0.0, timeout_s - (loop.time() - begun_s))
        return await self._sandboxed(self._keeper, command, network, log, cancel, timeout_s, commands)

    async def _sandboxed(
        self, keeper: ProcessKeeper, command: Command, network: Network, log: JobLog, cancel: asyncio.Event,
        timeout_s: float, commands: Path | None,
    ) -> int | str:  # fmt: skip
        """Run a command in the sandbox; see `_apart`. If `keeper` is a zygote, it runs the playbook itself.  Raise
        Cold."""
        user, warm = self._user, keeper is not self._keeper
        socket = self._sandbox.agent_socket(self._agent.place) if self._agent else None
        lent = {AGENT: self._agent.place if self._agent else None, CONTAINER: commands}
        confined = self._sandbox.wrap(
            HOLDER if warm else command.words,
            command.writable,
            command.readable,
            trusted=command.trusted,
            home=command.environment["HOME"],
            user=user,
            network=network,
            lent={there: place for there, place in lent.items() if place is not None},
        )
        try:
            if user is not None:
                await self._give(command, user.inside)
            command.begins()
            return await keeper.run(
                confined,
                build=self.build,
                whose=command.whose,
                environment={**command.environment, **({SOCKET_VARIABLE: socket} if socket else {})},
                directory=command.directory,
                root=command.root,
                log=log,
                cancel=cancel,
                timeout_s=timeout_s,
                spaces=network.spaces,
                owner=user.inside if user else None,
                playbook={"words": list(command.words), "filter": confined.filter} if warm else None,
            )
        finally:
            if self._networks.user and user is not None:
                given, self._given = list(self._given), {}
                await run_to_end(_chown(self._keeper, self._networks.user, 0, given))

    async def _contained(
        self, container: Container, command: Command, network: Network, log: JobLog, cancel: asyncio.Event,
        timeout_s: float,
    ) -> int | str:  # fmt: skip
        """Run a command in a container; see `run`. The container's root gets the resources of the build's user."""
        found = boxed(
            self._sandbox, container, command.words, network, writable=command.writable, readable=command.readable,
            directory=command.directory, environment=command.environment,
        )  # fmt: skip
        await self._give(command, container.owner)
        space = await self._space()
        command.begins()
        return await self._keeper.run(
            found.confined,
            build=self.build,
            whose=command.whose,
            environment=command.environment,
            directory=Path("/"),
            root=command.root,
            log=log,
            cancel=cancel,
            timeout_s=timeout_s,
            spaces={**network.spaces, "user": space},
            box=found.box,
        )

    async def _space(self) -> int:
        """Return the user namespace of the build's containers; make it for the first one.  Raise OSError."""
        if self._user_space is None:
            # Each build has its own: processes in different user namespaces may not trace each other, even with the
            # same user id.
            self._user_space = await self._keeper.user_namespace(NUMBERS.mapped, NUMBERS.mapped, NUMBERS.first)
            self._stack.callback(os.close, self._user_space)
        return self._user_space

    async def _network(self, *, trusted: bool) -> Network:
        """Return the network of the kind, opened at first use. Raise OSError."""
        kind = self._networks.kind(trusted=trusted)
        if kind not in self._open:
            self._open[kind] = await self._stack.enter_async_context(
                self._networks.opened(kind, self._machines.nodes, self._machines.earlier)
            )
        return self._open[kind]

    async def _give(self, command: Command, owner: int) -> None:
        """Give the places of a command to their owner. Raise OSError."""
        places = [place for place in (*command.writable, *command.private) if self._given.get(place) != owner]
        self._given |= dict.fromkeys(places, owner)
        await _chown(self._keeper, self._networks.user, owner, places)


async def _chown(keeper: ProcessKeeper, spaces: Spaces, owner: int, places: Sequence[Path]) -> None:
    """Change the owner of everything below the existing places, never through a symbolic link. Requires that no process
    writes there. Raise OSError."""
    names = [str(place) for place in places if place.exists()]
    if names:
        # Hard links cannot lead elsewhere: each writable directory is a mount, and link(2) does not cross mounts.
        words = ["chown", "--recursive", "--no-dereference", f"{owner}:{owner}", "--", *names]
        await keeper.program(spaces, words)
