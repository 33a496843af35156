"""Test that secret data of jobs reaches only dependent jobs, whatever a proposal's own jobs request or return."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .arena import ATTACKER, Arena

TOKEN = "handed-token-41d7"
OWNED = "owned-token-93ab"
GUARDED = "- job: {name: guarded, run: [play/hands.yaml]}\n"
HANDS = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - zuul_return: {{secret_data: {{guarded: {{token: {TOKEN}}}}}}}
    - zuul_return: {{data: {{zuul: {{warnings: [guarded has ended]}}}}}}
"""
OWN = """
- job: {name: forger, run: forges, secret-exposure: redact}
- job: {name: loose, run: looks, dependencies: [forger]}
- job: {name: beside, run: looks}
- job: {name: child, run: uses, dependencies: [guarded]}
- project: {check: {jobs: [guarded, forger, loose, beside, child]}}
"""
FORGES = """#!/bin/sh
python3 - > forged <<'END'
import json
stolen = json.load(open("encrypted.json"))
lines = "\\n".join(f"line {n} of very many" for n in range(2_000))
print(json.dumps({"stolen": stolen, "lines": lines, "guarded": {"token": "{{ lookup('pipe', 'echo RAN') }}"}}))
END
headgate-return --secret --json forged
"""
LOOKS = """#!/bin/sh
cat $HEADGATE_VARS; echo; cat /proc/*/environ /proc/*/cmdline | tr '\\0' '\\n'
grep -rsa 'handed-[t]oken' $(dirname $(dirname $ZUUL_SRC_ROOT)) /tmp && echo FOUND
echo looked
"""
USES = """#!/bin/sh
python3 -c 'import json, os; print("has", len(json.load(open(os.environ["HEADGATE_VARS"]))["guarded"]["token"]))'
"""
PAGES = ("builds", "buildsets", "status", "jobs", "system-events?limit=100")


def encrypted(arena: Arena) -> list[str]:
    """A secret of the attacker's project, as everybody can read it in its repository."""
    program, root = str(Path(sys.executable).with_name("headgate")), arena.headgate.root
    url = ["--url", arena.headgate.url, "--tenant", "example", "--project", ATTACKER]
    words = ["encrypt", *url, "--secret-name", "x", "--field-name", "y"]
    (root / "plain").write_text(OWNED)
    done = subprocess.run([program, *words, "--infile", "plain"], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    _, _, pieces = done.stdout.partition("!encrypted/pkcs1-oaep")
    return [line.strip().removeprefix("- ") for line in pieces.splitlines() if line.strip()]


@pytest.mark.long
def test_only_dependent_jobs_get_secret_data_and_it_decrypts_no_other_secret(tmp_path: Path) -> None:
    settings = "[keystore]\npassword = correct horse\n"
    others = {"config": {"play/hands.yaml": HANDS}}
    with Arena(tmp_path, config=GUARDED, others=others, settings=settings) as arena:
        forged = json.dumps({"!encrypted/pkcs1-oaep": encrypted(arena)})
        files = {"zuul.yaml": OWN, "forges": FORGES, "looks": LOOKS, "uses": USES, "encrypted.json": forged}
        commit = arena.propose(ATTACKER, "steal", files)
        note = arena.note_section(ATTACKER, commit, "check")
        assert "Build succeeded" in note, note + arena.log
        logs = {name: arena.job_log("example", name) for name in ("guarded", "forger", "loose", "beside", "child")}
        assert f"| has {len(TOKEN)}" in logs["child"], "whoever depends on it has it, as in Zuul"
        assert "| looked" in logs["loose"] and "| looked" in logs["beside"]
        assert "!encrypted/pkcs1-oaep" in logs["loose"], "it is handed on as it was returned"
        for name, log in logs.items():
            assert not any(word in log for word in (TOKEN, OWNED, "FOUND", "| RAN")), f"{name}: {log}"
        pages = [json.dumps(arena.headgate.get(f"/api/tenant/example/{page}")) for page in PAGES]
        assert "guarded" in pages[0] and TOKEN not in "".join((*pages, note))
        assert arena.neighbours_land() > 0
    for file in (tmp_path / "state").rglob("*"):
        assert not file.is_file() or TOKEN.encode() not in file.read_bytes(), file
