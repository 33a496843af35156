"""Test that a secret reaches only its playbook, whatever a proposal runs beside it, and whatever data it passes to
it."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import pytest

from .arena import ATTACKER, Arena

TOKEN = "site-token-5c1f"
DIGEST = sha256(TOKEN.encode()).hexdigest()[:12]
SITE = """
- secret: {name: site, data: {token: site-token-5c1f}}
- job:
    name: reported
    abstract: true
    post-run: [play/report.yaml, play/count]
    secrets: [site]
- job: {name: sealed, final: true, run: [play/report.yaml], secrets: [site]}
- job: {name: guarded, protected: true, run: [play/report.yaml], secrets: [site]}
- job: {name: halfway, abstract: true, intermediate: true, post-run: [play/report.yaml], secrets: [site]}
- job: {name: fixed, run: [play/report.yaml], secrets: [site], attribute-control: {run: {final: true}}}
- project-template: {name: reports, check: {jobs: [sealed]}}
"""
REPORT = """
- hosts: localhost
  gather_facts: false
  vars: {where: the archive, stage: production}
  tasks:
    - shell: test -n "$TOKEN" && echo sent to $WHERE of $STAGE with $(printf %s "$TOKEN" | sha256sum | head -c 12)
      environment: {TOKEN: "{{ site.token }}", WHERE: "{{ where }}", STAGE: "{{ stage }}"}
    - debug: {msg: "for {{ described | default('nobody') }} and {{ more | default({}) }}"}
    - debug: {msg: "also {{ of_project | default('-') }} {{ of_file | default('-') }} {{ of_host | default('-') }}"}
    - debug: {msg: "also {{ of_group | default('-') }} {{ of_job | default('-') }} {{ of_extra | default('-') }}"}
    - debug: {msg: "of {{ zuul.change_message }} in {{ zuul.topic }} {{ zuul['items'][0].change_message }}"}
"""
COUNT = f"""#!/usr/bin/env python3
import hashlib, json, os
told = json.load(open(os.environ["HEADGATE_VARS"]))
digest = hashlib.sha256(told["site"]["token"].encode()).hexdigest()[:12]
print("counted", digest == {DIGEST!r}, told.get("where"))
"""
SEARCH = "(cat $(dirname $ANSIBLE_CONFIG)/* ~/.* 2>&1; env) | grep -a site-[t]"
STEALS = f"{{{{ site.token }}}} {{{{ lookup('pipe', '{SEARCH}; true') }}}}"
OWN = f"""
- job: {{name: first, run: first}}
- job:
    name: attack
    parent: reported
    run: look
    dependencies: [first]
    vars:
      described: "{{{{ zuul.project.short_name }}}}"
      where: attacker
      more: {{"{STEALS}": "{STEALS}", list: ["{STEALS}"]}}
      site: {{token: "{STEALS}"}}
      ansible_become: true
      ansible_become_exe: env; echo RAN
      ansible_shell_type: "{STEALS}"
      ansible_remote_tmp: /proc/self/cwd
    host-vars: {{localhost: {{of_host: "{STEALS}"}}}}
    group-vars: {{all: {{of_group: "{STEALS}"}}}}
    extra-vars: {{where: attacker, stage: attacker, of_extra: "{STEALS}", site: {{token: attacker}}}}
    include-vars: [some.yaml]
- project:
    vars: {{of_project: "{STEALS}"}}
    check: {{jobs: [first, attack]}}
"""
FIRST = f"""#!/usr/bin/env python3
import json, os, subprocess
data = {{"of_job": {STEALS!r}, "ansible_become_exe": "echo RAN", "ansible_become": True, "where": "attacker",
        "site": {{"token": "attacker"}}, "ansible_ssh_common_args": "-o ProxyCommand='echo RAN'"}}
