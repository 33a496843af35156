"""Test that secret data of a job reaches only the playbooks of dependent jobs, and is written nowhere else."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.config.model import Playbook
from headgate.gate.state.returns import Sealed

from .bench import Alone, Bench
from .test_secrets import Keys, everything_below

TOKEN = "tr3asure-9f2c"
DIGEST = sha256(TOKEN.encode()).hexdigest()
RETURNS = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - copy:
        content: '{{"registry": {{"user": "ada"}}, "of_file": 1}}'
        dest: "{{{{ zuul.executor.work_root }}}}/s.json"
      no_log: true
    - zuul_return:
        data: {{open: 1}}
        secret_data: {{registry: {{token: {TOKEN}}}}}
    - zuul_return: {{secret_file: "{{{{ zuul.executor.work_root }}}}/s.json"}}
    - zuul_return: {{secret_data: just text}}
      ignore_errors: true
    - command: echo shown {TOKEN}
"""
AND_SHOWS = f"""
echo '{{"of_program": true}}' | headgate-return --secret --json - && echo later {TOKEN}
headgate-return --secret x={TOKEN} 2>&1 | grep -o 'must be passed as --secret --json FILE'
"""


def opened(sealed: Sealed | None) -> Any:
    assert sealed is not None
    return json.loads(bytes.fromhex(sealed.box)[::-1])


def sealed(found: dict[str, Any]) -> Sealed:
    return Sealed("local", "code", box=json.dumps(found).encode()[::-1].hex())


@pytest.mark.long
@pytest.mark.sampled
@pytest.mark.parametrize("exposure", ["ignore", "redact"])
async def test_secret_data_that_a_job_returns_is_sealed_and_stored_nowhere_else(tmp_path: Path, exposure: str) -> None:
    bench = Bench(tmp_path, "bwrap", keys=Keys())
    books = bench.script("returns.yaml", RETURNS), bench.script("shows", AND_SHOWS)
    outcome = await bench.build(run=books, secret_exposure=exposure)
    assert outcome.result == "SUCCESS" and outcome.data == {"open": 1}, bench.log
    wanted = {"registry": {"token": TOKEN, "user": "ada"}, "of_file": 1, "of_program": True}
    assert opened(outcome.secret) == wanted
    assert "zuul_return: secret_data must be a mapping" in bench.log
    assert "| must be passed as --secret --json FILE" in bench.log
    assert (f"| later {TOKEN}" in bench.log) == (exposure == "ignore"), "as with secrets of projects"
    logs = bench.runner.log_root / bench.id
    texts = {file.name: file.read_text() for file in logs.rglob("*") if file.is_file()}
    assert [name for name, text in texts.items() if name != "job-output.txt" and TOKEN in text] == []
    assert "shown [redacted]" in texts["job-output.json"]


async def test_a_job_that_returns_others_each_time_has_a_bounded_number_of_them_looked_for(tmp_path: Path) -> None:
    bench, books = Bench(tmp_path), list[Playbook]()
    for name in "abc":
        text = json.dumps({"data": {"zuul": {"redactions": [f"treasure-{name}-{n:02}" for n in range(100)]}}})
        books.append(bench.script(name, f"echo '{text}' > \"$HEADGATE_RESULT\""))
    shows = bench.script("shows", "echo They were treasure-a-07, treasure-b-07 and treasure-c-07.")
    await bench.build(run=(*books, shows), secret_exposure="redact")
    assert "They were [redacted], [redacted] and treasure-c-07." in bench.log


READS = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - assert:
        that:
          - registry.token | hash('sha256') == '{DIGEST}'
          - of_job == 'job' and of_file == 'file' and data == 'data' and site == 'site'
          - by_default | default('-') == '-'
          - zuul.job == 'job' and nodepool != 'x'
    - debug: {{msg: "had %(word)s {{{{ braces | length }}}} {{{{ ansible_remote_user | default('-') | length }}}}"}}
    - command: cat {{{{ zuul.executor.inventory_file }}}}
"""
LOOKS = f"""
python3 - <<'END'
import hashlib, json, os
told = json.load(open(os.environ["HEADGATE_VARS"]))
assert hashlib.sha256(told["registry"]["token"].encode()).hexdigest() == "{DIGEST}"
assert (told["of_job"], told["data"], told["zuul"]["job"]) == ("job", "data", "job")
print(told["registry"]["token"])
print("had by program", oct(os.stat(os.environ["HEADGATE_VARS"]).st_mode & 0o777))
END
"""
BRACES = "{{ lookup('pipe', 'echo RAN') }}"
HANDED = {
    "registry": {"token": TOKEN}, "of_job": "secret", "of_file": "secret", "data": "secret", "site": "secret",
    "braces": BRACES, "ansible_remote_user": "mallory", "ansible_become": True, "zuul": {}, "nodepool": "x",
    "no-name": 1,
}  # fmt: skip


@pytest.mark.long
async def test_dependent_jobs_get_returned_secrets_with_the_lowest_precedence(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap", keys=Keys(), keep_work_dir=True, variables={"site": "site"})
    bench.script("of_file.yaml", "of_file: file\n")
    live, careful = (bench.script(f"{word}.yaml", READS % {"word": word}) for word in ("live", "careful"))
    given = {
        "parent_data": {"data": "data"},
        "parent_secrets": (sealed({"registry": {"token": "older"}}), sealed(HANDED)),
    }
    outcome = await bench.build(
        run=(live, bench.script("looks", LOOKS)), post_run=(replace(careful, trusted=True),), spec=given,
        vars={"of_job": "job", "ansible_become": False, "of_file": "file"}, secret_exposure="redact",
    )  # fmt: skip
    assert outcome.result == "SUCCESS", bench.log
    assert f"had live {len(BRACES)} 7" in bench.log and f"had careful {len(BRACES)} 1" in bench.log, "no template"
    assert "| had by program 0o600" in bench.log and "| [redacted]" in bench.log
    left = everything_below(bench.work.parent) + everything_below(bench.runner.log_root)
    assert TOKEN.encode() not in left and b"| RAN" not in left


async def test_a_job_that_pauses_passes_its_secret_data_on_when_it_pauses(tmp_path: Path) -> None:
    class Hears(Alone):
        async def pause(self, data: dict[str, Any], secret: Sealed | None = None) -> None:
            received.append((data, opened(secret)))

    received = list[Any]()
    bench = Bench(tmp_path, keys=Keys())
    pauses = f'headgate-return zuul.pause=true; echo \'{{"port": "{TOKEN}"}}\' | headgate-return --secret --json -'
    outcome = await bench.build(run=(bench.script("serves", pauses),), contact=Hears())
    assert outcome.result == "SUCCESS" and received == [({"zuul": {"pause": True}}, {"port": TOKEN})]


async def test_an_executor_without_keys_neither_takes_nor_gives_any(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    returns = bench.script("returns", f'echo \'{{"a": "{TOKEN}"}}\' | headgate-return --secret --json -; echo ran')
    outcome = await bench.build(run=(returns,))
    assert outcome.result == "FAILURE" and "secret data cannot be returned here: this executor" in outcome.error
    assert outcome.secret is None and TOKEN not in bench.log and "| ran" in bench.log
    outcome = await bench.build(run=(returns,), spec={"parent_secrets": (sealed(HANDED),)})
    assert outcome.result == "ERROR" and "secret data of a parent job cannot be decrypted here" in outcome.error
    assert "| ran" not in bench.log
