"""Give the programs of each build a user of their own, whose id no other process of the machine has."""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from headgate.base.errors import ExecutionError

log = logging.getLogger("headgate.executor")

SUBORDINATE = (Path("/etc/subuid"), Path("/etc/subgid"))
FIRST_SUBORDINATE = 100_000
"""First number that useradd assigns as a subordinate one, by default."""
KIND = "user"
PROGRAM = "setpriv"
# SETPCAP lets setpriv empty the bounding set.
NEEDED = ("SETUID", "SETGID", "SETPCAP")
"""Capabilities that a process needs to become another user, and loses by that."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Describe a range of users, and one of as many groups, which starts at the same number by default."""

    first: int
    count: int
    first_group: int = -1

    @staticmethod
    def read(text: str) -> Numbers:
        """Parse `FIRST-LAST`. Raise ValueError."""
        first, dash, last = text.partition("-")
        found = Numbers(int(first), int(last) - int(first) + 1)
        # 0 is root, and the highest number means "unchanged" to setresuid.
        if not dash or found.first < 1 or found.count < 1 or int(last) >= 0xFFFF_FFFF:
            raise ValueError(text)
        return found

    @property
    def mapped(self) -> list[list[int]]:
        """Return the map of a user namespace that has only these numbers, from 0."""
        return [[0, self.first, self.count]]


DEFAULT = Numbers(1_900_000_000, 65_536)
"""Range above that of systemd and container engines, which ends at 1,879,048,191."""
DEFAULT_IN_CONTAINER = Numbers(50_000, 10_000)
"""Range for containers with only 65,536 users: below that of systemd, which begins at 60,001."""


@dataclass(frozen=True, slots=True)
class BuildUser:
    """Represent a user of a build. `outside` is its id on this machine, `inside` its id in the namespace in which its
    programs start."""

    outside: int
    inside: int
    _claim: NumberClaim

    def becoming(self) -> list[str]:
        """Return the prefix of a command that drops groups and capabilities, and every way to regain them."""
        number = str(self.inside)
        return [
            PROGRAM, "--reuid", number, "--regid", number, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
            "--ambient-caps=-all", "--no-new-privs", "--",
        ]  # fmt: skip

    def close(self) -> None:
        self._claim.close()


class NoUser(ExecutionError):
    """Report that all numbers are in use."""


class Users:
    """Lend users of a range, which starts at `first_inside` in the namespace in which the programs of builds start."""

    def __init__(self, outside: Numbers, first_inside: int) -> None:
        self.outside, self._first_inside = outside, first_inside

    def take(self) -> BuildUser:
        """Take a free user. Raise NoUser."""
        found = claim_any(KIND, self.outside.first, self.outside.count, _idle)
        if found is None:
            last = self.outside.first + self.outside.count - 1
            raise NoUser(f"every user from {self.outside.first} to {last} is in use on this machine")
        return BuildUser(found.number, self._first_inside + found.number - self.outside.first, found)


def _idle(uid: int) -> bool:
    """Return whether no process belongs to this user: processes of a killed executor may need a moment to end."""
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            # Two builds with one user could signal and trace each other.
            if entry.stat().st_uid == uid:
                return False
        except OSError:
            continue
    return True


def numbers_of_root(wanted: Numbers | None, uid_map: str) -> Numbers | None:
    """Return the wanted numbers or, by default, the first default range that this process may use, since a container
    may have few users; None if it may use none. `uid_map` is /proc/self/uid_map."""
    spans = [(int(line.split()[0]), int(line.split()[2])) for line in uid_map.splitlines() if line.strip()]

    def mapped(numbers: Numbers) -> bool:
        # The kernel refuses setuid to a number that is not mapped.
        return any(first <= numbers.first and numbers.first + numbers.count <= first + size for first, size in spans)

    return next((one for one in ((wanted,) if wanted else (DEFAULT, DEFAULT_IN_CONTAINER)) if mapped(one)), None)


