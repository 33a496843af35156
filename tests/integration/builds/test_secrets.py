"""Test that secrets reach only the playbook that they are for."""

from __future__ import annotations

import asyncio
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from headgate.adapters.process.processes import processes_of
from headgate.adapters.process.sandbox import Paths
from headgate.config.model import Playbook, PlaybookSecret
from headgate.gate.state.returns import Sealed
from headgate.ports.secrets import SecretError

from .bench import PROJECT, Bench

TOKEN = "s3cr3t {{ not a template }}"
ENCRYPTED = {"!encrypted/pkcs1-oaep": ["base64"]}


class Keys:
    """Decrypt every value of one project."""

    async def opened(self, connection: str, project: str, data: Any) -> Any:
        if (connection, project) != ("local", "code"):
            raise SecretError(f"{project} ({connection}) has no key here")
        return {name: TOKEN if value == ENCRYPTED else value for name, value in data.items()}

    async def sealed(self, connection: str, project: str, plain: bytes) -> Sealed:
        return Sealed(connection, project, box=plain[::-1].hex())

    async def unsealed(self, sealed: Sealed) -> bytes:
        return bytes.fromhex(sealed.box)[::-1]


def with_secret(book: Playbook, *, project: str = PROJECT, oidc: dict[str, Any] | None = None) -> Playbook:
    secret = PlaybookSecret("pypi", project, "local", {"user": "ada", "token": ENCRYPTED}, oidc)
    return replace(book, secrets=(secret,))


def everything_below(root: Path) -> bytes:
    return b"".join(file.read_bytes() for file in root.rglob("*") if file.is_file())


READS = """
exec python3 - <<'END'
import json, os
file = os.environ["HEADGATE_VARS"]
found = json.load(open(file))["pypi"]
print("token of", len(found["token"]) if isinstance(found, dict) else found, oct(os.stat(file).st_mode & 0o777))
END
"""


@pytest.mark.parametrize("sandbox", ["none", "bwrap"])
async def test_an_executable_has_its_secrets_and_the_next_one_has_not(tmp_path: Path, sandbox: str) -> None:
    bench = Bench(tmp_path, sandbox, keys=Keys(), keep_work_dir=True)
    first, second = bench.script("first", READS), bench.script("second", READS)
    outcome = await bench.build(run=(with_secret(first), second), vars={"pypi": "no secret"})
    assert outcome.result == "SUCCESS", bench.log
    assert f"| token of {len(TOKEN)} 0o600" in bench.log
    assert "| token of no secret 0o600" in bench.log
    assert b"s3cr3t" not in everything_below(bench.work.parent) + everything_below(bench.runner.log_root)


PLAY = f"""
- hosts: localhost
  gather_facts: false
  tasks:
    - assert:
        that:
          - pypi.user == 'ada'
          - pypi.token | hash('sha256') == '{sha256(TOKEN.encode()).hexdigest()}'
          - flavour == 'extra'
    - shell: echo $TOKEN
      environment: {{TOKEN: "{{{{ pypi.token }}}}"}}
      no_log: true
"""


@pytest.mark.long
async def test_a_playbook_of_ansible_has_its_secrets_as_they_are(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keys=Keys(), keep_work_dir=True)
    books = (with_secret(bench.script("play.yaml", PLAY)), bench.script("without.yaml", PLAY))
    outcome = await bench.build(run=books, extra_vars={"flavour": "extra"}, vars={"flavour": "plain"})
    assert outcome.result == "FAILURE"
    assert "RUN END: good [play.yaml]" in bench.log, bench.log
    assert "'pypi' is undefined" in bench.log
    assert b"s3cr3t" not in everything_below(bench.work.parent) + bench.log.encode()


@pytest.mark.parametrize(
    ("exposure", "result", "shown"),
    [("ignore", "SUCCESS", TOKEN), ("redact", "SUCCESS", "[redacted]"), ("fail", "SECRET_EXPOSURE", "[redacted]")],
)
async def test_a_secret_in_the_log_is_treated_as_the_job_demands(
    tmp_path: Path, exposure: str, result: str, shown: str
) -> None:
    bench = Bench(tmp_path, keys=Keys())
    shows = bench.script("shows", f'echo "it is {TOKEN}" >&2; headgate-return "found={TOKEN}" zuul.log_url=http://logs')
    outcome = await bench.build(run=(with_secret(shows),), secret_exposure=exposure)
    assert outcome.result == result
    assert f"| it is {shown}" in bench.log
    assert outcome.data == {"found": shown, "zuul": {"log_url": "http://logs"}}
    assert (TOKEN in bench.log) == (exposure == "ignore")
    assert TOKEN not in outcome.excerpt


