"""Generate the reference page of the language from the declarations that the parser uses."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.config.drivers import DRIVERS
from headgate.config.files.checks import Keys, StanzaKey
from headgate.config.files.source import CHECKED, ERRORS
from headgate.config.keys import objects, tenantfile
from headgate.config.keys.job import JOB
from headgate.config.keys.nodes import ANY_NODES, NODE_DRIVERS

HEAD = """# The configuration language

This page describes Zuul's configuration language as Headgate implements it. Its tables are generated from the parser's
own declarations. `headgate schema` prints these as JSON Schema, for editors.
"""

FILES = """## Files

The configuration of a project is in one of four roots: `zuul.yaml`, `zuul.d/`, `.zuul.yaml`, `.zuul.d/`. Headgate reads
the first root that exists, and warns about others. In a directory, it reads every `*.yaml` at any depth, in the order
of their paths; a file `.zuul.ignore` excludes its directory and everything below it. It also reads the
`extra-config-paths` of the tenant file.

For a config-project, Headgate reads one branch, `load-branch`. For other projects, it reads all branches that the
tenant file includes: the default branch first, then the others by name. The first definition of a name takes
precedence: config-projects come before other projects, and within each group, the order of the tenant file applies.

A file is a list of stanzas, each a mapping of its kind to a mapping. A file that is not a list is ignored completely;
a stanza with errors is ignored, and the rest of its file is read. A duplicate key is an error. Anchors, aliases and
merge keys are expanded. The tags `!override` and `!inherit` are allowed for attributes for which the table of jobs
lists them; `!encrypted/pkcs1-oaep` precedes a string, or a list of its pieces, in a secret.

A *pattern* is an RE2 regular expression, or `{regex: …, negate: true}`. It matches from the start, but not
necessarily to the end. The branch rules and `configure-projects` of the tenant file, and project names that begin with
`^`, must match full names. A pattern that RE2 rejects and Python accepts works as in Python, with a warning and within
limits: if a match takes too many steps, the change gets a configuration error.

| kind | who may define it | several with the same name |
|---|---|---|
| pipeline | config-projects | the second one is an error |
| job, project-template | any project; base jobs: config-projects | in one project: all apply; in another: an error |
| project | itself; others with `configure-projects`, or a config-project; also by pattern | all apply |
| all others | any project | an equal one on another branch is accepted; otherwise an error |
| pragma | any project | applies to its entire file |

If a project `shadow`s another one, the jobs of the other project silently take precedence.

The job `noop` is built in: it succeeds without running. Name a project by its short name (`org/p`), or with its host
(`example.org/org/p`), which is required if two hosts have the same short name.
"""

JOB_WORDS = """A stanza is a variant of the job it names. To freeze a job, Headgate applies all applicable variants of
its parents, then the job's own ones, and then the attributes in the project's pipeline section. Each overrides the
previous ones. A missing key changes nothing.
"""

CONTROL = """After a `final` variant, later variants and child jobs may set only the attributes that the table allows
on a final job. After `attribute-control: {timeout: {final: true}}`, no variant may set that attribute. If a job is
`protected`, other projects may set only the attributes allowed on a final job.

Secrets must be defined in the job's own project. A variant with secrets in an untrusted project restricts the job to
pipelines with `post-review` and to that project, unless the job was already restricted to `post-review`.
`pass-to-parent` also passes a secret to the inherited playbooks, and restricts the job to `post-review` if one of them
is in an untrusted project.
"""

BRANCHES = """## Branches of variants

A variant of a job applies to the branches it names; job attributes in a project's section apply to the same branches
as the section. A variant that names no branches applies to the branches of the first matching rule:

1. the pragma `implied-branch-matchers` of its file, or else that of the project in the tenant file: true means the
   branches of the pragma `implied-branches`, or the branch of the file; false means all branches;
2. in a config-project: all branches;
3. in a project with always-dynamic-branches: the branch of the file;
4. in a project with one branch: all branches;
5. otherwise the branch of the file.

For a template, the same rules apply, without the tenant file and without rule 3. A project stanza applies to the
branches it names; otherwise, a stanza for its own project applies to the branch of the file (all branches in a
config-project), and one for another project applies like a template.

A tag belongs to all branches that contain it, and also matches by its own name (`refs/tags/…`); other refs match by
their names.

`override-checkout` of a section, a job, or one of its required-projects names the branch of a project whose variants
apply, if that branch exists.
"""

ASSEMBLY = """## Projects

