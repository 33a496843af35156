"""Declare the keys of a pipeline."""

from __future__ import annotations

from headgate.config.files.check import Keys, StanzaKey, count, count_or_null, flag, many, mapping, name, one_of, text

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
"""Keys of a pipeline that list the reporters for one outcome."""
_GROWTH = one_of("linear", "exponential")
_BY_CONNECTION = "by connection, in the words of its driver"

PIPELINE: Keys = {
    "name": StanzaKey(name, required=True),
    "manager": StanzaKey(one_of("independent", "dependent", "serial", "supercedent"), required=True),
    "description": StanzaKey(text),
    "trigger": StanzaKey(mapping, "{}", _BY_CONNECTION),
    "require": StanzaKey(mapping, "{}", _BY_CONNECTION),
    "reject": StanzaKey(mapping, "{}", _BY_CONNECTION),
    **{
        kind: StanzaKey(mapping, "as failure" if kind in ("merge-conflict", "config-error") else "{}", _BY_CONNECTION)
        for kind in REPORTERS
    },
    "success-message": StanzaKey(text, "Build succeeded."),
    "failure-message": StanzaKey(text, "Build failed."),
    "start-message": StanzaKey(text, "Starting {pipeline.name} jobs."),
    "enqueue-message": StanzaKey(text),
    "no-jobs-message": StanzaKey(text),
    "merge-conflict-message": StanzaKey(text, "Merge Failed. …"),
    "dequeue-message": StanzaKey(text, "Build canceled."),
    "footer-message": StanzaKey(text),
    "precedence": StanzaKey(one_of("high", "normal", "low"), "normal"),
    "supercedes": StanzaKey(many(text), "none"),
    "post-review": StanzaKey(flag, "false"),
    "allow-other-connections": StanzaKey(flag, "true"),
    "allow-parameters": StanzaKey(flag, "false"),
    "dequeue-on-new-patchset": StanzaKey(flag, "true"),
    "ignore-dependencies": StanzaKey(flag, "false", "for independent pipelines"),
    "disable-after-consecutive-failures": StanzaKey(count(1), "never"),
    "rerun-only-failed": StanzaKey(flag, "false", "Headgate's own"),
    "reuse": StanzaKey(flag, "false", "of all its jobs that do not say otherwise; Headgate's own"),
    "window": StanzaKey(count(0), "20", "0: all"),
    "window-floor": StanzaKey(count(1), "3"),
    "window-ceiling": StanzaKey(count_or_null(1), "none"),
    "window-increase-type": StanzaKey(_GROWTH, "linear"),
    "window-increase-factor": StanzaKey(count(1), "1"),
    "window-decrease-type": StanzaKey(_GROWTH, "exponential"),
    "window-decrease-factor": StanzaKey(count(1), "2"),
}