open("data", "w").write(json.dumps(data))
subprocess.run(["headgate-return", "--json", "data"], check=True)
"""
LOOK = """#!/bin/sh
env; cat $HEADGATE_VARS; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'
grep -rsa --exclude=zuul.yaml 'site-[t]oken' $(dirname $(dirname $ZUUL_SRC_ROOT)) /tmp && echo FOUND
echo looked
"""


MINE = """
- secret: {name: mine, data: {a: b}}
- job: {name: attack, parent: reported, run: look%s}
- project: {check: {jobs: [attack]}}
"""
RULED = "- job: {name: attack, parent: %s}\n- project: {check: {jobs: [attack]}}\n"
VARIED = "- project: {check: {jobs: [%s]}}\n"
REFUSED = {
    "final-child": (RULED % "sealed, run: look", "the job sealed is final: no job may inherit from it"),
    "final-undone": (
        RULED % "sealed, final: false, pre-run: look",
        "the job sealed is final: no job may inherit from it",
    ),
    "final-varied": (VARIED % "sealed: {post-run: look}", "job sealed is final .*may not change post-run"),
    "final-again": (
        "- job: {name: sealed, final: false, run: look}\n" + VARIED % "sealed",
        "already defined in project",
    ),
    "protected-child": (
        RULED % "guarded, run: look",
        "guarded is protected: no job of another project may inherit from it",
    ),
    "protected-undone": (
        RULED % "guarded, protected: false",
        "guarded is protected: no job of another project may inherit from it",
    ),
    "protected-varied": (VARIED % "guarded: {pre-run: look}", "job guarded is protected by .*may not change pre-run"),
    "protected-late": (
        "- job: {name: between, parent: guarded}\n" + RULED % "between, required-projects: [code/lib], run: look",
        "guarded is protected: no job of another project may inherit from it",
    ),
    "halfway-child": (RULED % "halfway, run: look", "halfway is intermediate: only abstract jobs may inherit from it"),
    "halfway-itself": (VARIED % "halfway", "abstract"),
    "halfway-undone": (
        RULED % "halfway, intermediate: false, abstract: false, run: look",
        "halfway is intermediate: only abstract jobs may inherit from it",
    ),
    "halfway-below": (
        "- job: {name: between, parent: halfway, abstract: true}\n" + RULED % "between, run: look",
        "Build succeeded",  # intended: the trusted playbook runs after the change's own, with only its secret
    ),
    "fixed": (RULED % "fixed, run: look", "run of job attack is final"),
    "fixed-varied": (VARIED % "fixed: {run: look, attribute-control: {run: {final: false}}}", "final"),
    "template-again": (
        "- project-template: {name: reports, check: {jobs: [{sealed: {run: look}}]}}\n"
        "- project: {templates: [reports]}\n",
        "already defined in project",
    ),
    "template-own": (
        "- project-template: {name: mine, check: {jobs: [{sealed: {run: look}}]}}\n- project: {templates: [mine]}\n",
        "job sealed is final .*may not change run",
    ),
    "template-varied": (
        "- project: {templates: [reports], check: {jobs: [{sealed: {pre-run: look}}]}}\n",
        "job sealed is final .*may not change pre-run",
    ),
    "variant": (MINE % "" + "- job: {name: reported, branches: .*, run: look}\n", "already defined in project"),
    "named": (MINE % ", secrets: [site]", "the secret 'site' is not defined in git.example/code/api"),
    "renamed": (
        MINE % ", secrets: [{name: x, secret: site, pass-to-parent: true}]",
        "the secret 'site' is not defined",
    ),
    "given": (MINE % ", secrets: [{name: where, secret: mine, pass-to-parent: true}]", "attack is post-review"),
    "again": (MINE % "" + "- secret: {name: site, data: {token: x}}\n", "already defined in project"),
    "base": (MINE % "" + "- job: {name: other, parent: null, run: look}\n", "other"),
    "node": (MINE % ', nodeset: {nodes: [{name: "localhost:22", label: x}]}', "has a special meaning in an inventory"),
    "exposure": (
        MINE % ", secret-exposure: fail, cleanup-run: look, post-run: look, semaphores: [s]",
        "Build succeeded",
    ),
    "branch": (
        MINE % ", override-checkout: side, required-projects: [{name: config, override-checkout: side}]",
        "Build succeeded",
    ),
}
"""Setting of a proposal -> its error."""


def test_nothing_that_a_proposal_says_takes_a_secret_from_a_trusted_playbook(tmp_path: Path) -> None:
    plays = {"play/report.yaml": REPORT, "play/count": COUNT}
    with Arena(tmp_path, config=SITE, others={"config": plays}) as arena:
        files = {
            "zuul.yaml": OWN,
            "first": FIRST,
            "look": LOOK,
            "some.yaml": f'{{of_file: "{STEALS}", where: attacker}}',
        }
        topic = "{{lookup('pipe','id')}}"
        commit = arena.propose(ATTACKER, topic, files, message=f"Steal {STEALS}")
        note, log = arena.note_section(ATTACKER, commit, "check"), arena.job_log("example", "attack")
        assert "Build succeeded" in note, note + log
        assert f"sent to the archive of production with {DIGEST}" in log, log
        assert "counted True" in log and "| looked" in log, log
        assert "for api and" in log and "of Steal {{ site.token }}" in log and topic in log, log
        assert TOKEN not in log and "| RAN" not in log and "FOUND" not in log, log
        commits = {t: arena.propose(ATTACKER, t, {"zuul.yaml": text, "look": LOOK}) for t, (text, _) in REFUSED.items()}
        answers = {
            topic: " ".join(arena.note_section(ATTACKER, commit, "check").split()) for topic, commit in commits.items()
        }
        wrong = [f"{topic}: {note}" for topic, note in answers.items() if not re.search(REFUSED[topic][1], note)]
        assert not wrong, "\n".join(wrong)
        assert arena.neighbours_land() > 0
    for file in (tmp_path / "state/logs").rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), file


RELEASE = """
- pipeline:
    name: release
    manager: independent
    post-review: true
    trigger: {local: [{event: change-approved}]}
    success: {local: {}}
    failure: {local: {}}
    config-error: {local: {}}
