"""Declare the places of the key store, outside the gate's tree, so that deleting that tree does not lose keys."""

from __future__ import annotations

import msgspec

from headgate.map.tree import Dir, each, place

KEYS_ROOT = "/keystorage"


class KeyPair(msgspec.Struct, frozen=True):
    version: int
    """Number of the key pair, from 1; each rotation adds the next."""
    created_ms: int
    public: str
    """Public key, PEM."""
    private: str
    """Private key, PEM of PKCS #8, encrypted with the password of the key store."""


class ProjectKeyPairs(msgspec.Struct, frozen=True):
    pairs: tuple[KeyPair, ...]
    """Key pairs, newest first. Secrets are encrypted with the newest; older pairs still decrypt older secrets."""
    v: int = 1


class ProjectKeys(Dir):
    """Hold the keys of one project, by its name within the connection."""

    secrets = place(
        ProjectKeyPairs,
        "RSA keys for the secrets of the project; the private halves are encrypted with `[keystore] password`.",
        by="web, keys command",
        seed=False,
    )


class ConnectionKeys(Dir):
    """Hold the keys of the projects of one connection."""

    project = each(ProjectKeys, key="project", bare=True, seed=False)


class KeyStorage(Dir):
    """Hold the keys of projects. Back them up with `headgate keys export`: without them, secrets cannot be
    decrypted."""

    def __init__(self, path: str = KEYS_ROOT) -> None:
        super().__init__(path)

    connection = each(ConnectionKeys, key="connection", bare=True, seed=False)
