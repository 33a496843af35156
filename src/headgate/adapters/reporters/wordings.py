"""Format reports as readable text: as a title of one line, and as a summary of a few lines."""

from __future__ import annotations

import re
from urllib.parse import quote

from headgate.base.texts import line, visible
from headgate.map.outbox import QueueReport, ReportedBuild

TITLE_MAX = 200
"""Limit on the characters of a title."""
SHOWN_MAX = 10
"""Limit on the builds that a summary names."""
_NAME = re.compile(r"\{([a-z_.]+)\}")
WORDS = {
    "success": "passed",
    "failure": "failed",
    "merge-conflict": "does not merge",
    "config-error": "has errors in its configuration",
    "start": "is being tested",
    "enqueue": "is enqueued",
    "no-jobs": "has no jobs",
    "disabled": "ended in a disabled pipeline",
    "dequeue": "left the queue",
    "refused": "was not enqueued",
    "settled": "is no longer refused",
    "waits": "waits",
    "alarm": "needs your attention",
    "landed": "has landed",
}
"""Kind of report -> words for the outcome of the change."""


def title(report: QueueReport, pattern: str = "") -> str:
    """Return a title of one line. `pattern`: title that the pipeline sets, with names of members in braces."""
    text = _NAME.sub(lambda found: _named(found, report), pattern) if pattern else _usual(report)
    return line(text.replace("\r", " ").replace("\n", " ").strip(), TITLE_MAX)


def _usual(report: QueueReport) -> str:
    target = report.change if not report.ref else report.ref
    word = WORDS.get(report.report, report.report)
    subject = f": {report.subject}" if report.subject else ""
    return f"[{report.pipeline}] {report.project.partition('/')[2] or report.project} {target} {word}{subject}"


def _named(found: re.Match[str], report: QueueReport) -> str:
    """Return the value of a name; unknown names stay unchanged."""
    values = {
        "change": report.change,
        "change.subject": report.subject,
        "subject": report.subject,
        "pipeline": report.pipeline,
        "pipeline.name": report.pipeline,
        "project": report.project,
        "project.name": report.project,
        "branch": report.branch,
        "commit": report.commit,
        "ref": report.ref,
        "tenant": report.tenant,
        "result": report.result,
        "report": report.report,
    }
    return values.get(found[1], found[0])


def page(report: QueueReport) -> str:
    """Return the URL of the buildset's page; without a page, that of the change."""
    if not (report.root and report.buildset):
        return report.url
    # With `safe=''`, a slash in a name cannot divide the path.
    return f"{report.root}/t/{quote(report.tenant, safe='')}/buildset/{report.buildset}"


def summary(report: QueueReport) -> str:
    """Return a few lines: the failed jobs, or the reason if there are none, and the URL of the page."""
    bad = [build for build in report.builds if build.result not in ("", "SUCCESS", "SKIPPED") and build.voting]
    lines = [_of_build(build) for build in bad[:SHOWN_MAX]]
    if len(bad) > SHOWN_MAX:
        lines.append(f"and {len(bad) - SHOWN_MAX} more")
    # A report without failed builds, such as a merge conflict, has its reason in the message.
    if not bad and report.report not in ("success", "start", "enqueue"):
        lines += [part for part in report.message.splitlines() if part.strip()][:3]
    if address := page(report):
        lines.append(address)
    return visible("\n".join(lines))


def _of_build(build: ReportedBuild) -> str:
    return line(f"- {build.job}: {build.result}{f' ({build.error})' if build.error else ''}", TITLE_MAX)