For `merge-mode`, `default-branch` and `queue`, the first stanza that sets the key takes precedence; templates of a
stanza may set the queue. Stanzas by pattern come after those by name. A section for an undefined pipeline is ignored. A
project takes part in a pipeline if any applicable stanza or template has a section for it.

Headgate combines sections in the order of the stanzas, with the templates of each stanza before it: jobs in the order
of their first appearance, `debug` if any section sets it, `fail-fast` and `parameters` of the first section that sets
them, and variables merged deeply, with later ones overriding earlier ones.
"""

FREEZING = """## Freezing

1. A job without applicable variants, or with a parent without applicable variants, is silently left out.
2. Variables of the job override parameters of a manual enqueue, which override variables of the project.
3. A job whose file matchers do not match runs only if a job that runs depends on it, or, unless
   `match-on-config-updates: false`, if the change alters the job itself, one of its playbooks or its include-vars.
   File matchers also see paths that only the merge modifies: if the branch has renamed a file that the change edits,
   git applies the edit to the new path.
4. Regular jobs wait for all initializers, as if they had soft dependencies on them, and need not name them.
5. In the following cases, there is an error, and nothing runs: a job that would run is abstract, is not allowed for
   the project, requires `post-review` in a pipeline without it, or has nothing to run; a hard dependency is not in the
   graph, a soft one is not defined, or dependencies form a circle; a nodeset, template or `image-build-name` is not
   defined; or a variant sets an attribute that it may not set.

The precedence of variables at run time, highest first: site variables, extra-vars, secrets, host-vars, group-vars
(`all` first, then by name), vars, parameters, project vars, template vars, include-vars (the later file first), data
returned by parents.
"""

DRIVER_WORDS = """`trigger`, `require`, `reject` and the reporters name connections; the driver of a connection defines
the keys below it. Entries of a trigger are alternatives; all keys of an entry must match, each with one of its values.
An unknown value causes a warning, an unknown key an error. Requirements for connections other than that of the change
are ignored. Headgate checks keys even for drivers that it cannot connect to.
"""

NODE_WORDS = """
## Machines

The driver of their connection defines the keys of sections and providers, and of the images, flavors and labels that
they attach. An unknown key causes a warning; in a section or provider of AWS or OpenStack, it is an error, as in Zuul.
Times are in seconds. See [Make machines](../how-to/make-machines.md).
"""

TENANT_WORDS = """A file with a syntax error is rejected completely, and the previous file stays in effect. If a tenant
uses an undefined name, only that tenant is rejected. Write a project as its name, or as a mapping of the name to its
settings; a group is a mapping with `projects` and settings for all of them, and groups can be nested.
"""

ERROR_WORDS = """An error names project, branch, file and line, and shows the lines around it. A stanza that
refers to something undefined stays in the layout, and an item that needs it reports the error; a stanza with a syntax
error, or one that conflicts with another, is ignored.
"""

PROPOSALS = """
## Proposed changes

Headgate tests a change that modifies the configuration of its project (or is behind such a change) with the proposed
configuration. It checks files of config-projects, but these take effect only after landing; if the rest is valid only
together with them, that is an error. Changes to pipelines, semaphores, sections, providers, and the queue of a project
also take effect only after landing.

