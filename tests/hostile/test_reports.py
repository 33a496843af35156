"""Test what proposals write where other programs read it: in chats, and in metrics."""

from __future__ import annotations

import re

import pytest

from headgate.adapters.metrics.figures import JOBS_MAX, OTHERS, ProcessMetrics
from headgate.adapters.reporters.chat import ChatReporter
from headgate.map.outbox import OutboxMessage, QueueReport, ReportedBuild
from headgate.ports.observer import WorkDone

MENTIONS = ("@channel", "@everyone", "@here", "<!channel>", "<!here|here>", "<@U123>", "<@&1>", "<users/all>", "@room")


@pytest.mark.parametrize("mention", MENTIONS)
def test_names_in_a_proposal_mention_nobody_in_a_chat(mention: str) -> None:
    report = QueueReport(
        v=1, kind="report", id="r", at_ms=1, tenant="t", pipeline="gate", project="h/p", branch="b", commit="c",
        change=f"{mention},abc", item="i", buildset="s",
        result="FAILURE", report="failure", subject=f"Call {mention}", message=f"See {mention}\n",
        builds=(ReportedBuild(job=f"job {mention}", build="b", attempt=1, result="FAILURE", error=f"{mention}"),),
    )  # fmt: skip
    for options in ({}, {"title": "{subject} {change}"}):
        heading, text, _ = ChatReporter.message(OutboxMessage("", report, options=options, key="k"))
        assert mention not in heading + text
        assert mention in re.sub("\u200b", "", heading)


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
