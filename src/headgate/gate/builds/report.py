"""Determine the result of a buildset, the text of its report, and comments on files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from urllib.parse import quote, urlencode

import msgspec

from headgate.base.texts import line, visible
from headgate.config.forges.git import person
from headgate.config.model import FrozenJob
from headgate.gate.rules.refs import is_known
from headgate.gate.state.change import Change, ChangeState
from headgate.gate.state.model import FINAL_GOOD, Build, BuildSet, Item, Phase
from headgate.gate.state.returns import FileComment, ReturnedArtifact
from headgate.gate.state.world import World

COMMENTS_MAX = 100
"""Limit on the comments in one report, and on those of one build in the history."""
COMMENTS_MAX_BYTES = 100_000
"""Size limit of the comments of one buildset in the history."""
SIZE_MAX = 50_000
"""Limit on the characters of a report, without the footer."""
ARTIFACTS_MAX_BYTES = 200_000
"""Size limit of the artifacts of one buildset in the history."""
REPORTER_OF = {
    "SUCCESS": "success",
    "FAILURE": "failure",
    "MERGE_FAILURE": "failure",
    "MERGE_CONFLICT": "merge-conflict",
    "CONFIG_ERROR": "config-error",
    "NO_JOBS": "no-jobs",
    "DEQUEUED": "dequeue",
}
"""Buildset result -> the pipeline's list of reporters."""
CARRIED = "carried over: it began before the latest reset, and its inputs are still the same"
"""Explanation of a build that survived a reset."""


def credit(change_state: ChangeState) -> str:
    """Return a line with the people who proposed and who approved this patchset; empty: no names are known."""
    found = approvers(change_state)
    parts = [f"proposed by {', '.join(change_state.proposers)}"] if change_state.proposers else []
    parts += [f"approved by {', '.join(found)}"] if found else []
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]}." if sentence else ""


def approvers(change_state: ChangeState) -> tuple[str, ...]:
    """Return the known names of the people who approved this patchset."""
    # An approval of an earlier patchset does not count.
    mine = {person(word.who): word.who for word in change_state.approvals if word.commit == change_state.change.commit}
    return tuple(sorted(mine.values()))


def report_lines(buildset: BuildSet, changes: Sequence[Change]) -> list[str]:
    """Return the comments on files as lines of the report, ordered by file and line, and the number of omitted ones."""
    found = [one for job in buildset.jobs if (build := buildset.builds.get(job.id)) for one in _comments(build)]
    # The files may be unknown, and then no comment may be left out.
    everything = any(change.files is None for change in changes)
    files = {file for change in changes for file in change.files or ()}
    touched, elsewhere = list[tuple[str, FileComment, str]](), list[str]()
    for one in found:
        if everything or one[0] in files:
            touched.append(one)
        else:
            elsewhere.append(one[2])
    shown = sorted(touched, key=lambda one: (one[0], one[1].line))[:COMMENTS_MAX]
    lines = [_line(path, comment, job) for path, comment, job in shown]
    if more := len(touched) - len(shown):
        lines.append(f"There are {more} more comments.")
    if elsewhere:
        jobs, where = ", ".join(dict.fromkeys(elsewhere)), "files that this change does not touch"
        lines.append(f"{len(elsewhere)} comments of {jobs} are omitted: they are on {where}.")
    return ["", *lines] if lines else []


def comments_of(buildset: BuildSet) -> dict[str, dict[str, tuple[FileComment, ...]]]:
    """Map build ids to files to comments, as many as fit into one record of the history."""
    left_bytes, found = COMMENTS_MAX_BYTES, dict[str, dict[str, tuple[FileComment, ...]]]()
    for build in buildset.builds.values():
        for path, comment, _ in islice(_comments(build), COMMENTS_MAX):
            # A limit per build would not limit the record, as an item may have any number of builds.
            left_bytes -= len(path) + len(msgspec.json.encode(comment))
            if left_bytes < 0:
                return found
            of = found.setdefault(build.id, {})
            of[path] = (*of.get(path, ()), comment)
    return found


