"""Send reports as MQTT messages to all subscribers of a broker.

A message is JSON with the members that Zuul's messages have, as far as a report knows them.  Each report opens a new
connection and closes it once the broker has accepted it, so no connection stays open for silent pipelines.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headgate.adapters.reporters.registry import ReporterOptions
from headgate.base.certificates import client_context, set_identity
from headgate.base.errors import UserError
from headgate.base.ids import fresh
from headgate.map.outbox import OutboxMessage, QueueReport, ReportedBuild
from headgate.ports.reporter import Reporter, ReporterAway, ReportRefused

TOPIC = "{tenant}/zuul/{pipeline}/{project}/{branch}/{change}"
"""Topic if the pipeline sets none."""
TOPIC_MAX_BYTES = 65_535
TIMEOUT_S = 30.0
MISSING = "it needs the library aiomqtt: pip install 'headgate[mqtt]'"
_NAME = re.compile(r"\{([a-z]+)\}")
_NOT_TAKEN = re.compile("[+#\\x00-\\x1f\\x7f-\\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""Characters of subscription patterns, and characters that make brokers disconnect."""


class MqttUnusable(UserError):
    """Report that the section of the settings is unusable; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Hold the broker's address, and the credentials."""

    host: str
    port: int = 1883
    keepalive_s: int = 60
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, options: Mapping[str, str], directory: Path) -> Broker:
        """Read the section of the settings. Raise MqttUnusable."""
        return cls(
            options.get("server") or "localhost",
            int(options.get("port") or 1883),
            int(float(options.get("keepalive") or 60)),
            options.get("user", ""),
            options.get("password", ""),
            _tls(options, directory),
        )


def _tls(options: Mapping[str, str], directory: Path) -> ssl.SSLContext | None:
    """Return the TLS context; None if the section has no options about certificates. Raise MqttUnusable."""
    places = {
        name: directory / Path(options[name]).expanduser()
        for name in ("ca_certs", "certfile", "keyfile")
        if options.get(name)
    }
    if not places:
        return None
    try:
        context = client_context(places.get("ca_certs"))
        if "certfile" in places:
            set_identity(context, places["certfile"], places.get("keyfile"))
        if options.get("ciphers"):
            context.set_ciphers(options["ciphers"])
    except OSError as error:  # also raised for invalid certificates
        raise MqttUnusable(f"ca_certs, certfile, keyfile or ciphers cannot be used: {error}") from error
    return context


class MqttReporter:
    """Send reports to a broker; see `ports.reporter.Reporter`.  A message has the same `id` however often it is
    sent."""

    def __init__(self, broker: Broker) -> None:
        """Take the broker, and import the library. Raise MqttUnusable."""
        try:
            import aiomqtt
        except ImportError as error:
            raise MqttUnusable(MISSING) from error
        self._broker, self._library = broker, aiomqtt

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Send the report. Raise ReporterAway or ReportRefused."""
        options, broker, library = outgoing.options, self._broker, self._library
        topic = topic_of(options.get("topic") or TOPIC, outgoing.report)
        qos = int(options.get("qos") or 0)
        if not topic or qos > 2:
            raise ReportRefused(f"the topic {topic!r} or the quality of service {qos} is not valid")
        body = msgspec.json.encode(message(outgoing))
        client = library.Client(
            broker.host,
            broker.port,
            username=broker.user or None,
            password=broker.password or None,
            # Unique, because a broker ends the session of a client when another one connects with the same identifier.
            identifier=f"headgate-{fresh()}",
            timeout=TIMEOUT_S,
            keepalive=broker.keepalive_s,
            tls_context=broker.tls,
        )
        try:
            async with asyncio.timeout(TIMEOUT_S), client:
                await client.publish(topic, body, qos=qos)
        except (library.MqttError, OSError, TimeoutError) as error:
            where = f"{broker.host}:{broker.port}"
            raise ReporterAway(f"{where}: {str(error) or f'it did not answer within {TIMEOUT_S:.0f} s'}") from error


def topic_of(pattern: str, report: QueueReport) -> str:
    """Return the topic: `pattern` with the values of the names in braces; unknown names stay unchanged."""
    change, _, patchset = report.change.partition(",")
    values = {
        "tenant": report.tenant,
        "pipeline": report.pipeline,
        "project": report.project.partition("/")[2] or report.project,
        "branch": report.branch,
        "change": change,
        "patchset": patchset,
        "ref": report.ref,
    }
    topic = _NAME.sub(lambda found: values.get(found[1], found[0]), pattern)
    topic = _NOT_TAKEN.sub("_", topic)
    topic = f"_{topic[1:]}" if topic.startswith("$") else topic  # such topics belong to the broker
    # A character that is cut in two would be invalid UTF-8, which makes brokers disconnect.
    return topic.encode()[:TOPIC_MAX_BYTES].decode(errors="ignore")


def message(outgoing: OutboxMessage) -> dict[str, Any]:
    """Return the message; times are in seconds since 1970."""
    report = outgoing.report
    change, _, patchset = report.change.partition(",")
    document = {
        "id": outgoing.key or report.id,
        "timestamp": report.at_ms / 1000,
        "action": report.report,
        "tenant": report.tenant,
        "pipeline": report.pipeline,
        # The short name, as in Zuul's messages; a report has the canonical name.
        "project": report.project.partition("/")[2] or report.project,
        "branch": report.branch,
        "change": "" if report.ref else change,
        "patchset": "" if report.ref else patchset,
        "commit_id": report.commit,
        "ref": report.ref,
        "change_url": report.url,
        "message": report.message,
        "enqueue_time": report.enqueued_ms / 1000 or "",
        "buildset": {
            "uuid": report.buildset,
            "result": report.result,
            "builds": [_build(report, one) for one in report.builds],
        },
    }
    return {name: value for name, value in document.items() if value != ""}


def _build(report: QueueReport, build: ReportedBuild) -> dict[str, Any]:
    page = f"{report.root}/t/{report.tenant}/build/{build.build}" if report.root and build.build else ""
    document = {
        "job_name": build.job,
        "uuid": build.build,
        "voting": build.voting,
        "result": build.result,
        "start_time": build.start_ms / 1000 or "",
        "end_time": build.end_ms / 1000 or "",
        "log_url": build.log_url,
        "web_url": page,
        "error_detail": build.error,
    }
    return {name: value for name, value in document.items() if value != ""}


async def connect(given: ReporterOptions) -> Reporter:
    """Return the reporter for the broker of a connection. Raise MqttUnusable."""
    return MqttReporter(Broker.of(given.options, given.directory))
