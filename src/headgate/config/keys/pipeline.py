"""The 38 keys of a pipeline (config-language §4), and one of ours."""

from __future__ import annotations

from headgate.config.reading.check import (
    Key,
    Keys,
    count,
    count_or_null,
    flag,
    many,
    mapping,
    name,
    one_of,
    text,
)

REPORTERS = (
    "success",
    "failure",
    "merge-conflict",
    "config-error",
    "start",
    "enqueue",
    "no-jobs",
    "disabled",
    "dequeue",
)
"""What happened -> which connections are told, and how."""
_GROWTH = one_of("linear", "exponential")
_BY_CONNECTION = "by connection, in the words of its driver"

PIPELINE: Keys = {
    "name": Key(name, required=True),
    "manager": Key(one_of("independent", "dependent", "serial", "supercedent"), required=True),
    "description": Key(text),
    "trigger": Key(mapping, "{}", _BY_CONNECTION),
    "require": Key(mapping, "{}", _BY_CONNECTION),
    "reject": Key(mapping, "{}", _BY_CONNECTION),
    **{
        kind: Key(mapping, "as failure" if kind in ("merge-conflict", "config-error") else "{}", _BY_CONNECTION)
        for kind in REPORTERS
    },
    "success-message": Key(text, "Build succeeded."),
    "failure-message": Key(text, "Build failed."),
    "start-message": Key(text, "Starting {pipeline.name} jobs."),
    "enqueue-message": Key(text),
    "no-jobs-message": Key(text),
    "merge-conflict-message": Key(text, "Merge Failed. …"),
    "dequeue-message": Key(text, "Build canceled."),
    "footer-message": Key(text),
    "precedence": Key(one_of("high", "normal", "low"), "normal"),
    "supercedes": Key(many(text), "none"),
    "post-review": Key(flag, "false"),
    "allow-other-connections": Key(flag, "true"),
    "allow-parameters": Key(flag, "false"),
    "dequeue-on-new-patchset": Key(flag, "true"),
    "ignore-dependencies": Key(flag, "false", "for independent pipelines"),
    "disable-after-consecutive-failures": Key(count(1), "never"),
    "rerun-only-failed": Key(flag, "false", "Headgate's own"),
    "reuse": Key(flag, "false", "of all its jobs that do not say otherwise; Headgate's own"),
    "window": Key(count(0), "20", "0: all"),
    "window-floor": Key(count(1), "3"),
    "window-ceiling": Key(count_or_null(1), "none"),
    "window-increase-type": Key(_GROWTH, "linear"),
    "window-increase-factor": Key(count(1), "1"),
    "window-decrease-type": Key(_GROWTH, "exponential"),
    "window-decrease-factor": Key(count(1), "2"),
}