def _comments(build: Build) -> Iterator[tuple[str, FileComment, str]]:
    for path, comments in (build.returned.file_comments or {}).items():
        yield from ((path, comment, build.job) for comment in comments)


def _line(path: str, comment: FileComment, job: str) -> str:
    """Format a comment like a compiler message. Further lines of a message are indented, so that none of them looks
    like a separate comment."""
    place = f"{path}:{comment.line}" if comment.line else path
    message = comment.message.replace("\n", "\n    ")
    return f"{place}: {comment.level}: {message} [{job}]" if comment.level else f"{place}: {message} [{job}]"


def result_of(item: Item) -> str:
    """Return the result of a complete item."""
    buildset = item.buildset
    if item.problem or buildset is None:
        return "FAILURE"
    if buildset.graph is not None and not buildset.graph.in_pipeline:
        return "NO_JOBS"
    if buildset.config_errors:
        return "CONFIG_ERROR"
    if buildset.merge is Phase.CONFLICT:
        return "MERGE_CONFLICT"
    if buildset.landing_error:
        return "MERGE_FAILURE"
    if not buildset.jobs:
        return "NO_JOBS"
    results = [b.result for b in buildset.builds.values() if b.voting]
    good = all(r in FINAL_GOOD for r in results)
    # If every job was skipped, nothing shows that the change is good.
    ran = any(b.result == "SUCCESS" for b in buildset.builds.values())
    return "SUCCESS" if good and ran else "FAILURE"


def kind_of(result: str, world: World) -> str:
    """Return which of the pipeline's lists of reporters applies to `result`."""
    return "disabled" if world.disabled else REPORTER_OF[result]


def reporters(result: str, world: World) -> tuple[str, ...]:
    """Return the names of the connections to which `result` is reported."""
    kind = kind_of(result, world)
    connections = world.pipeline.reporters.get(kind, ())
    if connections:
        return connections
    # The proposer then reads it where a result would have been reported.
    if kind == "no-jobs" and not world.pipeline.lands:
        return world.pipeline.reporters.get("success", ())
    return world.pipeline.reporters.get("failure", ()) if kind in ("merge-conflict", "config-error", "no-jobs") else ()


def text(item: Item, result: str, world: World, intro: str = "") -> str:
    """Return the text of the report: an introduction, the address of the page, and one line for each job.  `intro`
    replaces the introduction that follows from the result."""
    buildset = item.buildset
    lines = [intro or _intro(item, result, world), *_alarm(item, result)]
    if world.root_url and buildset is not None:
        lines += [""] if "\n" in lines[0] else []
        lines.append(f"{world.root_url}/t/{world.tenant}/buildset/{buildset.id}")
    for change in item.changes:
        change_state = world.change_states.get(change.key)
        # After another push, the known people are those of the new patchset.
        if change_state is not None and change_state.change.commit == change.commit and (who := credit(change_state)):
            lines += ["", f"{change.key}: {who}" if item.others else who]
    if buildset is not None:
        jobs = [_job_line(job, build, item, world) for job in buildset.jobs if (build := buildset.builds.get(job.id))]
        if jobs:
            lines += ["", *jobs]
        lines += [line for change in item.changes for line in untested(change, world)]
        lines += [warning for warning in buildset.warnings]
        lines += [
            f"{job.name} warns: {_hanging(text)}"
            for job in buildset.jobs
            for text in _warnings(buildset.builds.get(job.id))
        ]
        lines += report_lines(buildset, item.changes)
    footer = f"\n\n{world.pipeline.footer_message}" if world.pipeline.footer_message else ""
    # Jobs wrote parts of it: their control characters must not reach terminals, nor hide or reorder text.
    body = visible("\n".join(lines))
    if len(body) > SIZE_MAX:
        body = f"{body[:SIZE_MAX]}…\nThe rest of this report is left out."
    # The footer comes from the configuration, and is never cut off.
    return body + footer


