"""Load the credentials that the settings name: TLS files, and the operator's token."""

from __future__ import annotations

import logging
import os
import secrets
import ssl
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.base.certificates import add_authorities, set_identity
from headgate.base.errors import UserError
from headgate.cli.settings import Settings
from headgate.web.peers.connections import Tls

log = logging.getLogger("headgate.token")

TLS_NAMES = ("certificate", "key", "client_ca")
"""Options of `[tls]`, in the order of `Tls`."""
TOKEN_FILE = "token"
"""Name of the token file in state_dir, unless `[web] token_file` is set."""
TOKEN_VARIABLE = "HEADGATE_TOKEN"
"""Environment variable with the token, for commands on another machine or of another user."""
TOKEN_MIN_CHARS = 16
TOKEN_FILE_MAX_BYTES = 4_096


def tls_of(settings: Settings, section: str = "tls", names: tuple[str, str, str] = TLS_NAMES) -> Tls | None:
    """Return the TLS files, or None to serve without TLS. A section without TLS files uses those of `[tls]`. Raise
    UserError."""
    paths = [settings.get(section, name) for name in names]
    if not any(paths):
        return None if section == "tls" else tls_of(settings)
    # Never take the missing half from [tls]: that would combine a certificate with another one's key.
    if not paths[0] or not paths[1]:
        raise UserError(f"{settings.path}: [{section}] needs both {names[0]} and {names[1]} for TLS")
    certificate, key, client_ca = (settings.place(section, name, "") for name in names)
    return Tls(certificate, key, client_ca if paths[2] else None)


def tls_of_finger(settings: Settings) -> Tls | None:
    """Return the TLS files of the finger gateway, or None without TLS. With TLS, clients must present a certificate.
    Raise UserError unless all three files or none are set."""
    names = ("tls_cert", "tls_key", "tls_ca")
    given = [bool(settings.get("fingergw", name)) for name in names]
    if not all(given):
        # An incomplete setting must not start a server without TLS that its operator believes to be protected.
        if any(given):
            raise UserError(f"{settings.path}: [fingergw] needs all of {', '.join(names)} for TLS, or none")
        return None
    certificate, key, client_ca = (settings.place("fingergw", name, "") for name in names)
    return Tls(certificate, key, client_ca)


def scheme(tls: Tls | None) -> str:
    return "https" if tls else "http"


def authorities(settings: Settings) -> tuple[Path, ...]:
    """Return the CAs that clients trust in addition to the system's."""
    return (settings.place("tls", "ca", ""),) if settings.get("tls", "ca") else ()


def as_client(settings: Settings) -> ssl.SSLContext | bool:
    """Return the TLS context with which the web server connects to executors, or True without TLS. It trusts the
    system's CAs and `[tls] ca`, or else Headgate's own certificate, and presents the latter. Raise UserError."""
    tls = tls_of(settings)
    if tls is None:
        return True
    found = ssl.create_default_context()
    try:
        add_authorities(found, settings.place("tls", "ca", "") if settings.get("tls", "ca") else tls.certificate)
        set_identity(found, tls.certificate, tls.key)
    except OSError as error:
        raise UserError(f"{settings.path}: [tls] certificate, key or ca cannot be used: {error}") from error
    # Without [tls] ca, Headgate's own certificate is the trust anchor, even if a CA signed it.
    found.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return found


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Locate the file that holds a token, such as the operator's."""

    path: Path
    ours: bool
    """Whether Headgate creates the file; otherwise, the operator may let a group read it."""
    name: str = "the operator's token"

    def made(self) -> str:
        """Return the token for a server, and create the file if it does not exist. Raise UserError."""
        if self.ours and not self._exists():
            self._make()
        return self._read(strictly=True)

    def read(self) -> str:
        """Return the token for a command, or an empty string if the file does not exist or this user may not read it.
        Raise UserError."""
        try:
            if not self._exists():
                return ""
            return self._read(strictly=False)
        except PermissionError:
            return ""

    def _exists(self) -> bool:
        try:
            # With lstat, a dangling symlink counts as existing, and opening it then gives a clear error.
            self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _make(self) -> None:
        """Create the file atomically. If several processes start together, the first one wins."""
        own = self.path.with_name(f".{self.path.name}-{secrets.token_hex(8)}")
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
                file.flush()
                # Sync before the link: after a power failure, an empty token file would keep every process from
                # starting.
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                # `link`, unlike `rename`, never replaces a file: the other processes read the first one's token.
                os.link(own, self.path)
        except OSError as error:
            raise self._wrong(f"{self.name} cannot be written: {error.strerror}") from error
        finally:
            with suppress(OSError):
                own.unlink()

    def _read(self, *, strictly: bool) -> str:
        """Read the token. Raise UserError, and PermissionError unless `strictly`."""
        # Headgate's own token file is never a symlink, so one there is an attack; an operator's file may be a symlink.
        follow = os.O_NOFOLLOW if self.ours else 0
        try:
            # O_NONBLOCK: opening a FIFO that somebody planted there would block forever.
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | follow)
        except OSError as error:
            if isinstance(error, PermissionError) and not strictly:
                raise
            raise self._wrong(f"{self.name} cannot be read: {error.strerror}") from error
        try:
            if strictly:
                self._guarded(file)
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise self._wrong(f"{self.name} must be in a regular file")
            text = os.read(file, TOKEN_FILE_MAX_BYTES).decode(errors="replace").strip()
        finally:
            os.close(file)
        if len(text) < TOKEN_MIN_CHARS or not text.isascii() or not text.isprintable() or " " in text:
            mend = "; remove the file, and Headgate creates a new one" if self.ours else ""
            raise self._wrong(
                f"{self.name} must be one line of at least {TOKEN_MIN_CHARS} printable ASCII characters without "
                f"spaces{mend}"
            )
        return text

    def _guarded(self, file: int) -> None:
        """Check the owner of the file, and revoke access of other users. Raise UserError."""
        found = os.fstat(file)
        # The owner knows the token, or can replace it with a known one.
        if found.st_uid not in (os.geteuid(), 0):
            raise self._wrong(
                f"the file belongs to the user with id {found.st_uid}, who could set any token: remove it"
            )
        # An operator may let a group read a file that the settings name, but nobody else may write to it.
        open_to_others = stat.S_IMODE(found.st_mode) & (0o077 if self.ours else 0o027)
        if not open_to_others:
            return
        try:
            # Change the mode through the descriptor: the name may refer to another file by now.
            os.fchmod(file, stat.S_IMODE(found.st_mode) & ~open_to_others)
        except OSError as error:
            why = f"other users can read or change the file, and its mode cannot be changed: {error.strerror}"
            raise self._wrong(f"{why}; run: chmod 600 {self.path}") from error
        log.warning("%s: other users could read or change this file until now, so they may know the token; to be safe, "
                    "remove the file and restart Headgate", self.path)  # fmt: skip

    def _wrong(self, what: str) -> UserError:
        return UserError(f"{self.path}: {what}")


def token_file(settings: Settings) -> TokenFile:
    named = settings.get("web", "token_file")
    return TokenFile(settings.place("web", "token_file", TOKEN_FILE), ours=not named)


def operator_token(settings: Settings) -> str:
    """Return the operator's token for a server. Raise UserError."""
    return settings.get("web", "token") or token_file(settings).made()


def known_token(settings: Settings) -> str:
    """Return the operator's token for a command, or an empty string if this user may not read it. Raise UserError."""
    return settings.get("web", "token") or token_file(settings).read()
