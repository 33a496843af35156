"""`headgate explain job`: where each attribute comes from."""

from __future__ import annotations

from textwrap import dedent

OPS = """
- pipeline:
    name: gate
    manager: dependent
    trigger: {hub: [{event: change-approved}]}
    success: {hub: {land: true}}
- nodeset:
    name: small
    nodes: [{name: controller, label: debian}]
- job:
    name: base
    parent: null
    abstract: true
    timeout: 600
    nodeset: small
    vars:
      mirror:
        url: http://mirror
        retries: 3
    pre-run: pre.yaml
    tags: [slow]
"""
APP = """
- job:
    name: unit
    run: unit.yaml
    vars:
      mirror:
        retries: 5
    tags:
      - fast
      - slow
    required-projects: [lib]
- job:
    name: unit
    branches: stable
    timeout: 60
- project:
    vars: {tox: py311}
    gate:
      jobs:
        - unit:
            timeout: 900
"""


def test_every_attribute_has_its_variant_file_and_line(offline):
    made = offline(ops=OPS, app=APP)
    assert made.run("explain", "job", "unit").stdout == dedent("""\
        unit  in gate of app on master

        variants, each overrides those above:
           1  base            hub/ops master zuul.yaml:11
           2  unit            hub/app master zuul.yaml:3
           3  unit, attached  hub/app master zuul.yaml:21
        not for this branch:
              unit            hub/app master zuul.yaml:13  (for stable)

          nodeset              small: controller (debian)   1  zuul.yaml:15
          timeout              900                          3  zuul.yaml:21
                               not 600                      1  zuul.yaml:14
          required-projects    hub/lib                      2  zuul.yaml:11
          vars.tox             py311                        ·  hub/app master zuul.yaml:17 (vars of the project)
          vars.mirror.url      http://mirror                1  zuul.yaml:18
          vars.mirror.retries  5                            2  zuul.yaml:7
                               not 3                        1  zuul.yaml:19
          pre-run              ops/pre.yaml@master          1  zuul.yaml:20
          run                  app/unit.yaml@master         2  zuul.yaml:4
          tags                 fast                         2  zuul.yaml:9
                               slow                         1  zuul.yaml:21
        """)


def test_the_same_as_json(offline):
    found = offline(ops=OPS, app=APP).json("explain", "job", "unit")
    assert (found["tenant"], found["job"], found["pipeline"], found["project"], found["branch"]) == (
        "acme", "unit", "gate", "hub/app", "master",
    )  # fmt: skip
    assert [(v["step"], v["job"], v["path"], v["attaching"]) for v in found["variants"]] == [
        (1, "base", "zuul.yaml", False), (2, "unit", "zuul.yaml", False), (3, "unit", "zuul.yaml", True),
    ]  # fmt: skip
    timeout = found["attributes"]["timeout"]
    assert (timeout["value"], timeout["step"], timeout["line"]) == (900, 3, 21)
    assert [(s["value"], s["step"], s["line"]) for s in timeout["instead_of"]] == [(600, 1, 14)]
    assert [(s["value"], s["line"]) for s in found["attributes"]["tags"]["elements"]] == [("fast", 9), ("slow", 21)]


def test_on_another_branch_another_variant_counts(offline):
    shown = offline(ops=OPS, app=APP).run("explain", "job", "unit", "--branch", "stable").stdout
    assert "unit  on stable\nno project runs this job; this shows its own definitions" in shown
    assert "timeout              60" in shown


def test_the_reason_is_shown_for_a_job_that_cannot_be_frozen(offline):
    made = offline(ops=OPS, app=APP.replace("name: unit\n    run", "name: unit\n    branches: old\n    run"))
    done = made.run("explain", "job", "unit")
    assert done.exit_code == 1
    assert "the job is not in the graph: none of its definitions is for branch master" in done.stdout
    made = offline(ops=OPS, app=APP.replace("run: unit.yaml", "run: unit.yaml\n    secrets: [nobody]"))
    done = made.run("explain", "job", "unit")
    assert done.exit_code == 1
    assert "job unit: the secret 'nobody' is not defined" in done.stdout


def test_a_name_that_is_not_known_is_bad_usage(offline):
    done = offline(ops=OPS, app=APP).run("explain", "job", "unti")
    assert done.exit_code == 2
    assert "tenant acme has no job 'unti'; did you mean 'unit'?" in done.output
    done = offline(ops=OPS, app=APP).run("explain", "job", "unit", "--project", "lib")
    assert "lib does not run the job 'unit'" in done.output


def test_built_in_values_are_shown_without_a_place(offline):
    shown = offline(ops=OPS, app="- project: {gate: {jobs: [noop]}}\n").run("explain", "job", "noop").stdout
    assert "1  noop            built in" in shown
    assert "deduplicate  true   1" in shown


def test_an_undecidable_pattern_is_named(offline):
    app = "- job: {name: odd, run: r, branches: '^(a*)*\\1b'}\n- project: {gate: {jobs: [odd]}}\n"
    made = offline(ops=OPS, app=app).run("explain", "job", "odd", "--branch", "a" * 60 + "!")
    assert made.exit_code == 2 and "(a*)*" in made.output and "write a simpler pattern" in made.output
