"""Declare the keys of the stanzas other than job."""

from __future__ import annotations

from headgate.config.files import checks

NO_TOKENS = "Headgate issues no OpenID Connect tokens; a job with such a secret ends with an error"
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

PROJECT: checks.Keys = {
    "name": checks.StanzaKey(checks.name, "the project of the file", "a name, or a pattern that begins with ^"),
    "description": checks.StanzaKey(checks.text),
    "branches": checks.StanzaKey(checks.many(checks.regex), "see below"),
    "templates": checks.StanzaKey(checks.many(checks.text), "none"),
    "default-branch": checks.StanzaKey(
        checks.text,
        "the repository's",
        idle="where a project lacks the branch, builds use master, main or its first branch",
    ),
    "merge-mode": checks.StanzaKey(checks.one_of(*MERGE_MODES), "the connection's"),
    "queue": checks.StanzaKey(checks.name, "a queue of its own"),
    "vars": checks.StanzaKey(checks.mapping, "{}", "variables of jobs override these"),
}
TEMPLATE: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "description": checks.StanzaKey(checks.text),
    "queue": checks.StanzaKey(checks.name),
    "vars": checks.StanzaKey(checks.mapping, "{}", "variables of projects override these"),
}
"""Every other key of a project or a template names a pipeline."""

PARAMETER: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "type": checks.StanzaKey(checks.one_of("string", "selection", "multiple-selection", "bool"), "string"),
    "description": checks.StanzaKey(checks.text, note="shown by freeze-pipeline in the API"),
    "values": checks.StanzaKey(checks.many(checks.anything)),
    "default": checks.StanzaKey(checks.anything),
    "required": checks.StanzaKey(checks.flag, "false"),
}
PROJECT_PIPELINE: checks.Keys = {
    "jobs": checks.StanzaKey(
        checks.listed(checks.either(checks.text, checks.mapping)),
        "none",
        "names, or mappings of one name to attributes of a job",
    ),
    "debug": checks.StanzaKey(checks.flag, "false", idle="Headgate reports no debug lines"),
    "fail-fast": checks.StanzaKey(checks.flag, "false", "the first section that sets it wins"),
    "parameters": checks.StanzaKey(
        checks.many(checks.inner(PARAMETER, "parameter")), "none", "the pipeline must have allow-parameters: true"
    ),
}

CIRCLES = "changes that depend on each other are tested and merged as one"
QUEUE: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "type": checks.StanzaKey(checks.one_of("all-branches", "per-branch", "branch-assigned"), "all-branches"),
    "per-branch": checks.StanzaKey(checks.flag, "false", "deprecated; not together with type"),
    "allow-circular-dependencies": checks.StanzaKey(checks.flag, "false", CIRCLES),
    "dependencies-by-topic": checks.StanzaKey(
        checks.flag,
        "false",
        "changes with the same topic depend on each other, if the forge has topics; needs allow-circular-dependencies",
    ),
}
SEMAPHORE: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "max": checks.StanzaKey(checks.count(0), "1"),
}

NODE: checks.Keys = {
    "name": checks.StanzaKey(checks.many(checks.name), required=True),
    "label": checks.StanzaKey(checks.name, required=True),
}
GROUP: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "nodes": checks.StanzaKey(checks.many(checks.name), required=True),
}
_NODESET: checks.Keys = {
    "nodes": checks.StanzaKey(checks.many(checks.inner(NODE, "node")), "none"),
    "groups": checks.StanzaKey(checks.many(checks.inner(GROUP, "group")), "none"),
    "alternatives": checks.StanzaKey(
        checks.many(checks.either(checks.text, checks.mapping)),
        "none",
        "names or nodesets, tried in order; if none is available, no nodes",
    ),
}
NODESET: checks.Keys = {"name": checks.StanzaKey(checks.name, required=True), **_NODESET}
INLINE_NODESET: checks.Keys = {"name": checks.StanzaKey(checks.name), **_NODESET}

OIDC: checks.Keys = {
    "algorithm": checks.StanzaKey(checks.text, idle=NO_TOKENS),
    "ttl": checks.StanzaKey(checks.count(1), "the tenant's default-oidc-ttl"),
    "iss": checks.StanzaKey(checks.text),
    "claims": checks.StanzaKey(checks.mapping, idle=NO_TOKENS),
}
SECRET: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "data": checks.StanzaKey(checks.mapping, note="or oidc; values may be !encrypted/pkcs1-oaep"),
    "oidc": checks.StanzaKey(
        checks.either(checks.null, checks.inner(OIDC, "oidc secret")), note="null, or how the token is created"
    ),
}
PRAGMA: checks.Keys = {
    "implied-branch-matchers": checks.StanzaKey(checks.flag, "same as in the tenant file"),
    "implied-branches": checks.StanzaKey(checks.many(checks.regex), "the branch of the file"),
}

