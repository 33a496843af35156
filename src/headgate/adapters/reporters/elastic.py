"""Send reports as documents to Elasticsearch or OpenSearch: one for the buildset, and one for each build.

One bulk request contains them. Their ids derive from the report, so a repeated report replaces its own documents.
Names that pipelines and jobs choose appear only in the body, never in a URL.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from headgate.adapters.reporters.registry import ReporterOptions
from headgate.adapters.reporters.webhook import CALL_MAX_S, TIMEOUT_S, beginning, judged
from headgate.adapters.responses import cautious_client, content_of, from_json
from headgate.base.certificates import client_context, set_identity
from headgate.base.errors import UserError
from headgate.map.outbox import OutboxMessage, QueueReport, ReportedBuild
from headgate.ports.reporter import Reporter, ReporterAway, ReportRefused

INDEX = "zuul.{tenant}-%Y.%m.%d"
"""Name of the index if the pipeline sets none."""
INDEX_MAX_BYTES = 255
ANSWER_MAX_BYTES = 1_000_000
_BULK = "/_bulk?filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason"
_PARTS = re.compile(r"%([YmdHGVUy%])")
_NOT_TAKEN = re.compile(r"[^a-z0-9._-]")
BUSY = frozenset({429, 500, 502, 503, 504})
"""Status codes of a document after which another attempt may succeed."""


class ElasticUnusable(UserError):
    """Report that the section of the settings is unusable; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Elastic:
    """Hold the servers, and how to connect to them."""

    servers: tuple[str, ...]
    """URLs without a trailing slash, with optional credentials before the host."""
    tls: ssl.SSLContext

    @classmethod
    def of(cls, options: Mapping[str, str], directory: Path, tls: ssl.SSLContext | None = None) -> Elastic:
        """Read the section of the settings; `tls`: default context with the trusted certificates. Raise
        ElasticUnusable."""
        yes = ("true", "yes", "on", "1")
        scheme = "https" if options.get("use_ssl", "true").lower() in yes else "http"
        named = (one.strip() for one in options["uri"].split(","))
        servers = tuple(one if "://" in one else f"{scheme}://{one}" for one in named if one)
        for one in servers:
            try:
                parts = urlsplit(one)
                usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
            except ValueError:
                usable = False
            if not usable:  # the URLs may contain passwords, so they are not repeated
                raise ElasticUnusable("uri: each server is https://HOST:PORT or HOST:PORT, separated by commas")
        context = tls or ssl.create_default_context()
        try:
            if options.get("ca_certs"):
                context = client_context(_place(directory, options["ca_certs"]))
            if options.get("client_cert"):
                key = _place(directory, options["client_key"]) if options.get("client_key") else None
                set_identity(context, _place(directory, options["client_cert"]), key)
        except OSError as error:  # also raised for invalid certificates
            raise ElasticUnusable(f"ca_certs, client_cert or client_key cannot be read: {error}") from error
        if options.get("verify_certs", "true").lower() not in yes:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return cls(tuple(one.rstrip("/") for one in servers), context)


def _place(directory: Path, path: str) -> Path:
    return directory / Path(path).expanduser()


def elastic_client(elastic: Elastic) -> httpx.AsyncClient:
    """Return a client that calls only the named servers."""
    return cautious_client(TIMEOUT_S, elastic.tls)


class ElasticReporter:
    """Send reports to Elasticsearch; see `ports.reporter.Reporter`."""

    def __init__(self, client: httpx.AsyncClient, elastic: Elastic) -> None:
        """Take a `client` from `elastic_client`."""
        self._client, self._servers = client, elastic.servers
        self._first = 0
        """Index of the server that answered last."""

    async def tell(self, outgoing: OutboxMessage) -> None:
        """Send the report. Raise ReporterAway or ReportRefused."""
        index = index_of(outgoing.options.get("index") or INDEX, outgoing.report)
        body = b"".join(_lines(outgoing, index))
        for number in range(len(self._servers)):
            at = (self._first + number) % len(self._servers)
            try:
                async with asyncio.timeout(CALL_MAX_S):
                    await self._send_bulk(self._servers[at] + _BULK, body)
            except (httpx.HTTPError, TimeoutError, ReporterAway) as error:
                # Only the last failure counts, because another server of the same cluster may accept the report.
                if number + 1 == len(self._servers):
                    if isinstance(error, ReporterAway):
                        raise
                    raise ReporterAway(str(error) or type(error).__name__) from error
            else:
                self._first = at
                return

    async def _send_bulk(self, url: str, body: bytes) -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        async with self._client.stream("POST", url, content=body, headers=headers) as answer:
            if not answer.is_success:
                judged(answer, await beginning(answer))
            content = await content_of(answer, ANSWER_MAX_BYTES + 1)
            if len(content) > ANSWER_MAX_BYTES:
                raise ReporterAway(f"it returned more than {ANSWER_MAX_BYTES} bytes")
        _took(content)