def _alarm(item: Item, result: str) -> list[str]:
    """Return an alarm if changes that depend on each other have landed only in part; otherwise no lines."""
    if not item.landed or result == "SUCCESS":
        return []
    landed = [f"- {one.change.key} has landed as {one.commit}." for one in item.landed]
    missing = [f"- {change.key} has not landed." for change in item.left]
    do = "Fix the missing part and get it approved again, or revert the landed part; Headgate does not revert it."
    return ["", "ALARM: changes that depend on each other have landed only in part.", *landed, *missing, do]


def untested(change: Change, world: World) -> list[str]:
    """Return a line about each dependency of a change that nobody has proposed or that no connection knows."""
    names = () if world.pipeline.ignore_dependencies else change.needs
    absent = [key for key in names if key not in world.change_states]
    ignored = () if world.pipeline.ignore_dependencies else change.ignored
    return [
        *(f"Depends-On: {key}: there is no such change; it is ignored until it is proposed." for key in absent),
        *(f"Depends-On: {text}: no connection has a change of this name; it is ignored." for text in ignored),
    ]


def _hanging(text: str) -> str:
    """Return a job's text with every line but the first indented, so that none of them looks like a line of
    Headgate's."""
    return text.replace("\n", "\n    ")


def _intro(item: Item, result: str, world: World) -> str:
    pipeline, buildset = world.pipeline, item.buildset
    if item.problem and result == "DEQUEUED":
        return f"{pipeline.dequeue_message}\n\n{item.problem[:1].upper()}{item.problem[1:]}."
    if item.problem:
        why = "This change cannot land" if world.dependent else "This change is no longer tested"
        return f"{pipeline.failure_message}\n\n{why}: {item.problem}."
    if result == "MERGE_CONFLICT" and buildset is not None and not item.change.is_change:
        return f"{pipeline.failure_message}\n\n{buildset.error}"
    if result == "MERGE_CONFLICT" and buildset is not None:
        return f"{pipeline.merge_conflict_message}\n\n{buildset.error}".rstrip()
    if result == "CONFIG_ERROR" and buildset is not None:
        errors = "\n\n".join(error.render() for error in buildset.config_errors)
        return f"{pipeline.failure_message}\n\nThe configuration has errors, so no jobs ran.\n\n{errors}"
    if result == "MERGE_FAILURE" and buildset is not None:
        why = f"All jobs passed but the change could not be landed: {buildset.landing_error}"
        return f"{pipeline.failure_message}\n\n{why}"
    if result == "NO_JOBS":
        why = f"No jobs of pipeline {pipeline.name} apply here"
        why += ", so nothing shows that it may land." if pipeline.lands else "."
        return filled(pipeline.no_jobs_message, item, world) or why
    if result == "DEQUEUED":
        return pipeline.dequeue_message
    return pipeline.success_message if result == "SUCCESS" else pipeline.failure_message


def _job_line(job: FrozenJob, build: Build, item: Item, world: World) -> str:
    word = build.result or "unfinished"
    if build.result == "SUCCESS" and job.success_message:
        word = line(job.success_message)
    elif build.result is not None and build.result not in FINAL_GOOD and job.failure_message:
        word = line(job.failure_message)
    url = build_url(build, world)
    error = f" {_hanging(words)}" if (words := error_of(build)) else ""
    error = f" ({error[1:]})" if error and build.result == "SUCCESS" else error
    took = f" in {duration(build.end_ms - build.start_ms)}" if build.start_ms and build.end_ms else ""
    voting = "" if job.voting else " (non-voting)"
    of = f" of {' and '.join(change.key for change in item.subjects(job))}" if item.others else ""
    excerpt = f"\n    {_hanging(build.excerpt)}" if build.excerpt else ""
    return f"- {job.name}{of}{' ' + url if url else ''} : {word}{error}{took}{voting}{excerpt}"


def error_of(build: Build) -> str:
    """Return the message about a build that people read besides its result."""
    return "; ".join(filter(None, (build.error, CARRIED if build.origin else "")))


