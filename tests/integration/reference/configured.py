"""Provide a configuration that uses everything that the API shows."""

from __future__ import annotations

from ..conftest import PIPELINES

TENANT_MORE = ""

CONFIG = {
    "zuul.yaml": PIPELINES.replace("    queue: integrated\n", "    queue: integrated\n    templates: [more-jobs]\n", 1)
    + """
- semaphore:
    name: license
    max: 2

- nodeset:
    name: two
    nodes:
      - {name: [controller, primary], label: large}
      - {name: compute, label: small}
    groups:
      - {name: all-nodes, nodes: [controller, compute]}

- job:
    name: linters
    parent: unit
    description: |
      Looks at the code.
      Quickly.
    branches: [master, stable/.*]
    files: [src/.*]
    tags: [quick, cheap]
    nodeset: two
    timeout: 300
    attempts: 2
    voting: false
    vars: {depth: 1}
    extra-vars: {width: 2}
    required-projects:
      - name: code/lib
        override-checkout: stable/1
    semaphores:
      - {name: license, resources-first: true}
    provides: [report]
    requires: [unit]
    dependencies:
      - name: unit
        soft: true
    run: jobs/linters
    post-run:
      - {name: jobs/sweep, cleanup: true}

- job:
    name: linters
    branches: [release]
    voting: true

- project-template:
    name: more-jobs
    gate:
      jobs:
        - linters:
            files: [.*]

- pipeline:
    name: by-hand
    description: Started by people.
    manager: independent
    allow-parameters: true
    trigger: {}

- project:
    name: code/lib
    by-hand:
      parameters:
        - {name: level, type: string, default: low, description: How much}
      jobs: [unit]
""",
    "jobs/linters": "#!/bin/sh\nexit 0\n",
    "jobs/sweep": "#!/bin/sh\nexit 0\n",
}
