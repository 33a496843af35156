"""Define the demo's repositories: one with configuration, three with code that depends on each other."""

from __future__ import annotations

from importlib.util import find_spec

JOBS = """\
- job:
    name: base
    parent: null
    abstract: true
    description: What all jobs share.

- job:
    name: unit
    description: The unit tests of the change's own project.
    run: jobs/unit
    timeout: 120

- job:
    name: together
    description: The tests of the application against the libraries as they would be after landing.
    run: jobs/together
    required-projects:
      - {owner}core
      - {owner}api
      - {owner}app
    timeout: 120

- job:
    name: announce
    description: Run by {announcer}.
    run: {announce}

- project:
    name: ^{owner}(core|api|app)$
    queue: integrated
    check:
      jobs:
        - unit
    gate:
      jobs:
        - unit
        - together:
            dependencies: unit
"""

UNIT = """#!/bin/sh
# The unit tests of this project; the libraries it needs come from the other repositories.
export PYTHONPATH="$ZUUL_SRC_ROOT/demo.example/{owner}core:$ZUUL_SRC_ROOT/demo.example/{owner}api:$PWD"
exec python3 -m unittest discover -v -p 'test_own*.py'
"""

TOGETHER = """#!/bin/sh
# All tests of all three repositories, at the state they would be in.
cd "$ZUUL_SRC_ROOT/demo.example/{owner}"
export PYTHONPATH="$PWD/core:$PWD/api:$PWD/app"
sleep 2    # as long as a small suite takes
python3 -m unittest $(ls core api app | sed -n 's/^\\(test_.*\\)\\.py$/\\1/p') || exit 1
headgate-return "zuul.warnings=[]" tested=3
"""

ANNOUNCE = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Say what is tested
      debug:
        msg: "{{ zuul.project.name }} {{ zuul.change }} in {{ zuul.pipeline }}"
    - name: Return it
      zuul_return:
        data:
          announced: "{{ zuul.change }}"
"""
ANNOUNCE_PLAIN = """#!/bin/sh
# The same without Ansible.
echo "$ZUUL_PROJECT $ZUUL_CHANGE in $ZUUL_PIPELINE"
headgate-return "announced=$ZUUL_CHANGE"
"""


QUEUE = """\
- queue:
    name: integrated

"""


def config(pipelines: str, owner: str = "") -> dict[str, str]:
    """Return the files of the configuration. `owner` is the prefix of the repositories' names. One job is a
    playbook if Ansible is installed alongside Headgate."""
    queue = "" if "- queue:" in pipelines else QUEUE
    playbook = find_spec("ansible") is not None
    announce = "jobs/announce.yaml" if playbook else "jobs/announce"
    jobs = JOBS.replace("{owner}", owner).replace("{announce}", announce)
    jobs = jobs.replace("{announcer}", "Ansible" if playbook else "the shell")
    return {
        "zuul.yaml": f"{pipelines.rstrip()}\n\n{queue}{jobs}",
        "jobs/unit": UNIT.replace("{owner}", owner),
        "jobs/together": TOGETHER.replace("{owner}", owner),
        announce: ANNOUNCE if playbook else ANNOUNCE_PLAIN,
    }


CORE = {
    "core.py": '"""Arithmetic."""\n\n\ndef add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return a * b\n',
    "test_own_core.py": (
        "import unittest\n\nimport core\n\n\nclass Core(unittest.TestCase):\n"
        "    def test_mul(self):\n        self.assertEqual(core.mul(2, 3), 6)\n"
    ),
}
API = {
    "api.py": '"""What others call."""\n\nimport core\n\n\ndef area(w, h):\n    return core.mul(w, h)\n',
    "test_api.py": (
        "import unittest\n\nimport api\n\n\nclass Api(unittest.TestCase):\n"
        "    def test_area(self):\n        self.assertEqual(api.area(2, 3), 6)\n"
    ),
    "test_own_api.py": (
        "import ast\nimport unittest\nfrom pathlib import Path\n\n\nclass Own(unittest.TestCase):\n"
        "    def test_it_is_python(self):\n        ast.parse(Path(__file__).with_name('api.py').read_text())\n"
    ),
}
APP = {
    "app.py": '"""The application."""\n\nimport api\n\n\ndef main():\n    return f"area {api.area(4, 5)}"\n',
    "test_app.py": (
        "import unittest\n\nimport app\n\n\nclass App(unittest.TestCase):\n"
        "    def test_main(self):\n        self.assertEqual(app.main(), 'area 20')\n"
    ),
    "test_own_app.py": (
        "import ast\nimport unittest\nfrom pathlib import Path\n\n\nclass Own(unittest.TestCase):\n"
        "    def test_it_is_python(self):\n        ast.parse(Path(__file__).with_name('app.py').read_text())\n"
    ),
    "zuul.yaml": "- project:\n    gate:\n      jobs:\n        - announce\n",
}

CODE = {"core": CORE, "api": API, "app": APP}
SETTINGS = """\
[scheduler]
tenant_config = tenants.yaml
state_dir = state

[executor]
builds = 8

[web]
port = 0

"""

RENAMED = CORE["core.py"].replace("def add", "def plus")
USES_ADD = API["api.py"] + "\n\ndef perimeter(w, h):\n    return 2 * core.add(w, h)\n"
TEST_ADD = API["test_api.py"] + "\n    def test_perimeter(self):\n        self.assertEqual(api.perimeter(2, 3), 10)\n"
WITH_SUB = "def sub(a, b):\n    return a - b\n"
TEST_SUB = (
    "import unittest\n\nimport core_sub\n\n\nclass Sub(unittest.TestCase):\n"
    "    def test_sub(self):\n        self.assertEqual(core_sub.sub(3, 2), 1)\n"
)
USES_SUB = '"""Differences."""\n\nimport core_sub\n\n\ndef gap(a, b):\n    return core_sub.sub(a, b)\n'
TEST_GAP = (
    "import unittest\n\nimport api_gap\n\n\nclass Gap(unittest.TestCase):\n"
    "    def test_gap(self):\n        self.assertEqual(api_gap.gap(5, 2), 3)\n"
)
BROKEN = "- project:\n    gate:\n      jobs:\n        - announce\n        - lint\n"
