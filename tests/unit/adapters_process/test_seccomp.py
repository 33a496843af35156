"""Test the system call filter by running it as the kernel does, on all architectures."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct

import pytest

from headgate.adapters.process.bounds.machine import AARCH64, CLONE_NEWUSER, I386, NESTING, REFUSED, X86_64, call_filter

ALLOWED = "allowed"
NAMES = {
    "clone": (56, 220, 120), "clone3": (435, 435, 435), "unshare": (272, 97, 310), "ioctl": (16, 29, 54),
    "socket": (41, 198, 359), "socketpair": (53, 199, 360),
}  # fmt: skip
WITHIN_SOCKETCALL = {"socket", "socketpair"}
MACHINE = {X86_64: "x86_64", AARCH64: "aarch64", I386: "x86_64"}


def verdict(text: bytes, audit: int, number: int, *arguments: int) -> str:
    """Return the program's decision on a call; an error by its name."""
    data = struct.pack("=IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    at, accumulator = 0, 0
    for _ in range(4096):
        code, yes, no, value = struct.unpack_from("=HBBI", text, at * 8)
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x15:
                at += yes if accumulator == value else no
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x45:
                at += yes if accumulator & value else no
            case 0x06:
                return ALLOWED if value == 0x7FFF_0000 else errno.errorcode[value & 0xFFFF]
    raise AssertionError("it does not end")


@pytest.mark.parametrize("architecture", [X86_64, AARCH64, I386])
def test_the_filter_refuses_exactly_the_listed_calls(architecture: object) -> None:
    for nesting in (False, True):
        text = call_filter(nesting=nesting, machine=MACHINE[architecture])  # type: ignore[index]  # parametrize has no types
        listed = REFUSED if nesting else REFUSED | NESTING
        refused = {numbers[architecture.column] for numbers in listed.values()}  # type: ignore[attr-defined]  # the same
        refused |= set() if nesting else {435}
        refused |= {NAMES[name][architecture.column] for name in ("socket", "socketpair")}  # type: ignore[attr-defined]
        found = {n for n in range(600) if verdict(text, architecture.audit, n) != ALLOWED}  # type: ignore[attr-defined]
        assert found == refused - {None}


@pytest.mark.parametrize("architecture", [X86_64, AARCH64, I386])
def test_user_namespaces_and_typing_for_others_depend_on_arguments(architecture: object) -> None:
    text = call_filter(nesting=False, machine=MACHINE[architecture])  # type: ignore[index]
    nesting = call_filter(nesting=True, machine=MACHINE[architecture])  # type: ignore[index]
    audit, column = architecture.audit, architecture.column  # type: ignore[attr-defined]
    for name in ("clone", "unshare"):
        number = NAMES[name][column]
        assert verdict(text, audit, number, CLONE_NEWUSER | 0x11) == "EPERM"
        assert verdict(text, audit, number, 0x0002_0000) == ALLOWED
        assert verdict(nesting, audit, number, CLONE_NEWUSER) == ALLOWED
    assert verdict(text, audit, NAMES["clone3"][column]) == "ENOSYS"
    for request in (0x5412, 0x541C, 0x5412 | 1 << 40):  # the kernel reads 32 bits
        assert verdict(nesting, audit, NAMES["ioctl"][column], 0, request) == "EPERM"
    assert verdict(text, audit, NAMES["ioctl"][column], 0, 0x5401) == ALLOWED


@pytest.mark.parametrize("architecture", [X86_64, AARCH64, I386])
def test_only_sockets_of_a_network_namespace_are_made(architecture: object) -> None:
    text = call_filter(nesting=False, machine=MACHINE[architecture])  # type: ignore[index]
    nesting = call_filter(nesting=True, machine=MACHINE[architecture])  # type: ignore[index]
    audit, column = architecture.audit, architecture.column  # type: ignore[attr-defined]
    for name in ("socket", "socketpair"):
        made = {family for family in range(60) if verdict(text, audit, NAMES[name][column], family) == ALLOWED}
        assert made == {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
        for family in (0, socket.AF_VSOCK, socket.AF_ALG, socket.AF_VSOCK | 1 << 40):  # the kernel reads 32 bits
            assert verdict(text, audit, NAMES[name][column], family) == "EAFNOSUPPORT"
        assert verdict(nesting, audit, NAMES[name][column], socket.AF_PACKET) == ALLOWED
        assert verdict(nesting, audit, NAMES[name][column], socket.AF_VSOCK) == "EAFNOSUPPORT"


def test_other_architectures_of_a_machine_are_refused() -> None:
    assert verdict(call_filter(nesting=True, machine="x86_64"), X86_64.audit, 0x4000_0000 + 39) == "ENOSYS"
    assert verdict(call_filter(nesting=True, machine="aarch64"), I386.audit, 20) == "ENOSYS"


def test_numbers_are_those_of_the_kernel() -> None:
    """As libseccomp, which every Debian has, knows them."""
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        pytest.skip("there is no libseccomp here")
    for name, numbers in {**REFUSED, **NESTING, **NAMES}.items():
        for architecture in (X86_64, AARCH64, I386):
            found = library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(architecture.audit), name.encode())
            if found == -1 or (architecture is I386 and name in WITHIN_SOCKETCALL):
                continue  # newer than the library, or known to it under another name
            assert (found if found >= 0 else None) == numbers[architecture.column], name
