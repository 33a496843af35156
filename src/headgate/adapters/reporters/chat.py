"""Send reports to chats through the library apprise: Slack, Matrix, Teams and every other chat that it supports."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from headgate.adapters.reporters.registry import ReporterOptions
from headgate.adapters.reporters.wordings import summary, title
from headgate.base.errors import UserError
from headgate.base.tasks import OwnThreads
from headgate.map.outbox import OutboxMessage
from headgate.ports.reporter import Reporter, ReportPutOff

MISSING = "it needs the library apprise: pip install 'headgate[chat]'"
REASON_MAX = 500
CALL_MAX_S, AT_ONCE_MAX = 120.0, 4
"""Time limit for a report, and limit on the reports that are being sent, or that were given up and are not over yet."""
_URL = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_MARKUP = re.compile(r"[@<]|\](?=[(\[:])")
"""Beginnings of mentions: `@name`, and `<!channel>` or `<users/all>`, which some chats accept; and the middle of links
whose text is not their address, and of images: `[text](address)`, `[text][name]` and `[name]: address`."""
_LIBRARY_LOG = "apprise"


class ChatUnusable(UserError):
    """Report that the library is missing or does not support a URL; the text names it without its secrets."""


class ChatReporter:
    """Send reports to chats; see `ports.reporter.Reporter`.  A chat cannot recognise a repeated report, so after a lost
    response it may contain a report twice."""

    def __init__(self, urls: str) -> None:
        """Create a reporter for `urls`: URLs of apprise, separated by spaces.  Raise ChatUnusable."""
        try:
            import apprise
        except ImportError as error:
            raise ChatUnusable(MISSING) from error
        storage = apprise.PersistentStoreMode.MEMORY  # apprise writes nothing to the disk
        # Not asynchronous, because `tell` calls it in a separate thread.
        asset = apprise.AppriseAsset(app_id="Headgate", app_desc="Headgate", async_mode=False, storage_mode=storage)
        self._threads = OwnThreads(AT_ONCE_MAX)
        self._chats = apprise.Apprise(asset=asset)
        self._capture: Any = apprise.LogCapture  # apprise has no types
        for url in urls.split():
            if not self._chats.add(url):
                raise ChatUnusable(f"apprise does not support this {url.partition('://')[0]}://… URL")
        if not len(self._chats):
            raise ChatUnusable("it needs a url: a URL of apprise, such as slack://…")

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ChatReporter:
        """Make a reporter from its section of the settings. Raise ChatUnusable."""
        return cls(options.get("url", ""))

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Send the report. Raise ReportPutOff."""
        try:
            why = await self._threads.run(partial(self._tell, *self.message(outgoing)), CALL_MAX_S)
        except TimeoutError as error:
            why = str(error) or f"the chat has not answered within {CALL_MAX_S:.0f} s"
        if why is not None:
            raise ReportPutOff(why)

    @staticmethod
    def message(outgoing: OutboxMessage) -> tuple[str, str, str]:
        """Return title, text and kind of the message, in the form of apprise."""
        report = outgoing.report
        kind = {"success": "success", "start": "info", "enqueue": "info", "dequeue": "warning"}.get(
            report.report, "failure"
        )
        heading = title(report, outgoing.options.get("title", ""))
        return _plain(heading), _plain(summary(report) or heading), kind

    def _tell(self, heading: str, text: str, kind: str) -> str | None:
        """Send to the chats, and return the reason if one of them refused; None if all accepted."""
        with self._captured() as output:
            if self._chats.notify(body=text, title=heading, notify_type=kind, body_format="text"):
                return None
            return _shortened(output.getvalue()) or "the chat did not accept it, and apprise gives no reason"

    def _captured(self) -> Any:  # apprise's own context manager
        return self._capture(level=logging.WARNING, name=_LIBRARY_LOG, fmt="%(message)s")


def _plain(text: str) -> str:
    """Return the text without mentions, because untrusted text must not alert people or an entire channel, and without
    links that hide where they lead."""
    # An invisible space follows, so that people read the same text.
    return _MARKUP.sub("\\g<0>\u200b", text)


def _shortened(text: str | io.StringIO) -> str:
    """Shorten a message, and remove URLs, because they contain tokens."""
    return " ".join(_URL.sub("…", str(text)).split())[:REASON_MAX]


async def connect(given: ReporterOptions) -> Reporter:
    """Return the reporter for the chats of a connection. Raise ChatUnusable."""
    return ChatReporter.of(given.options)
