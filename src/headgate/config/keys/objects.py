"""Declare the keys of the stanzas other than job."""

from __future__ import annotations

from headgate.config.files.check import (
    Keys,
    StanzaKey,
    anything,
    count,
    count_or_null,
    either,
    flag,
    inner,
    listed,
    many,
    mapping,
    name,
    null,
    one_of,
    regex,
    text,
    text_or_null,
)

NO_TOKENS = "Headgate issues no tokens of OpenID Connect; a job with such a secret ends with an error"
NODEPOOL_KINDS = ("image", "flavor", "label", "section", "provider")
"""Kinds that describe where nodes come from; loaded only with include-provider-config."""
CONFIG_KINDS = ("pipeline", "job", "project", "project-template", "nodeset", "secret", "semaphore", "queue")
KINDS = (*CONFIG_KINDS, *NODEPOOL_KINDS, "pragma")
"""All kinds that a file may define, in the order in which a layout is assembled, with pragma last."""

MERGE_MODES = (
    "merge",
    "merge-resolve",
    "merge-recursive",
    "merge-ort",
    "cherry-pick",
    "squash-merge",
    "rebase",
    "rebase-first-parent",
)

PROJECT: Keys = {
    "name": StanzaKey(name, "the project the file is in", "a name, or a pattern that begins with ^"),
    "description": StanzaKey(text),
    "branches": StanzaKey(many(regex), "see below"),
    "templates": StanzaKey(many(text), "none"),
    "default-branch": StanzaKey(
        text, "the repository's", idle="where a branch is missing, builds have master, main or the first"
    ),
    "merge-mode": StanzaKey(one_of(*MERGE_MODES), "the connection's"),
    "queue": StanzaKey(name, "a queue of its own"),
    "vars": StanzaKey(mapping, "{}", "beneath the variables of jobs"),
}
TEMPLATE: Keys = {
    "name": StanzaKey(name, required=True),
    "description": StanzaKey(text),
    "queue": StanzaKey(name),
    "vars": StanzaKey(mapping, "{}", "beneath the variables of projects"),
}
"""Every other key of a project or a template names a pipeline."""

PARAMETER: Keys = {
    "name": StanzaKey(name, required=True),
    "type": StanzaKey(one_of("string", "selection", "multiple-selection", "bool"), "string"),
    "description": StanzaKey(text, note="told by the API's freeze-pipeline"),
    "values": StanzaKey(many(anything)),
    "default": StanzaKey(anything),
    "required": StanzaKey(flag, "false"),
}
PROJECT_PIPELINE: Keys = {
    "jobs": StanzaKey(listed(either(text, mapping)), "none", "names, or one name with attributes of a job"),
    "debug": StanzaKey(flag, "false", idle="debugging lines are not reported"),
    "fail-fast": StanzaKey(flag, "false", "the first that says"),
    "parameters": StanzaKey(many(inner(PARAMETER, "parameter")), "none", "the pipeline must say allow-parameters"),
}

CIRCLES = "changes that need each other are tested, and land, as one"
QUEUE: Keys = {
    "name": StanzaKey(name, required=True),
    "type": StanzaKey(one_of("all-branches", "per-branch", "branch-assigned"), "all-branches"),
    "per-branch": StanzaKey(flag, "false", "old; not together with type"),
    "allow-circular-dependencies": StanzaKey(flag, "false", CIRCLES),
    "dependencies-by-topic": StanzaKey(
        flag,
        "false",
        "changes of one topic need each other, where the forge has topics; needs allow-circular-dependencies",
    ),
}
SEMAPHORE: Keys = {"name": StanzaKey(name, required=True), "max": StanzaKey(count(0), "1")}

NODE: Keys = {"name": StanzaKey(many(name), required=True), "label": StanzaKey(name, required=True)}
GROUP: Keys = {"name": StanzaKey(name, required=True), "nodes": StanzaKey(many(name), required=True)}
_NODESET: Keys = {
    "nodes": StanzaKey(many(inner(NODE, "node")), "none"),
    "groups": StanzaKey(many(inner(GROUP, "group")), "none"),
    "alternatives": StanzaKey(many(either(text, mapping)), "none", "names or nodesets, tried in order; then no nodes"),
}
NODESET: Keys = {"name": StanzaKey(name, required=True), **_NODESET}
INLINE_NODESET: Keys = {"name": StanzaKey(name), **_NODESET}

OIDC: Keys = {
    "algorithm": StanzaKey(text, idle=NO_TOKENS),
    "ttl": StanzaKey(count(1), "the tenant's default-oidc-ttl"),
    "iss": StanzaKey(text),
    "claims": StanzaKey(mapping, idle=NO_TOKENS),
}
SECRET: Keys = {
    "name": StanzaKey(name, required=True),
    "data": StanzaKey(mapping, note="or oidc; values may be !encrypted/pkcs1-oaep"),
    "oidc": StanzaKey(either(null, inner(OIDC, "oidc secret")), note="null, or how its token is made"),
}
PRAGMA: Keys = {
    "implied-branch-matchers": StanzaKey(flag, "as the tenant file says"),
    "implied-branches": StanzaKey(many(regex), "the branch of the file"),
}

IMAGE: Keys = {
    "name": StanzaKey(name, required=True),
    "type": StanzaKey(one_of("zuul", "cloud"), required=True),
    "description": StanzaKey(text),
    "retain-count": StanzaKey(count(0)),
    "max-retain-count": StanzaKey(count(0)),
    "rebuild-age": StanzaKey(
        count(60), "none", "of one that jobs build: seconds after which another build is asked for"
    ),
}
FLAVOR: Keys = {"name": StanzaKey(name, required=True), "description": StanzaKey(text)}
LABEL: Keys = {
    "name": StanzaKey(name, required=True),
    "image": StanzaKey(text),
    "flavor": StanzaKey(text),
    "description": StanzaKey(text),
    "min-ready": StanzaKey(count(0), "0"),
    "max-ready-age": StanzaKey(count(0)),
    "max-age": StanzaKey(count(0)),
    "min-retention-time": StanzaKey(count(0)),
    "max-nodes": StanzaKey(count(0)),
    "aliases": StanzaKey(many(text)),
}
_PARTS = many(either(mapping, text))
SECTION: Keys = {
    "name": StanzaKey(name, required=True),
    "parent": StanzaKey(text_or_null),
    "abstract": StanzaKey(flag, "false"),
    "connection": StanzaKey(text),
    "description": StanzaKey(text),
    "images": StanzaKey(_PARTS),
    "flavors": StanzaKey(_PARTS),
    "labels": StanzaKey(_PARTS),
}
PROVIDER: Keys = {
    "name": StanzaKey(name, required=True),
    "section": StanzaKey(text, required=True),
    "connection": StanzaKey(text),
    "description": StanzaKey(text),
    "images": StanzaKey(_PARTS),
    "labels": StanzaKey(_PARTS),
}

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