Headgate reports errors that neither the tenant nor a change ahead already has, and all errors in the change's own
project and branch. An error stops the item; warnings are reported with the result.
"""

DECISIONS = (
    "`final: false` after `final: true` has no effect: a final job stays final.",
    "A pipeline need not have a trigger.",
    "Headgate tries alternatives of nodesets depth-first, in the order of the lists.",
    "Unknown pipeline names in project stanzas are accepted, since other tenants may have them; `headgate check` "
    "reports names that no tenant has.",
    "Circular inheritance ends where it began; `headgate check` reports it.",
    "Sections and providers may have other keys if Headgate does not know all keys of their connection's driver.",
    "A section with `parameters` in a pipeline that allows none is an error, and Headgate ignores the entire section.",
    "A timer enqueues the current head of a branch; `dereference` has no effect. All fields of a time must match, "
    "including both the day and the weekday. Times that pass while no scheduler runs are skipped.",
    "The roles of a variant are those of its own repository, then those it names; they precede inherited roles. A role "
    "that is already in the list keeps its place. A section that attaches a job adds only the roles that it names.",
    "A role repository without an explicit name gets the last part of its own name, without leading `ansible` and "
    "then `role`, each including the characters `-_.+` that follow.",
    "For the differences from Zuul, see [a separate page](differences.md).",
)

_OBJECTS: tuple[tuple[str, Keys], ...] = (
    ("project", objects.PROJECT),
    ("project, for each pipeline", objects.PROJECT_PIPELINE),
    ("project, a parameter", objects.PARAMETER),
    ("project-template", objects.TEMPLATE),
    ("queue", objects.QUEUE),
    ("semaphore", objects.SEMAPHORE),
    ("nodeset", objects.NODESET),
    ("nodeset, a node", objects.NODE),
    ("nodeset, a group", objects.GROUP),
    ("secret", objects.SECRET),
    ("secret, oidc", objects.OIDC),
    ("pragma", objects.PRAGMA),
    ("image", objects.IMAGE),
    ("flavor", objects.FLAVOR),
    ("label", objects.LABEL),
    ("section", objects.SECTION),
    ("provider", objects.PROVIDER),
)
_TENANT_FILE: tuple[tuple[str, Keys], ...] = (
    ("tenant", tenantfile.TENANT),
    ("a project of a tenant", tenantfile.PROJECT),
    ("global-semaphore", tenantfile.SEMAPHORE),
    ("authorization-rule (formerly admin-rule)", tenantfile.RULE),
    ("role", tenantfile.ROLE),
    ("role, permissions", tenantfile.PERMISSIONS),
    ("api-root", tenantfile.API_ROOT),
)


def page() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield from (HEAD, FILES, "## Jobs\n", JOB_WORDS)
    yield from _jobs()
    yield from (CONTROL, BRANCHES, ASSEMBLY, FREEZING, "## Pipelines\n")
    yield from _table(objects.PIPELINE)
    yield DRIVER_WORDS
    for name, driver in DRIVERS.items():
        yield f"\n### {name}\n"
        for part, keys in (("trigger", driver.trigger), ("require, reject", driver.require)):
            if keys:
                yield from _table(keys, part)
        if driver.reporter or driver.free:
            yield from _table(driver.reporter or {}, "reporter", "any other key" if driver.free else "")
    yield "\n## Other stanzas\n"
    for name, keys in _OBJECTS:
        yield f"\n### {name}\n"
        yield from _table(keys)
    yield NODE_WORDS
    for name, made in {**NODE_DRIVERS, "any other driver": ANY_NODES}.items():
        yield f"\n### {name}, for machines\n"
        for part, keys in (("section, provider", made.own), *made.attached):
            yield from _table(keys, part)
    yield "\n## The tenant file\n"
    yield TENANT_WORDS
    for name, keys in _TENANT_FILE:
        yield f"\n### {name}\n"
        yield from _table(keys)
    yield from ("\n## Errors\n", ERROR_WORDS, "| name | when | what is ignored |", "|---|---|---|")
    for name, one in (*ERRORS.items(), *CHECKED.items()):
        yield f"| {name}{' (warning)' if one.severity == 'warning' else ''} | {one.when} | {one.costs} |"
    yield PROPOSALS
    yield "\n## Decisions\n"
    yield from (f"- {decision}" for decision in DECISIONS)


def _remarks(key: StanzaKey) -> str:
    """Return the remarks about a key: its note, and why it has no effect in Headgate."""
    return "; ".join(word for word in (key.note, f"**no effect**: {key.idle}" if key.idle else "") if word)


def _cell(text: str) -> str:
    # In a table, a bar would end the cell.
    return text.replace("|", "\\|")


def _table(keys: Keys, what: str = "key", more: str = "") -> Iterator[str]:
    yield f"| {what} | value | default | |"
    yield "|---|---|---|---|"
    for name, key in keys.items():
        default = "*required*" if key.required else _cell(key.default)
        yield f"| `{name}` | {_cell(key.check.says)} | {default} | {_cell(_remarks(key))} |"
    if more:
        yield f"| {more} | anything | | |"
    yield ""


def _jobs() -> Iterator[str]:
    yield "| attribute | value | default | variants | on a final job | control | |"
    yield "|---|---|---|---|---|---|---|"
    for name, key in JOB.items():
        final, control = "may be set" if key.context else "", "yes" if key.control else ""
        cells = (key.check.says, key.default, key.merge, final, control, _remarks(key))
        yield f"| `{name}` | {' | '.join(_cell(cell) for cell in cells)} |"
    yield ""