def ranges(lines: Iterable[str]) -> Iterator[tuple[str, Numbers]]:
    """Yield the name or number of the user, and the range, of each line of /etc/subuid or /etc/subgid."""
    for line in lines:
        fields = line.strip().split(":")
        if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal() and int(fields[2]) > 0:
            yield fields[0], Numbers(int(fields[1]), int(fields[2]))


def subordinate(lines: Iterable[str], names: Collection[str]) -> Numbers | None:
    """Return the largest range in /etc/subuid or /etc/subgid for a user with one of these names or numbers."""
    found = (numbers for owner, numbers in ranges(lines) if owner in names)
    return max(found, key=lambda one: one.count, default=None)


def sharing(lines: Iterable[str], names: Collection[str], first: int, count: int) -> list[str]:
    """Return the users, other than these, who have numbers of this range in /etc/subuid or /etc/subgid."""
    return sorted(
        {
            owner
            for owner, one in ranges(lines)
            if owner not in names and one.first < first + count and first < one.first + one.count
        }
    )


def unassigned(*files: Iterable[str]) -> int:
    """Return the first number above all ranges in the lines of /etc/subuid and /etc/subgid."""
    above = [one.first + one.count for lines in files for _, one in ranges(lines)]
    return max(above, default=FIRST_SUBORDINATE)


def shared(numbers: Numbers) -> list[str]:
    """Return a message, and log it, if another user of this machine may act as builds: newuidmap lets people become
    each of their subordinate users, and so signal, trace and read whatever runs as one of them."""
    files, names = [_lines(path) for path in SUBORDINATE], _names_of_this_user()
    groups = numbers.first if numbers.first_group < 0 else numbers.first_group
    users = sharing(files[0], names, numbers.first, numbers.count)
    others = sorted({*users, *sharing(files[1], names, groups, numbers.count)})
    if not others:
        return []
    last, free = numbers.first + numbers.count - 1, unassigned(*files)
    text = (
        f"{', '.join(others)} can read and stop builds, because the users of builds, {numbers.first} to {last}, are "
        f"also theirs in /etc/subuid or /etc/subgid; free numbers begin at {free}"
    )
    log.warning(text)
    return [text]


def addition(user: int) -> str:
    """Return the command with which an administrator gives this user numbers that nobody else has."""
    first = unassigned(*(_lines(path) for path in SUBORDINATE))
    numbers = f"{first}-{first + DEFAULT.count - 1}"
    return f"usermod --add-subuids {numbers} --add-subgids {numbers} {_name(user)}"


def _lines(path: Path) -> list[str]:
    """Return the lines of a file; none if it cannot be read."""
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _names_of_this_user() -> set[str]:
    return {str(os.geteuid()), _name(os.geteuid())}


def subordinates_of_this_user() -> Numbers | None:
    """Return the users that this user may give its programs: those in /etc/subuid for which /etc/subgid has as many
    groups."""
    names = _names_of_this_user()
    users, groups = (subordinate(_lines(path), names) for path in SUBORDINATE)
    return Numbers(users.first, min(users.count, groups.count), groups.first) if users and groups else None


@dataclass(frozen=True, slots=True)
class NumberClaim:
    """Hold a number that no other process of this machine holds, until `close` or the end of the process."""

    number: int
    _held: socket.socket

    def close(self) -> None:
        self._held.close()


def claim(kind: str, number: int) -> NumberClaim | None:
    """Claim a number, or return None if another process has it. The claim is the name of a socket, so the kernel
    releases it in every case."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # The leading NUL makes the name abstract: it is in no directory, so no file is left behind after a kill.
        held.bind(f"\0headgate/{kind}/{number}")
    except OSError:
        held.close()
        return None
    return NumberClaim(number, held)


def claim_any(kind: str, first: int, count: int, fits: Callable[[int], bool] = lambda _: True) -> NumberClaim | None:
    """Claim a free number that fits, of `count` from `first` on; None if there is none. The search begins at a random
    place, so that a number that was just released is rarely reused immediately."""
    begin = secrets.randbelow(count)
    for step in range(count):
        number = first + (begin + step) % count
        found = claim(kind, number)
        if found is None:
            continue
        # Check only while holding the claim: otherwise another executor could take the number after the check.
        if fits(number):
            return found
        found.close()
    return None
