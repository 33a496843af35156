"""Say what stands around the tables of the reference page."""

HEAD = """# The configuration language

The language of Zuul's configuration, as Headgate reads it. The tables on this page are the declarations that the
parser itself uses; a test sees to it that they do not drift. `headgate schema` prints them as JSON Schema, for editors.
"""

FILES = """## Files

A project keeps its configuration in one of four roots: `zuul.yaml`, `zuul.d/`, `.zuul.yaml`, `.zuul.d/`. The first
that is there counts, another one is a warning. In a directory every `*.yaml` is read, at any depth, by the order of
its path; a file `.zuul.ignore` takes its directory and all below it out. `extra-config-paths` of the tenant file
are read besides.

Of a config-project one branch is read, `load-branch`. Of other projects all branches that the tenant file includes:
the default branch first, the others by name. Who comes first defines a name: config-projects before others, each in
the order of the tenant file.

A file is a list of stanzas, each a mapping of its kind to a mapping. A file that is not is void as a whole; a
stanza that is wrong is left out, and the rest of its file is read. A key given twice is an error. Anchors, aliases
and merge keys are written out. `!override` and `!inherit` stand before values of attributes that the table of jobs
says so of; `!encrypted/pkcs1-oaep` before a text, or a list of its pieces, in a secret.

A *pattern* is a regular expression of RE2, or `{regex: …, negate: true}`. It matches at the start, not to the end;
whole names are matched by the branch rules and `configure-projects` of the tenant file and by names of projects
that begin with `^`. A pattern that RE2 refuses and Python accepts is used as Python's, with a warning,
within bounds: one that cannot be told in so many steps is a configuration error of the change.

| kind | who may | two of one name |
|---|---|---|
| pipeline | config-projects | the second is refused |
| job, project-template | any project; base jobs: config-projects | of one project all count; of another: refused |
| project | of itself; of others with `configure-projects`, or a config-project; also by pattern | all count |
| all others | any project | the same once more on another branch is no harm; else refused |
| pragma | any project | for its file, wherever it stands in it |

A project that `shadow`s another gives way to its jobs silently.

A job `noop` is built in: it succeeds without being run. A project is named by its short name (`org/p`), or with its
host (`example.org/org/p`), which a short name that two hosts have needs.
"""

JOB_WORDS = """A stanza is a variant of the job it names. A job is frozen by applying, one over the other, all
variants that apply to its parents and to itself, then what the project's pipeline section says of it. A key that is
not there says nothing.
"""

CONTROL = """Once a variant is `final`, no later one and no child may set an attribute that the table does not say
may be set then. Once `attribute-control: {timeout: {final: true}}` is said, nobody after sets that attribute. Once
`protected`, no other project sets what a final job does not let be set.

Secrets must be defined in the job's own project. A variant of an untrusted project that has secrets makes the job
run after review, for that project alone, unless it was for after review already. `pass-to-parent` gives a secret to
the inherited playbooks, too, and makes the job run after review if one of them is in an untrusted project.
"""

BRANCHES = """## Which branches

A variant of a job applies to the branches it names; what a project's section says of a job applies where the
section does. Else:

1. a pragma `implied-branch-matchers` of its file decides, else that of the project in the tenant file: true is the
   branches of the pragma `implied-branches`, or the branch the file is on; false is all branches;
2. of a config-project: all branches;
3. of a project with always-dynamic-branches: the branch it is on;
4. of a project with one branch: all branches;
5. else the branch it is on.

A template: the same without the tenant file and without 3. A project stanza: the branches it names; of its own
project the branch it is on (all for a config-project); of another project, as a template.

A tag is on all branches that contain it, and has its own name (`refs/tags/…`); another ref has its name.

`override-checkout` of a section, of a job, or of one of its required-projects says which branch of a project its
variants are taken from, if there is such a branch.
"""

