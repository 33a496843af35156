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

Zuul's configuration language, as Headgate reads it. The tables on this page are generated from the declarations that
the parser itself uses. `headgate schema` prints them as JSON Schema, for editors.
"""

FILES = """## Files

A project keeps its configuration in one of four roots: `zuul.yaml`, `zuul.d/`, `.zuul.yaml`, `.zuul.d/`. The first
existing root counts; a further one causes a warning. In a directory, every `*.yaml` is read, at any depth, in the
order of the paths; a file `.zuul.ignore` excludes its directory and everything below it. The `extra-config-paths` of
the tenant file are read in addition.

Of a config-project, one branch is read, `load-branch`. Of other projects, all branches that the tenant file includes
are read: the default branch first, the others by name. The first definition of a name counts: config-projects come
before others, and within each group the order of the tenant file applies.

A file is a list of stanzas, each a mapping of its kind to a mapping. Any other file is ignored as a whole; a wrong
stanza is left out, and the rest of its file is read. A key given twice is an error. Anchors, aliases and merge keys
are expanded. `!override` and `!inherit` may precede values of the attributes for which the table of jobs says so;
`!encrypted/pkcs1-oaep` precedes a text, or a list of its pieces, in a secret.

A *pattern* is an RE2 regular expression, or `{regex: …, negate: true}`. It matches from the start, but not
necessarily to the end. The branch rules and `configure-projects` of the tenant file, and names of projects that begin
with `^`, match whole names. A pattern that RE2 rejects and Python accepts is matched as in Python, with a warning
and within bounds: if matching takes too many steps, this is a configuration error of the change.

| kind | who may define it | two with the same name |
|---|---|---|
| pipeline | config-projects | the second is an error |
| job, project-template | any project; base jobs: config-projects | all from one project count; from another: error |
| project | itself; others with `configure-projects`, or a config-project; also by pattern | all count |
| all others | any project | an equal one on another branch is accepted; otherwise an error |
| pragma | any project | applies to its whole file |

If a project `shadow`s another, the jobs of the other silently take precedence.

The job `noop` is built in: it succeeds without running. A project is named by its short name (`org/p`), or with its
host (`example.org/org/p`), which is required if two hosts have the same short name.
"""

JOB_WORDS = """A stanza is a variant of the job it names. A job is frozen by applying, one over the other, all
applicable variants of its parents and its own, and then the attributes in the project's pipeline section. A missing
key changes nothing.
"""

CONTROL = """After a `final` variant, later variants and children may set only the attributes that the table allows
on a final job. After `attribute-control: {timeout: {final: true}}`, nobody may set that attribute. If a job is
`protected`, other projects may set only what a final job allows.

Secrets must be defined in the job's own project. A variant of an untrusted project that has secrets restricts the job
to pipelines after review and to that project, unless the job was already restricted to after review. `pass-to-parent`
also gives a secret to the inherited playbooks, and restricts the job to after review if one of them is in an untrusted
project.
"""

BRANCHES = """## Which branches

A variant of a job applies to the branches it names; job attributes in a project's section apply where the section
does. A variant that names no branches applies to the branches of the first matching rule:

1. the pragma `implied-branch-matchers` of its file, or else that of the project in the tenant file: true means the
   branches of the pragma `implied-branches`, or the branch of the file; false means all branches;
2. in a config-project: all branches;
3. in a project with always-dynamic-branches: the branch of the file;
4. in a project with one branch: all branches;
5. otherwise the branch of the file.

For a template, the same rules apply, without the tenant file and without rule 3. A project stanza applies to the
branches it names; otherwise, a stanza for its own project applies to the branch of the file (all branches in a
config-project), and one for another project applies like a template.

A tag is on all branches that contain it, and also matches by its own name (`refs/tags/…`); other refs match by their
names.

`override-checkout` of a section, a job, or one of its required-projects names the branch of a project from which
variants are taken, if that branch exists.
"""

ASSEMBLY = """## Projects

For `merge-mode`, `default-branch` and `queue`, the first stanza that sets the key counts; templates of a stanza may
set the queue. Stanzas by pattern come after those by name. A section for a pipeline that does not exist is ignored.
A project is in a pipeline if any applicable stanza or template has a section for it.

Sections are combined in the order of the stanzas, with the templates of each stanza before it: jobs in the order of
their first appearance, `debug` if any section sets it, `fail-fast` and `parameters` of the first section that sets
them, and variables merged deeply, later ones over earlier ones.
"""

FREEZING = """## Freezing

1. A job without applicable variants, or with a parent that has none, is left out silently.
2. Variables of the project lie beneath the job's, those given by hand between them.
3. A job whose files do not match is kept only if a job that runs depends on it, or, unless
   `match-on-config-updates: false`, if the change alters the job itself, one of its playbooks or its include-vars.