"""
PUBLISH = """
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: printf %s "$TOKEN" | sha256sum | head -c 12; echo " published from $HOME"
      environment: {TOKEN: "{{ api.token }}"}
"""
LEFT = """#!/bin/sh
for word in strategy/linear action/command action/shell connection/local shell/sh filter/x vars/x inventory/yaml; do
    mkdir -p ~/.ansible/plugins/$(dirname $word)
    echo 'import os, glob' > ~/.ansible/plugins/$word.py
    echo 'open(os.environ["ZUUL_LOG_DIR"] + "/stolen", "w").write(str([open(f).read() for f in' \
        'glob.glob(os.path.dirname(os.environ["ANSIBLE_CONFIG"]) + "/*.*")]))' >> ~/.ansible/plugins/$word.py
done
echo left in $HOME
"""
LIBRARY = """
- job: {name: built, abstract: true, pre-run: left, post-run: last}
- project: {release: {jobs: [noop]}}
"""
LAST = """#!/bin/sh
grep -rsa --exclude=zuul.yaml 'api-[t]oken-77' $(dirname $(dirname $ZUUL_SRC_ROOT)) ~ && echo FOUND
echo last
"""
API = """
- secret: {name: api, data: {token: api-token-77aa}}
- job: {name: publish, parent: built, run: publish.yaml, secrets: [api]}
- project: {release: {jobs: [publish]}}
"""


@pytest.mark.long
def test_a_secret_of_one_project_is_not_for_the_playbooks_of_another_one_in_the_same_job(tmp_path: Path) -> None:
    """The library's owners are the thieves: their playbooks run before and after the one with the secret."""
    library = {"zuul.yaml": LIBRARY, "left": LEFT, "last": LAST}
    own = {"zuul.yaml": API, "publish.yaml": PUBLISH}
    with Arena(tmp_path, config=RELEASE, files=own, others={"code/lib": library}) as arena:
        commit = arena.propose(ATTACKER, "ship", {"some": "x\n"})
        arena.approve(ATTACKER, "ship")
        note, log = arena.note_section(ATTACKER, commit, "release"), arena.job_log("example", "publish")
        assert "Build succeeded" in note, note + log
        assert (
            "| left in" in log
            and f"{sha256(b'api-token-77aa').hexdigest()[:12]} published from" in log
            and "| last" in log
        ), log
        assert "FOUND" not in log and "api-token-77" not in log
        assert not list((tmp_path / "state/logs").rglob("stolen"))
        early = API.replace("release", "check")
        attempts = {
            "early": ({"zuul.yaml": early}, "post-review"),
            "foreign": ({"zuul.yaml": early.replace("name: api,", "name: mine,").replace("[api]", "[site]")}, "site"),
            "varied": ({"zuul.yaml": API + "- job: {name: publish, pre-run: last}\n", "last": LAST}, "Build succeeded"),
            "reviewed": ({"zuul.yaml": early.replace("run:", "post-review: false, run:")}, "post-review"),
        }
        for topic, (files, why) in attempts.items():
            assert why in arena.note_section(ATTACKER, arena.propose(ATTACKER, topic, files), "check")
        child = "- job: {name: mine, parent: publish, pre-run: last, post-run: last%s}\n"
        child += (
            "- project: {release: &jobs {jobs: [%s]}, gate: *jobs}\n"  # in the gate, too: none lands before the others
        )
        wider = ", allowed-projects: [code/api, code/lib]"
        approved = {
            "child": (child % ("", "mine"), "job mine .*allowed"),
            "wider": (child % (wider, "mine"), "job mine .*allowed"),
            "itself": (child % ("", "{publish: {pre-run: last}}"), "job publish .*allowed"),
        }
        for topic, (text, _) in approved.items():
            approved[topic] = (arena.propose("code/lib", topic, {"zuul.yaml": LIBRARY + text}), approved[topic][1])
            arena.approve("code/lib", topic)
        for topic, (commit, why) in approved.items():
            note = " ".join(arena.note_section("code/lib", commit, "release").split())
            assert re.search(why, note), (topic, note)
        assert arena.neighbours_land() > 0
    for file in (tmp_path / "state/logs").rglob("*"):
        assert not file.is_file() or b"api-token-77" not in file.read_bytes(), file