async def test_a_secret_is_not_in_the_lines_that_a_report_shows(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keys=Keys())
    shows = bench.script("shows", f'echo "ERROR: it is {TOKEN}"; exit 1')
    outcome = await bench.build(run=(with_secret(shows),))
    assert outcome.result == "FAILURE" and outcome.excerpt == "ERROR: it is [redacted]", bench.log


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        ({"project": "h/other"}, "other (local) has no key here"),
        ({"oidc": {"ttl": 60}}, "OpenID Connect token, which Headgate does not issue"),
    ],
)
async def test_a_secret_that_cannot_be_opened_is_an_error_that_says_so(tmp_path: Path, secret: Any, why: str) -> None:
    bench = Bench(tmp_path, keys=Keys())
    outcome = await bench.build(run=(with_secret(bench.script("job", "echo ran"), **secret),))
    assert outcome.result == "ERROR" and why in outcome.error
    assert "| ran" not in bench.log


async def test_an_executor_without_keys_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    outcome = await bench.build(run=(with_secret(bench.script("job", "echo ran")),))
    assert outcome.result == "ERROR" and "this executor has no keys" in outcome.error


@pytest.mark.long
async def test_files_of_a_playbook_with_secrets_reach_only_playbooks_with_the_same_secrets(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "bwrap", keys=Keys(), keep_work_dir=True)
    own = with_secret(bench.script("own", "echo $(cat $HEADGATE_VARS) > $HOME/left; cp $HEADGATE_VARS $TMPDIR"))
    again = with_secret(bench.script("again", "grep -q 's3cr[3]t' $HOME/left && ls $TMPDIR && echo still there"))
    other = bench.script("other", "ls -A $HOME $TMPDIR; ls $(dirname $(dirname $HOME)); ls /proc | grep -c '^[0-9]'")
    outcome = await bench.build(run=(own, again, other), post_run=(replace(other, trusted=True),))
    assert outcome.result == "SUCCESS" and "still there" in bench.log, bench.log
    assert bench.log.count("| left") == 0 and "1-untrusted" not in bench.log
    assert b"s3cr3t" not in everything_below(bench.work.parent) and (bench.work / "src").is_dir()


SHOWS_NOTHING = """
- hosts: localhost
  gather_facts: false
  tasks:
    - shell: head -c 5 > $HOME/piece; echo begun; read x < %s
      args: {stdin: "{{ pypi.token }}"}
    - copy: {content: "{{ pypi.token }}", dest: "{{ lookup('env', 'HOME') }}/token"}
      diff: true
    - command: /nowhere/to/be/found
      ignore_errors: true
      args: {stdin: "{{ pypi.token }}"}
    - template: {src: "{{ pypi.token }}/missing", dest: /tmp/x}
      ignore_errors: true
      no_log: true
"""


@pytest.mark.long
async def test_no_command_line_and_no_environment_has_a_secret(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "go")
    (tmp_path / "go").chmod(0o666)
    bench = Bench(tmp_path, "bwrap", keys=Keys(), untrusted=Paths(writable=(tmp_path / "go",)))
    play = bench.script("play.yaml", SHOWS_NOTHING % (tmp_path / "go"))
    building = bench.start(run=(with_secret(play),))
    await bench.says("localhost | begun")
    seen = [(p, p.cmdline(), p.environ()) for p in map(psutil.Process, processes_of(bench.id))]
    assert len(seen) > 3 and not [words for _, words, _ in seen if "s3cr3t" in " ".join(words)]
    assert not [words for _, words, environment in seen if "s3cr3t" in " ".join(environment.values())]
    await asyncio.to_thread((tmp_path / "go").write_text, "on\n")
    assert (await building).result == "SUCCESS", bench.log
    assert "s3cr3t" not in bench.log