4. Regular jobs wait for all initializers, as if they had soft dependencies on them, and need not name them.
5. In the following cases, there is an error, and nothing runs: a job that would run is abstract, is not allowed for
   the project, requires review in a pipeline before review, or has nothing to run; a hard dependency is not in the
   graph, a soft one is not defined, or dependencies form a circle; a nodeset, template or `image-build-name` is not
   defined; or a variant sets an attribute that it may not set.

At run time: site variables, extra-vars, secrets, host-vars, group-vars (`all` first, then by name), vars,
parameters, project vars, template vars, include-vars (the later file first), data returned by parents.
"""

DRIVER_WORDS = """`trigger`, `require`, `reject` and the reporters name connections; the keys below a connection belong
to its driver. Entries of a trigger are alternatives; all keys of an entry must match, each with one of its values.
A value that the driver does not know causes a warning, an unknown key an error.
Requirements for connections other than that of the change are ignored. Keys are checked even for a driver that
Headgate cannot connect to.
"""

NODE_WORDS = """
## Machines

The keys of sections and providers, and of the images, flavors and labels that they attach, belong to the driver of
their connection. A key that the driver does not know causes a warning; in a section or provider of AWS or OpenStack,
it is an error, as in Zuul. See [Make machines](../how-to/make-machines.md).
"""

TENANT_WORDS = """If the form of the file is wrong, it is rejected as a whole, and the earlier file stays in effect. If
a tenant uses an undefined name, only that tenant is rejected. A project is its name, or a mapping of the name to its
settings; a group is a mapping with `projects` and settings for all of them, and groups can be nested.
"""

ERROR_WORDS = """An error names project, branch, file and line, and shows the lines around it. A stanza that
refers to something undefined stays in the layout, and an item that needs it reports the error; a stanza with the wrong
form, or one that clashes with another, is left out.
"""

PROPOSALS = """
## Proposed changes

A change that touches the configuration of its project (or is behind such a change) is tested with the proposed
configuration. Files of config-projects are checked, but take effect only after landing; if the rest is valid only
together with them, that is an error. Pipelines, semaphores, sections, providers, and the queue of a project change
only by landing.

Headgate reports errors that neither the tenant nor a change ahead already has, and all errors on the change's own
project and branch. An error stops the item; a warning is reported with the result.
"""

DECISIONS = (
    "`final: false` after `final: true` has no effect: a final job stays final.",
    "A pipeline needs no trigger.",
    "Alternatives of nodesets are tried depth-first, in the order of the lists.",
    "Unknown pipeline names in project stanzas are accepted: other tenants may have them; `headgate check` reports "
    "names that no tenant has.",
    "Circular inheritance ends where it began; `headgate check` reports it.",
    "Sections and providers may have any other key if the keys of their connection's driver are not completely known.",
    "A section with `parameters` in a pipeline that allows none is an error, and the whole section is dropped.",
    "A timer enqueues the head that a branch has at that moment; `dereference` has no effect. All fields of a time "
    "must match, the day and the weekday, too. Times that passed while no scheduler ran are skipped.",
    "The roles of a variant are those of its own repository, then those it names; they precede the inherited roles. "
    "A role that is there already keeps its place. A section that attaches a job adds only the roles that it names.",
    "A role repository without an explicit name gets the last part of its own name, without leading `ansible` and "
    "then `role`, each with the characters `-_.+` that follow.",
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
    ("authorization-rule (of old: admin-rule)", tenantfile.RULE),
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
    yield "\n## Everything else\n"
    for name, keys in _OBJECTS:
        yield f"\n### {name}\n"
        yield from _table(keys)
    yield NODE_WORDS
    for name, made in {**NODE_DRIVERS, "any other driver": ANY_NODES}.items():
        yield f"\n### {name}, of machines\n"
        for part, keys in (("section, provider", made.own), *made.attached):
            yield from _table(keys, part)
    yield "\n## The tenant file\n"
    yield TENANT_WORDS
    for name, keys in _TENANT_FILE:
        yield f"\n### {name}\n"
        yield from _table(keys)
    yield from ("\n## Errors\n", ERROR_WORDS, "| name | when | what it costs |", "|---|---|---|")
    for name, one in (*ERRORS.items(), *CHECKED.items()):
        yield f"| {name}{' (warning)' if one.severity == 'warning' else ''} | {one.when} | {one.costs} |"
    yield PROPOSALS
    yield "\n## Decisions\n"
    yield from (f"- {decision}" for decision in DECISIONS)


def _remarks(key: StanzaKey) -> str:
    """Return the remarks about a key: its note, and why it has no effect here."""
    return "; ".join(word for word in (key.note, f"**no effect here**: {key.idle}" if key.idle else "") if word)


def _cell(text: str) -> str:
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