ASSEMBLY = """## Projects

Of `merge-mode`, `default-branch` and `queue` the first stanza that says anything counts; a stanza's templates may
say the queue. Stanzas by pattern come after those by name. A section for a pipeline that does not exist is not
looked at. A project is in a pipeline if any stanza or template that applies has a section for it.

Sections come together in the order of the stanzas, each one's templates before itself: jobs in the order of their
first appearance, `debug` if any says so, `fail-fast` and `parameters` of the first that says, variables merged
deeply, later over earlier.
"""

FREEZING = """## Freezing

1. A job without variants that apply, or with a parent that has none, is left out silently.
2. Variables of the project lie beneath the job's, those given by hand between them.
3. A job whose files do not match is kept only if a job that runs depends on it, or, unless
   `match-on-config-updates: false`, if the change alters the job itself, one of its playbooks or its include-vars.
4. Regular jobs wait for all initializers, as if they depended on them softly, and do not name them.
5. It is an error, and nothing runs, if a job that would run is abstract, not allowed for the project, for after
   review in a pipeline before it, without anything to run; if a hard dependency is not in the graph, a soft one not
   defined, or dependencies go in a circle; if a nodeset, template or `image-build-name` is not defined; if a variant
   sets what it may not.

At run time: site variables, extra-vars, secrets, host-vars, group-vars (`all` first, then by name), vars,
parameters, project vars, template vars, include-vars (the later file first), data returned by parents.
"""

DRIVER_WORDS = """`trigger`, `require`, `reject` and the reporters name connections, and say to each what its driver
understands. Entries of a trigger are alternatives; all that one entry says must be so, of several values one.
A word that its driver does not know is a warning, a key that it does not know an error.
Requirements for other connections than the change's are passed over. A driver that Headgate cannot connect to is
checked all the same.
"""

NODE_WORDS = """
## Machines

What sections and providers say, and say of the images, flavors and labels that they attach, is for the driver of their
connection. A key that it does not know is a warning; where a section or provider of AWS or OpenStack has it, it is an
error, as in the reference. All of this is checked, and makes no machine: Headgate's own are those of the
[inventory](../how-to/use-the-inventory.md).
"""

TENANT_WORDS = """What is wrong with its form refuses the file as a whole, and what held goes on to hold. A name
that a tenant uses and nobody defines refuses that tenant alone. A project is its name, or a mapping of the name to
its settings; a group is a mapping with `projects` and settings for all of them, and groups may stand in groups.
"""

ERROR_WORDS = """An error names project, branch, file and line, and shows the lines around it. What refers to
something that is not there stays in the layout, and an item that needs it reports it; what has the wrong form, or
clashes, is left out.
"""

PROPOSALS = """
## Proposed changes

A change that touches the configuration of its project (or that is behind one that does) is tested with what it
says. Files of config-projects are checked and take effect when they have landed; if the rest is right only together
with them, that is an error. Pipelines, semaphores, sections, providers, and the queue a project is in change only
by landing.

Errors that the tenant, or a change ahead, does not have already are reported; so is everything wrong on the
change's own project and branch. An error stops the item; a warning is told with the result.
"""

DECISIONS = (
    "`final: false` after `final: true` clears nothing: a job does not become open again.",
    "A pipeline needs no trigger.",
    "Alternatives of nodesets are tried depth first, in the order of the lists.",
    "Unknown pipeline names in project stanzas are accepted: other tenants may have them; `headgate check` tells "
    "of those that none has.",
    "Inheritance that goes in a circle ends where it began; `headgate check` tells of it.",
    "Sections and providers may hold any other key where not all is known that the driver of their connection knows.",
    "A section with `parameters` in a pipeline that has none is dropped whole, and an error.",
    "A timer puts the head a branch has at that moment into its pipeline; `dereference` changes nothing. All fields of "
    "a time must fit, the day and the weekday too. What was due while nobody ran is not made up for.",
    "The roles of a variant are those of its own repository, then those it names, in front of those that it inherits. "
    "One that is there already keeps its place. What attaches a job to a project brings no roles but those it names.",
    "A repository whose roles nobody named is called by the last part of its name, without `ansible` and then `role` "
    "in front, and the characters `-_.+` after them.",
    "What differs from the reference is on [a page of its own](differences.md).",
)