class _BulkError(msgspec.Struct):
    type: str = ""
    reason: str = ""


class _Done(msgspec.Struct):
    status: int = 0
    error: _BulkError = msgspec.field(default_factory=_BulkError)


class _Bulk(msgspec.Struct):
    errors: bool
    items: list[dict[str, _Done]] = []


def _took(content: bytes) -> None:
    try:
        bulk = from_json(content, _Bulk)
    except msgspec.DecodeError as error:
        raise ReportRefused("the server there is not Elasticsearch: set uri to its URL") from error
    # A bulk request returns 200 even if every document was rejected.
    wrong = [done for item in bulk.items for done in item.values() if not 200 <= done.status < 300]
    if bulk.errors or wrong:
        reasons = "; ".join(
            dict.fromkeys(f"{one.status} {one.error.type}: {one.error.reason}"[:300] for one in wrong[:3])
        )
        why = f"it did not accept {len(wrong)} of {len(bulk.items)} documents: {reasons}"
        # All documents are sent again, even accepted ones, which replace themselves because of their ids.
        raise ReporterAway(why) if any(one.status in BUSY for one in wrong) else ReportRefused(why)


def index_of(pattern: str, report: QueueReport) -> str:
    """Return the index of a report: `pattern` with the parts of the report's time, and only characters that the server
    accepts.  A repeated report has the same index."""
    at = datetime.fromtimestamp(report.at_ms / 1000, UTC)
    named = _PARTS.sub(lambda found: at.strftime(found[0]), pattern).replace("{tenant}", report.tenant)
    # Elasticsearch rejects upper case, and names that begin with `_`, `-` or `+`; names that begin with `.` are
    # reserved for itself.
    return _NOT_TAKEN.sub("_", named.lower()).lstrip("._-+")[:INDEX_MAX_BYTES] or "zuul"


def _lines(outgoing: OutboxMessage, index: str) -> Iterator[bytes]:
    report, key = outgoing.report, outgoing.key or outgoing.report.id
    buildset = {
        "build_type": "buildset",
        "uuid": report.buildset,
        "message": report.message,
        **_about(report),
    }
    for id, document in (
        (key, buildset),
        *((f"{key}.{one.build or one.job}", _build(report, one)) for one in report.builds),
    ):
        # Ids have at most 512 bytes.
        yield msgspec.json.encode({"index": {"_index": index, "_id": id[:500]}}) + b"\n"
        yield msgspec.json.encode({name: value for name, value in document.items() if value not in ("", None)}) + b"\n"


def _about(report: QueueReport) -> dict[str, Any]:
    return {
        "@timestamp": _time(report.at_ms),
        "tenant": report.tenant,
        "pipeline": report.pipeline,
        "project": report.project,
        "branch": report.branch,
        "change": report.change,
        "newrev": report.commit,
        "ref": report.ref,
        "ref_url": report.url,
        "report": report.report,
        "result": report.result,
        "event_timestamp": _time(report.enqueued_ms),
    }


def _build(report: QueueReport, build: ReportedBuild) -> dict[str, Any]:
    ended = bool(build.start_ms and build.end_ms)
    return {
        **_about(report),
        "build_type": "build",
        "buildset_uuid": report.buildset,
        "uuid": build.build,
        "job_name": build.job,
        "result": build.result,
        "voting": build.voting,
        "attempt": build.attempt,
        "start_time": _time(build.start_ms),
        "end_time": _time(build.end_ms),
        "duration": (build.end_ms - build.start_ms) / 1000 if ended else None,
        "log_url": build.log_url,
        "error_detail": build.error,
    }


def _time(at_ms: int) -> str | None:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds") if at_ms else None


async def connect(given: ReporterOptions) -> Reporter:
    """Return the reporter for the servers of a connection. Raise ElasticUnusable."""
    elastic = Elastic.of(given.options, given.directory, given.tls())
    return ElasticReporter(await given.stack.enter_async_context(elastic_client(elastic)), elastic)
