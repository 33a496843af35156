"""Test loading certificates: neither a pipe nor a passphrase is waited for."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from headgate.base.certificates import add_authorities, client_context, set_identity
from tests.integration.inventory.authority import Authority


def bare() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Provide certificates, and a pipe to which nobody writes."""
    Authority().files(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def test_certificates_are_loaded(place: Path) -> None:
    trusting = client_context(place / "authority")
    add_authorities(trusting, place / "certificate")
    assert len(trusting.get_ca_certs(binary_form=True)) == 1 and trusting.cert_store_stats()["x509"] == 2
    set_identity(trusting, place / "certificate", place / "key")
    both = place / "both"
    both.write_bytes((place / "certificate").read_bytes() + (place / "key").read_bytes())
    set_identity(trusting, both)


@pytest.mark.parametrize(
    "load",
    [
        lambda place: client_context(place / "pipe"),
        lambda place: add_authorities(bare(), place / "pipe"),
        lambda place: set_identity(bare(), place / "pipe", place / "key"),
        lambda place: set_identity(bare(), place / "certificate", place / "pipe"),
    ],
)
def test_a_pipe_is_not_waited_for(place: Path, load: Callable[[Path], object]) -> None:
    with pytest.raises(OSError, match=r"this is a named pipe; name a regular file: '.*/pipe'"):
        load(place)


def test_a_missing_file_is_named(place: Path) -> None:
    with pytest.raises(OSError, match="/missing"):
        set_identity(bare(), place / "certificate", place / "missing")


def test_a_key_with_a_passphrase_is_refused(place: Path) -> None:
    key = load_pem_private_key((place / "key").read_bytes(), None)
    form, kept = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    (place / "key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, kept))
    with pytest.raises(OSError, match="/key: the key is encrypted; store it without a passphrase"):
        set_identity(bare(), place / "certificate", place / "key")
