"""Test what proposals write where other programs read it: in chats, mails and metrics; and servers that never end an
answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from email import message_from_bytes

import pytest
from msgspec.structs import replace

from headgate.adapters.metrics.figures import JOBS_MAX, OTHERS, ProcessMetrics
from headgate.adapters.reporters.chat import ChatReporter
from headgate.adapters.reporters.mail import ANSWERS_MAX_BYTES, MailReporter, MailServer
from headgate.map.outbox import OutboxMessage, QueueReport, ReportedBuild
from headgate.ports.observer import WorkDone
from headgate.ports.reporter import Reporter, ReporterAway, ReportPutOff, ReportRefused
from headgate.testing.clock import DEADLINE_S

MENTIONS = ("@channel", "@everyone", "@here", "<!channel>", "<!here|here>", "<@U123>", "<@&1>", "<users/all>", "@room")

REPORT = QueueReport(
    v=1, kind="report", id="r", at_ms=1, tenant="t", pipeline="gate", project="h/p", branch="b", commit="c",
    change="1,abc", item="i", buildset="s", result="FAILURE", report="failure",
)  # fmt: skip


@pytest.mark.parametrize("mention", MENTIONS)
def test_names_in_a_proposal_mention_nobody_in_a_chat(mention: str) -> None:
    report = replace(
        REPORT, change=f"{mention},abc", subject=f"Call {mention}", message=f"See {mention}\n",
        builds=(ReportedBuild(job=f"job {mention}", build="b", attempt=1, result="FAILURE", error=f"{mention}"),),
    )  # fmt: skip
    for options in ({}, {"title": "{subject} {change}"}):
        heading, text, _ = ChatReporter.message(OutboxMessage("", report, options=options, key="k"))
        assert mention not in heading + text
        assert mention in re.sub("\u200b", "", heading)


@pytest.mark.parametrize(
    "link",
    ["[here](https://evil.example)", "![x](https://evil.example/i.png)", "[here][1]", "[1]: https://evil.example"],
)
def test_links_in_a_proposal_show_where_they_lead_in_a_chat(link: str) -> None:
    """Discord, Mattermost and Zulip render Markdown in every message."""
    report = replace(REPORT, subject=f"See {link}", message=f"See {link}\n")
    heading, text, _ = ChatReporter.message(OutboxMessage("", report, key="k"))
    assert link not in heading + text
    assert link in re.sub("\u200b", "", heading) and link in re.sub("\u200b", "", text)


# --- mails

SERVER = MailServer("127.0.0.1", 25, "gate@example.org", ("team@example.org",))
HEADERS = {
    "subject", "from", "to", "date", "message-id", "references", "auto-submitted", "x-headgate-report",
    "x-headgate-result", "content-type", "content-transfer-encoding", "mime-version",
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"subject": "{subject}"}, {"subject": "{branch} {change}"}])
@pytest.mark.parametrize(
    "word",
    [
        "=?utf-8?q?=0D=0ABcc:_eve@example.net?=",
        "=?utf-8?b?DQpCY2M6IGV2ZUBleGFtcGxlLm5ldA0KDQp4?=",
        "=?us-ascii?q?a?= =?us-ascii?q?=0D=0A=0D=0Abody?=",
        "=?utf-7?q?+AA0ACg-Bcc:_x?=",
        "a\r\nBcc: eve@example.net",
        "a\x0b\x85\u2028Bcc: eve@example.net",
    ],
)
def test_no_text_of_a_proposal_adds_a_header_or_a_line_to_the_head_of_a_mail(
    word: str, options: dict[str, str]
) -> None:
    report = replace(REPORT, subject=word, branch=word, change=f"{word},abc", message=word)
    message, _ = MailReporter(SERVER).message(OutboxMessage("", report, options=options, key="k"))
    head, _, body = message.as_bytes().partition(b"\r\n\r\n")
    found = message_from_bytes(head)
    assert {name.lower() for name in found.keys()} == HEADERS and "body" not in body.decode()[:4]  # noqa: SIM118
    assert not found.defects and b"\n" not in head.replace(b"\r\n", b"")


def test_an_address_of_a_pipeline_is_no_encoded_word() -> None:
    for options in ({"to": "=?utf-8?q?=0D=0ABcc=3Ax?=@example.org"}, {"from": "=?utf-8?q?=0D=0Ax?=@example.org"}):
        with pytest.raises(ReportRefused, match="is not an address"):
            MailReporter(SERVER).message(OutboxMessage("", REPORT, options=options, key="k"))


# --- servers


@asynccontextmanager
async def serving(greeting: bytes, then: bytes = b"") -> AsyncIterator[tuple[int, asyncio.Event, asyncio.Event]]:
    """Send these bytes, and more of them once an event is set; provide the port, an event that is set when a client
    has connected, and that event."""
    came, goes_on = asyncio.Event(), asyncio.Event()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        came.set()
        await goes_on.wait()
        writer.write(then)
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], came, goes_on


def mailing(port: int) -> MailReporter:
    return MailReporter(MailServer("127.0.0.1", port, "gate@example.org", ("team@example.org",)))


async def test_a_mail_server_with_an_endless_answer_takes_bounded_memory() -> None:
    line = b"220-" + b"x" * 500 + b"\r\n"
    lines = line * (2 * ANSWERS_MAX_BYTES // len(line))
    async with serving(lines, b"220 at last\r\n") as (port, _, goes_on), asyncio.timeout(DEADLINE_S):
        goes_on.set()
        with pytest.raises(ReporterAway, match="its answers do not end"):
            await mailing(port).tell(OutboxMessage("", REPORT, key="k"))


REPORTERS: dict[str, tuple[Callable[[int], Reporter], bytes]] = {
    "mail": (mailing, b""),
    "chat": (lambda port: ChatReporter(f"json://127.0.0.1:{port}/"), b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n"),
}


@pytest.mark.parametrize("name", REPORTERS)
async def test_a_server_that_does_not_answer_takes_no_thread_that_others_need(name: str) -> None:
    """Merges and polls run in the threads that all share."""
    reporter, greeting = REPORTERS[name]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    async with serving(greeting) as (port, came, goes_on), asyncio.timeout(DEADLINE_S):
        report = asyncio.ensure_future(reporter(port).tell(OutboxMessage("", REPORT, key="k")))
        await came.wait()
        assert await asyncio.to_thread(lambda: not report.done())
        goes_on.set()
        with pytest.raises((ReporterAway, ReportPutOff)):
            await report


def test_invented_names_of_jobs_add_a_bounded_number_of_series_to_the_metrics() -> None:
    metrics = ProcessMetrics()
    for number in range(JOBS_MAX + 50):
        for tenant in ("example", "other") if number < 5 else ("example",):
            done = WorkDone(
                kind="build", tenant=tenant, job=f"invented-{number}", id="b", result="SUCCESS", start_ms=0, end_ms=1
            )
            metrics.done(done)
    metrics.done(WorkDone(kind="build", tenant="other", job="unit", id="b", result="SUCCESS", start_ms=0, end_ms=1))
    counts = re.findall(
        r'^headgate_build_seconds_count\{job="([^"]+)".*tenant="(\w+)"\} (\S+)$', metrics.text().decode(), re.M
    )
    of_example = {job: float(count) for job, tenant, count in counts if tenant == "example"}
    assert len(of_example) == JOBS_MAX + 1 and of_example[OTHERS] == 50
    assert ("unit", "other", "1.0") in counts, "no tenant takes the place of another one"
