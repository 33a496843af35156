"""The keys of the kinds of stanzas that are neither job nor pipeline (config-language §3, §7, §8)."""

from __future__ import annotations

from headgate.config.reading.check import (
    Key,
    Keys,
    anything,
    count,
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
"""What describes where nodes come from; loaded only with include-provider-config."""
CONFIG_KINDS = ("pipeline", "job", "project", "project-template", "nodeset", "secret", "semaphore", "queue")
KINDS = (*CONFIG_KINDS, *NODEPOOL_KINDS, "pragma")
"""Everything a file may define, in the order in which a layout is put together, but for pragma."""

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
    "name": Key(name, "the project the file is in", "a name, or a pattern that begins with ^"),
    "description": Key(text),
    "branches": Key(many(regex), "see below"),
    "templates": Key(many(text), "none"),
    "default-branch": Key(
        text, "the repository's", idle="where a branch is missing, builds have master, main or the first"
    ),
    "merge-mode": Key(one_of(*MERGE_MODES), "the connection's"),
    "queue": Key(name, "a queue of its own"),
    "vars": Key(mapping, "{}", "beneath the variables of jobs"),
}
TEMPLATE: Keys = {
    "name": Key(name, required=True),
    "description": Key(text),
    "queue": Key(name),
    "vars": Key(mapping, "{}", "beneath the variables of projects"),
}
"""Every other key of a project or a template names a pipeline."""

PARAMETER: Keys = {
    "name": Key(name, required=True),
    "type": Key(one_of("string", "selection", "multiple-selection", "bool"), "string"),
    "description": Key(text, note="told by the API's freeze-pipeline"),
    "values": Key(many(anything)),
    "default": Key(anything),
    "required": Key(flag, "false"),
}
PROJECT_PIPELINE: Keys = {
    "jobs": Key(listed(either(text, mapping)), "none", "names, or one name with attributes of a job"),
    "debug": Key(flag, "false", idle="nobody is told the lines of debugging"),
    "fail-fast": Key(flag, "false", "the first that says"),
    "parameters": Key(many(inner(PARAMETER, "parameter")), "none", "the pipeline must say allow-parameters"),
}

CIRCLES = "changes that need each other are tested, and land, as one"
QUEUE: Keys = {
    "name": Key(name, required=True),
    "type": Key(one_of("all-branches", "per-branch", "branch-assigned"), "all-branches"),
    "per-branch": Key(flag, "false", "old; not together with type"),
    "allow-circular-dependencies": Key(flag, "false", CIRCLES),
    "dependencies-by-topic": Key(
        flag,
        "false",
        "changes of one topic need each other, where the forge has topics; needs allow-circular-dependencies",
    ),
}
SEMAPHORE: Keys = {"name": Key(name, required=True), "max": Key(count(0), "1")}

NODE: Keys = {"name": Key(many(name), required=True), "label": Key(name, required=True)}
GROUP: Keys = {"name": Key(name, required=True), "nodes": Key(many(name), required=True)}
_NODESET: Keys = {
    "nodes": Key(many(inner(NODE, "node")), "none"),
    "groups": Key(many(inner(GROUP, "group")), "none"),
    "alternatives": Key(many(either(text, mapping)), "none", "names or nodesets, tried in order; then no nodes"),
}
NODESET: Keys = {"name": Key(name, required=True), **_NODESET}
INLINE_NODESET: Keys = {"name": Key(name), **_NODESET}

OIDC: Keys = {
    "algorithm": Key(text, idle=NO_TOKENS),
    "ttl": Key(count(1), "the tenant's default-oidc-ttl"),
    "iss": Key(text),
    "claims": Key(mapping, idle=NO_TOKENS),
}
SECRET: Keys = {
    "name": Key(name, required=True),
    "data": Key(mapping, note="or oidc; values may be !encrypted/pkcs1-oaep"),
    "oidc": Key(either(null, inner(OIDC, "oidc secret")), note="null, or how its token is made"),
}
PRAGMA: Keys = {
    "implied-branch-matchers": Key(flag, "as the tenant file says"),
    "implied-branches": Key(many(regex), "the branch of the file"),
}

IMAGE: Keys = {
    "name": Key(name, required=True),
    "type": Key(one_of("zuul", "cloud"), required=True),
    "description": Key(text),
    "retain-count": Key(count(0)),
    "max-retain-count": Key(count(0)),
    "rebuild-age": Key(count(60), "none", "of one that jobs build: seconds after which another build is asked for"),
}
FLAVOR: Keys = {"name": Key(name, required=True), "description": Key(text)}
LABEL: Keys = {
    "name": Key(name, required=True),
    "image": Key(text),
    "flavor": Key(text),
    "description": Key(text),
    "min-ready": Key(count(0), "0"),
    "max-ready-age": Key(count(0)),
    "max-age": Key(count(0)),
    "min-retention-time": Key(count(0)),
    "max-nodes": Key(count(0)),
    "aliases": Key(many(text)),
}
_PARTS = many(either(mapping, text))
SECTION: Keys = {
    "name": Key(name, required=True),
    "parent": Key(text_or_null),
    "abstract": Key(flag, "false"),
    "connection": Key(text),
    "description": Key(text),
    "images": Key(_PARTS),
    "flavors": Key(_PARTS),
    "labels": Key(_PARTS),
}
PROVIDER: Keys = {
    "name": Key(name, required=True),
    "section": Key(text, required=True),
    "connection": Key(text),
    "description": Key(text),
    "images": Key(_PARTS),
    "labels": Key(_PARTS),
}