IMAGE: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "type": checks.StanzaKey(checks.one_of("zuul", "cloud"), required=True),
    "description": checks.StanzaKey(checks.text),
    "retain-count": checks.StanzaKey(checks.count(0)),
    "max-retain-count": checks.StanzaKey(checks.count(0)),
    "rebuild-age": checks.StanzaKey(
        checks.count(60), "none", "seconds after which an image that jobs build is built again"
    ),
}
FLAVOR: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "description": checks.StanzaKey(checks.text),
}
LABEL: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "image": checks.StanzaKey(checks.text),
    "flavor": checks.StanzaKey(checks.text),
    "description": checks.StanzaKey(checks.text),
    "min-ready": checks.StanzaKey(checks.count(0), "0"),
    "max-ready-age": checks.StanzaKey(checks.count(0)),
    "max-age": checks.StanzaKey(checks.count(0)),
    "min-retention-time": checks.StanzaKey(checks.count(0)),
    "max-nodes": checks.StanzaKey(checks.count(0)),
    "aliases": checks.StanzaKey(checks.many(checks.text)),
}
_PARTS = checks.many(checks.either(checks.mapping, checks.text))
SECTION: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "parent": checks.StanzaKey(checks.text_or_null),
    "abstract": checks.StanzaKey(checks.flag, "false"),
    "connection": checks.StanzaKey(checks.text),
    "description": checks.StanzaKey(checks.text),
    "images": checks.StanzaKey(_PARTS),
    "flavors": checks.StanzaKey(_PARTS),
    "labels": checks.StanzaKey(_PARTS),
}
# As in Zuul, flavors are attached in sections only.
PROVIDER: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "section": checks.StanzaKey(checks.text, required=True),
    "connection": checks.StanzaKey(checks.text),
    "description": checks.StanzaKey(checks.text),
    "images": checks.StanzaKey(_PARTS),
    "labels": checks.StanzaKey(_PARTS),
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
_GROWTH = checks.one_of("linear", "exponential")
_BY_CONNECTION = "connection -> keys of its driver"

PIPELINE: checks.Keys = {
    "name": checks.StanzaKey(checks.name, required=True),
    "manager": checks.StanzaKey(checks.one_of("independent", "dependent", "serial", "supercedent"), required=True),
    "description": checks.StanzaKey(checks.text),
    "trigger": checks.StanzaKey(checks.mapping, "{}", _BY_CONNECTION),
    "require": checks.StanzaKey(checks.mapping, "{}", _BY_CONNECTION),
    "reject": checks.StanzaKey(checks.mapping, "{}", _BY_CONNECTION),
    **{
        kind: checks.StanzaKey(
            checks.mapping, "same as failure" if kind in ("merge-conflict", "config-error") else "{}", _BY_CONNECTION
        )
        for kind in REPORTERS
    },
    "success-message": checks.StanzaKey(checks.text, "Build succeeded."),
    "failure-message": checks.StanzaKey(checks.text, "Build failed."),
    "start-message": checks.StanzaKey(checks.text, "Starting {pipeline.name} jobs."),
    "enqueue-message": checks.StanzaKey(checks.text),
    "no-jobs-message": checks.StanzaKey(checks.text),
    "merge-conflict-message": checks.StanzaKey(checks.text, "Merge Failed. …"),
    "dequeue-message": checks.StanzaKey(checks.text, "Build canceled."),
    "footer-message": checks.StanzaKey(checks.text),
    "precedence": checks.StanzaKey(checks.one_of("high", "normal", "low"), "normal"),
    "supercedes": checks.StanzaKey(checks.many(checks.text), "none"),
    "post-review": checks.StanzaKey(checks.flag, "false"),
    "allow-other-connections": checks.StanzaKey(checks.flag, "true"),
    "allow-parameters": checks.StanzaKey(checks.flag, "false"),
    "dequeue-on-new-patchset": checks.StanzaKey(checks.flag, "true"),
    "ignore-dependencies": checks.StanzaKey(checks.flag, "false", "only for independent pipelines"),
    "disable-after-consecutive-failures": checks.StanzaKey(checks.count(1), "never"),
    "rerun-only-failed": checks.StanzaKey(checks.flag, "false", "not in Zuul"),
    "reuse": checks.StanzaKey(checks.flag, "false", "default for its jobs; not in Zuul"),
    "window": checks.StanzaKey(checks.count(0), "20", "0: no limit"),
    "window-floor": checks.StanzaKey(checks.count(1), "3"),
    "window-ceiling": checks.StanzaKey(checks.count_or_null(1), "none"),
    "window-increase-type": checks.StanzaKey(_GROWTH, "linear"),
    "window-increase-factor": checks.StanzaKey(checks.count(1), "1"),
    "window-decrease-type": checks.StanzaKey(_GROWTH, "exponential"),
    "window-decrease-factor": checks.StanzaKey(checks.count(1), "2"),
}