def _warnings(build: Build | None) -> list[str]:
    """Return the warnings that the build returned as `zuul.warnings`."""
    return list(build.returned.warnings or ()) if build else []


def build_url(build: Build, world: World) -> str:
    if build.log_url:
        return build.log_url
    ran = build.start_ms > 0
    # A build that never began has no page.
    return f"{world.root_url}/t/{world.tenant}/build/{build.id}" if world.root_url and ran else ""


def artifacts(build: Build) -> list[dict[str, object]]:
    """Return the artifacts that the build returned as `zuul.artifacts`."""
    return [
        {"name": one.name, "url": one.url, **({"metadata": one.metadata} if one.metadata is not None else {})}
        for one in build.returned.artifacts or ()
    ]


def artifacts_of(buildset: BuildSet | None) -> dict[str, tuple[ReturnedArtifact, ...]]:
    """Map build ids to artifacts, of as many builds as fit into one record of the history."""
    left_bytes, by_build = ARTIFACTS_MAX_BYTES, dict[str, tuple[ReturnedArtifact, ...]]()
    for build in buildset.builds.values() if buildset else ():
        found = build.returned.artifacts or ()
        left_bytes -= len(msgspec.json.encode(found)) if found else 0
        if found and left_bytes >= 0:
            by_build[build.id] = found
    return by_build


def duration(length_ms: int) -> str:
    """Return a duration in milliseconds as `1h 02m 03s`, without the hours if there are none."""
    seconds = max(0, length_ms) // 1000
    hours, minutes, seconds = seconds // 3600, seconds // 60 % 60, seconds % 60
    return f"{hours}h {minutes:02d}m {seconds:02d}s" if hours else f"{minutes}m {seconds:02d}s"


def filled(message: str, item: Item, world: World) -> str:
    """Return a message of the pipeline with `{pipeline.name}` and `{item_url}` replaced."""
    return message.replace("{pipeline.name}", world.pipeline.name).replace("{item_url}", page_url(item.change, world))


def page_url(change: Change, world: World) -> str:
    """Return the address of a change's page, or of the status page for an update of a ref; empty without pages."""
    if not world.root_url:
        return ""
    place = f"{world.root_url}/t/{quote(world.tenant, safe='')}"
    if not change.is_change:
        return f"{place}/status"
    return f"{place}/change?{urlencode({'project': change.project, 'change': f'{change.branch}/{change.name}'})}"


def refusal(change: Change, problems: tuple[str, ...], world: World) -> str:
    """Return the text about a change that was not enqueued."""
    reasons = "\n".join(f"- {line(problem)}" for problem in problems)
    page = f"\n\n{url}" if (url := page_url(change, world)) else ""
    return f"{change.id} was not enqueued in {world.pipeline.name}:\n\n{reasons}{page}"


def failing_reasons(item: Item) -> list[str]:
    """Return the reasons why an item fails, for the status page."""
    reasons = [item.problem] if item.problem else []
    buildset: BuildSet | None = item.buildset
    if buildset is None:
        return reasons
    if buildset.merge is Phase.CONFLICT:
        reasons.append("it has a merge conflict")
    if buildset.config_errors:
        reasons.append("it has an invalid configuration")
    if buildset.landing_error:
        reasons.append("it could not be landed")
    if buildset.job_failed:
        reasons.append("at least one job failed")
    return reasons


def knows(item: Item, world: World) -> bool:
    """Return whether a report on one of the changes has announced, or will announce, that it was enqueued or that its
    jobs started."""
    connections = world.pipeline.reporters.get("start", ())
    return any((item.started and one.connection in connections) or announces(one, world) for one in item.changes)


def announces(change: Change, world: World) -> bool:
    """Return whether a report on the change has announced, or will announce, that it was enqueued."""
    connections = world.pipeline.reporters.get("enqueue", ())
    return change.connection in connections and not world.disabled and is_known(change, world)
