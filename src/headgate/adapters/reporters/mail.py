"""Send reports by mail."""

from __future__ import annotations

import hashlib
import io
import re
import smtplib
import ssl
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, parseaddr
from functools import partial
from pathlib import Path
from socket import socket

from headgate.adapters.reporters.registry import ReporterOptions
from headgate.adapters.reporters.wordings import page, title
from headgate.base.certificates import client_context
from headgate.base.tasks import OwnThreads
from headgate.map.outbox import OutboxMessage, QueueReport
from headgate.ports.reporter import Reporter, ReporterAway, ReportPutOff, ReportRefused

TIMEOUT_S, MAIL_MAX_S = 30.0, 120.0
"""Time limits for one answer of the server, and for a complete mail, however slowly answers arrive."""
ANSWERS_MAX_BYTES = 1_000_000
"""Limit on all answers of the server to one mail."""
AT_ONCE_MAX = 4
"""Limit on the mails that are being sent, or that were given up and are not over yet."""
RECIPIENTS_MAX = 50
DELIVERED_MAX = 1_000
"""Limit on the mails whose recipients are remembered."""
_ADDRESS = re.compile(r"(?!.*=\?)[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
"""Accepted addresses: without quoting, comments, or anything else that a mail server could read as several
addresses."""


@dataclass(frozen=True, slots=True)
class MailServer:
    """Hold the mail server, the sender and the permitted recipients."""

    host: str
    port: int
    sender: str
    recipients: tuple[str, ...] = ()
    """Recipients if the pipeline names none."""
    security: str = "none"
    """none | starttls | tls"""
    user: str = ""
    password: str = field(default="", repr=False)
    allowed: tuple[str, ...] = ()
    """Addresses, or domains such as `@example.org`, that pipelines may name; empty: any."""
    authorities: str = ""
    """File with the certificates of trusted authorities; empty: those of the system."""
    helo: str = ""
    """Host name to greet with; empty: this machine's own."""

    @classmethod
    def of(cls, options: Mapping[str, str], beside: Path) -> MailServer:
        """Read the section of the settings; relative paths start at `beside`, the directory of the settings file."""
        security = options.get("security") or (
            "starttls" if options.get("use_starttls", "").lower() in _YES else "none"
        )
        usual = {"tls": 465}.get(security, 25)
        return cls(
            host=options.get("server") or "localhost",
            port=int(options.get("port") or usual),
            sender=options.get("default_from") or "headgate@localhost",
            recipients=addresses(options.get("default_to", "")),
            security=security,
            user=options.get("user", ""),
            password=options.get("password", ""),
            allowed=tuple(re.split(r"[\s,]+", options.get("recipients", "").strip()))
            if options.get("recipients")
            else (),
            authorities=str(beside / Path(options["ca"]).expanduser()) if options.get("ca") else "",
        )


_YES = ("true", "yes", "on", "1")


class MailReporter:
    """Send reports by mail; see `ports.reporter.Reporter`.  The id of a message is the same however often it is
    sent."""

    def __init__(self, server: MailServer) -> None:
        self._server = server
        self._threads = OwnThreads(AT_ONCE_MAX)
        self._delivered = dict[str, frozenset[str]]()
        """Id of a mail -> recipients who have received it, and must not receive it again when the report is
        repeated."""

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Send the report. Raise ReporterAway, ReportPutOff or ReportRefused."""
        message, to = self.message(outgoing)
        delivered = self._delivered.get(message["Message-ID"], frozenset())
        if lacking := [one for one in to if one not in delivered]:
            try:
                await self._threads.run(partial(self._send, message, lacking), 2 * MAIL_MAX_S)
            except TimeoutError as error:
                why = str(error) or "it does not answer"
                raise ReporterAway(f"{self._server.host}:{self._server.port}: {why}") from error

    def message(self, outgoing: OutboxMessage) -> tuple[EmailMessage, tuple[str, ...]]:
        """Return the mail and its recipients. Raise ReportRefused."""
        report, options = outgoing.report, outgoing.options
        sender, to = options.get("from", "").strip() or self._server.sender, self._recipients(options)
        if not _ADDRESS.fullmatch(parseaddr(sender)[1]):
            raise ReportRefused(f"{sender!r} is not an address to send from")
        message = EmailMessage(policy=SMTP)
        # A header is parsed when it is set: encoded words of a proposal could become line breaks, and thereby headers.
        message["Subject"] = title(report, options.get("subject", "").strip()).replace("=?", "= ?")
        # Only the address, because a display name from a pipeline could impersonate a person.
        message["From"] = parseaddr(sender)[1]
        message["To"] = ", ".join(to)
        message["Date"] = format_datetime(datetime.fromtimestamp(report.at_ms / 1000, UTC))
        host = parseaddr(sender)[1].rpartition("@")[2]
        # A mail that is sent twice after a lost response has the same id, so many servers and mail readers drop the
        # second one.
        message["Message-ID"] = f"<{_hexadecimal(outgoing.key or report.id)}@{host}>"
        # No message has this id, but mail readers group all reports of a change by it.
        message["References"] = f"<{_hexadecimal(report.tenant, report.project, _change(report))}@{host}>"
        # Prevents automatic replies, for example out-of-office messages (RFC 3834).
        message["Auto-Submitted"] = "auto-generated"
        message["X-Headgate-Report"] = report.report
        message["X-Headgate-Result"] = report.result or "-"
        address = page(report)
        body = report.message.strip() or title(report)
        if address and address not in body:
            body = f"{body}\n\n{address}"
        # Encoding and decoding replaces lone surrogates, which cannot be sent; quoted-printable keeps lines within
        # SMTP's 998 bytes.
        message.set_content(body.encode("utf-8", "replace").decode() + "\n", cte="quoted-printable")
        return message, to

    def _recipients(self, options: Mapping[str, str]) -> tuple[str, ...]:
        """Return the recipients of a report.  Raise ReportRefused."""
        requested = options.get("to", "").strip()
        to = addresses(requested) if requested else self._server.recipients
        if not to:
            raise ReportRefused("it has no recipient: set `to` of the reporter or default_to")
        if len(to) > RECIPIENTS_MAX:
            raise ReportRefused(f"it has {len(to)} recipients, more than {RECIPIENTS_MAX}")
        for one in to:
            if not _ADDRESS.fullmatch(one):
                raise ReportRefused(f"{one!r} is not an address to send to")
            domain = f"@{one.rpartition('@')[2]}".lower()
            allowed = {entry.lower() for entry in self._server.allowed}
            # The operator's own recipients need no permission; those of a pipeline do, or any project could send mail
            # to anybody.
            if requested and allowed and one.lower() not in allowed and domain not in allowed:
                raise ReportRefused(f"the settings do not allow pipelines to send to {one}")
        return to

    def _send(self, message: EmailMessage, to: Sequence[str]) -> None:
        server = self._server
        try:
            with self._connected() as connection:
                if server.security == "starttls":
                    connection.starttls(context=_believing(server.authorities))
                if server.user:
                    connection.login(server.user, server.password)
                # If a server accepts only some recipients, smtplib returns the others and raises nothing.
                refused = connection.send_message(message, to_addrs=list(to))
                # Noted inside the block, because closing the connection may fail after the delivery.
                self._note(message["Message-ID"], set(to) - refused.keys())
        except smtplib.SMTPRecipientsRefused as error:
            self._raise_for(error.recipients)
        except smtplib.SMTPSenderRefused as error:
            raise self._by_code(error.smtp_code, f"{error.sender}: {_text_of(error.smtp_error)}") from error
        except smtplib.SMTPDataError as error:
            raise self._by_code(error.smtp_code, _text_of(error.smtp_error)) from error
        except (smtplib.SMTPException, OSError, ValueError) as error:
            # All other errors concern the server, for example its login or its certificate, so all reports wait.
            raise ReporterAway(f"{server.host}:{server.port}: {_text_of(error)}") from error
        else:
            if refused:
                self._raise_for(refused)

    def _note(self, id: str, recipients: Set[str]) -> None:
        """Remember who has received a mail, so that they do not receive it again together with the others."""
        self._delivered[id] = self._delivered.pop(id, frozenset()) | recipients
        while len(self._delivered) > DELIVERED_MAX:
            self._delivered.pop(next(iter(self._delivered)))

    def _connected(self) -> smtplib.SMTP:
        server, name = self._server, self._server.helo or None
        if server.security == "tls":
            context = _believing(server.authorities)
            return _LimitedTls(server.host, server.port, name, timeout=TIMEOUT_S, context=context)
        return _Limited(server.host, server.port, name, timeout=TIMEOUT_S)

    def _raise_for(self, refused: Mapping[str, tuple[int, bytes]]) -> None:
        """Report failed recipients: raise ReportPutOff if all of them may be tried again, otherwise ReportRefused."""
        failures = "; ".join(f"{one}: {code} {_text_of(text)}" for one, (code, text) in sorted(refused.items()))
        if all(400 <= code < 500 for code, _ in refused.values()):
            raise ReportPutOff(failures)
        raise ReportRefused(f"some recipients are rejected: {failures}")

    def _by_code(self, code: int, text: str) -> Exception:
        return ReportPutOff(f"{code} {text}") if 400 <= code < 500 else ReportRefused(f"{code} {text}")


class _Limited(smtplib.SMTP):
    """Send mails to a server whose answers are limited in size and time, which smtplib does not do."""

    def __init__(self, *address: str | int | None, **more: object) -> None:
        self.until_s, self.left_bytes = time.monotonic() + MAIL_MAX_S, ANSWERS_MAX_BYTES
        super().__init__(*address, **more)  # type: ignore[arg-type]

    def getreply(self) -> tuple[int, bytes]:
        """Read an answer; see `smtplib.SMTP`."""
        # smtplib resets it when TLS begins.
        if self.file is None and self.sock is not None:
            self.file = io.BufferedReader(_Answers(self, self.sock))
        return super().getreply()


class _LimitedTls(_Limited, smtplib.SMTP_SSL):
    """Connect with TLS."""


class _Answers(io.RawIOBase):
    """Read the answers of a server."""

    def __init__(self, limits: _Limited, connection: socket) -> None:
        self._limits, self._socket = limits, connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        left_s = self._limits.until_s - time.monotonic()
        if left_s <= 0 or self._limits.left_bytes <= 0:
            raise TimeoutError("its answers do not end")
        self._socket.settimeout(min(TIMEOUT_S, left_s))
        size = self._socket.recv_into(buffer)
        self._limits.left_bytes -= size
        return size


def addresses(text: str) -> tuple[str, ...]:
    """Split a list at commas, semicolons and spaces; return each address once."""
    return tuple(dict.fromkeys(one for one in re.split(r"[\s,;]+", text.strip()) if one))


def _believing(authorities: str) -> ssl.SSLContext:
    return client_context(authorities or None)


def _text_of(error: object) -> str:
    text = error.decode("utf-8", "replace") if isinstance(error, bytes) else str(error) or type(error).__name__
    return " ".join(text.split())[:500]


def _change(report: QueueReport) -> str:
    """Return a name of a change that is the same for all its patchsets."""
    return f"{report.branch}/{report.change.partition(',')[0]}" if not report.ref else report.ref


def _hexadecimal(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:40]


async def connect(given: ReporterOptions) -> Reporter:
    """Return the reporter for the mail of a connection."""
    return MailReporter(MailServer.of(given.options, given.directory))
