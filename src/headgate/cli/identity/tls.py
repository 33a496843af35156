"""TLS settings that all servers share, from the section `[tls]`."""

from __future__ import annotations

import ssl
from pathlib import Path

from headgate.base.errors import UserError
from headgate.cli.settings import Settings
from headgate.web.peers.listener import Tls

NAMES = ("certificate", "key", "client_ca")


def tls_of(settings: Settings, section: str = "tls", names: tuple[str, str, str] = NAMES) -> Tls | None:
    """Return the TLS files, or None to serve without TLS. A section without settings uses those of `[tls]`. Raise
    UserError."""
    paths = [settings.get(section, name) for name in names]
    if not any(paths):
        return None if section == "tls" else tls_of(settings)
    # The section counts as a whole: taking the missing half from [tls] would combine a certificate with the key of
    # another.
    if not paths[0] or not paths[1]:
        raise UserError(f"{settings.path}: [{section}] needs both {names[0]} and {names[1]} for TLS")
    certificate, key, client_ca = (settings.place(section, name, "") for name in names)
    return Tls(certificate, key, client_ca if paths[2] else None)


def tls_of_finger(settings: Settings) -> Tls | None:
    """Return the TLS files of the finger gateway: either all three are set, and clients show a certificate, or none
    is. Raise UserError."""
    names = ("tls_cert", "tls_key", "tls_ca")
    given = [bool(settings.get("fingergw", name)) for name in names]
    if not all(given):
        # Half a setting must not end in a server without TLS that its admin believes to be protected.
        if any(given):
            raise UserError(f"{settings.path}: [fingergw] needs all of {', '.join(names)} for TLS, or none")
        return None
    certificate, key, client_ca = (settings.place("fingergw", name, "") for name in names)
    return Tls(certificate, key, client_ca)


def scheme(tls: Tls | None) -> str:
    return "https" if tls else "http"


def authorities(settings: Settings) -> tuple[Path, ...]:
    """Return the authorities that clients trust besides those of the system."""
    return (settings.place("tls", "ca", ""),) if settings.get("tls", "ca") else ()


def as_client(settings: Settings) -> ssl.SSLContext | bool:
    """Return how the web connects to executors: it trusts the authorities of the system, `[tls] ca` or our own
    certificate, and shows them our own. True without TLS. Raise UserError."""
    tls = tls_of(settings)
    if tls is None:
        return True
    found = ssl.create_default_context()
    try:
        found.load_verify_locations(settings.place("tls", "ca", "") if settings.get("tls", "ca") else tls.certificate)
        found.load_cert_chain(tls.certificate, tls.key)
    except OSError as error:
        raise UserError(f"{settings.path}: [tls] certificate, key or ca cannot be used: {error}") from error
    # Without [tls] ca, the anchor is our own certificate, even if an authority has signed it.
    found.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return found
