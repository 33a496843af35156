"""Load certificates and keys that people name in files."""

from __future__ import annotations

import ssl
from pathlib import Path

from headgate.base.files import check_file


def client_context(authorities: Path | str | None = None) -> ssl.SSLContext:
    """Return a client's context, which trusts the authorities in a PEM file, or without one those of the system. Raise
    OSError, also for a device or a named pipe."""
    if authorities is not None:
        check_file(authorities)
    return ssl.create_default_context(cafile=authorities)


def add_authorities(context: ssl.SSLContext, file: Path | str) -> None:
    """Trust the authorities in a PEM file, too. Raise OSError, also for a device or a named pipe."""
    check_file(file)
    context.load_verify_locations(file)


def set_identity(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None = None) -> None:
    """Set the certificate to present; its key is in the same PEM file unless another is named. Raise OSError, also for
    a device, a named pipe or an encrypted key."""
    for file in (certificate, key or certificate):
        check_file(file)

    def ask() -> str:
        # OpenSSL would ask at the terminal, and everything else would wait for the answer.
        raise OSError(f"{key or certificate}: the key is encrypted; store it without a passphrase")

    context.load_cert_chain(certificate, key, ask)
