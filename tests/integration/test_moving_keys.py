"""Test that exported keys of Zuul are imported, and open existing secrets unchanged."""

from __future__ import annotations

import json
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from click.testing import CliRunner, Result

from headgate.base.errors import UserError
from headgate.cli.main import group
from headgate.testing.repositories import run_git

OLD, OURS = "the reference's password", "ours"


def openssl(*words: str, given: bytes = b"") -> bytes:
    """Use a recording of a foreign program as independent data."""
    return subprocess.run(["openssl", *words], input=given, capture_output=True, check=True).stdout


def a_key(password: str = OLD) -> str:
    """Return PKCS #1 in PEM, encrypted by its own header with AES-256-CBC."""
    pem = openssl("genrsa", "-traditional", "-aes256", "-passout", f"pass:{password}", "2048").decode()
    assert "BEGIN RSA PRIVATE KEY" in pem and "DEK-Info: AES-256-CBC" in pem
    return pem


def encrypted(pem: str, text: str, root: Path) -> str:
    """Encrypt it like Zuul: OAEP, MGF1 and SHA-1."""
    (root / "key").write_text(pem)
    how = ["-pkeyopt", "rsa_padding_mode:oaep", "-pkeyopt", "rsa_oaep_md:sha1", "-pkeyopt", "rsa_mgf1_md:sha1"]
    sealed = openssl(
        "pkeyutl", "-encrypt", "-inkey", str(root / "key"), "-passin", f"pass:{OLD}", *how, given=text.encode()
    )
    return b64encode(sealed).decode()


def path_of(connection: str, project: str, what: str = "secrets") -> str:
    return f"/keystorage/{connection}/{project.partition('/')[0]}/{quote_plus(project)}/{what}"


def record(*pems: str, schema: int = 1) -> dict[str, Any]:
    keys = [{"version": n, "created": 1_700_000_000 + n, "private_key": pem} for n, pem in enumerate(pems)]
    return {"schema": schema, "keys": keys}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A repository with a secret, and settings whose key store has the same password."""
    (tmp_path / "headgate.conf").write_text(
        "[scheduler]\ntenant_config = tenants.yaml\n[connection hub]\nbaseurl = repos\n"
        f"canonical_hostname = hub\n[keystore]\npassword = {OLD}\n"
    )
    (tmp_path / "tenants.yaml").write_text("- tenant: {name: acme, source: {hub: {config-projects: [org/my app]}}}\n")
    return tmp_path


def keys(here: Path, *words: str) -> Result:
    return CliRunner().invoke(group, ["keys", words[0], "--config", str(here / "headgate.conf"), *words[1:]])


def exported(here: Path, found: dict[str, Any]) -> str:
    file = here / "export.json"
    file.write_text(json.dumps({"keys": found}))
    return str(file)


def error_of(done: Result) -> str:
    assert isinstance(done.exception, UserError), done.output
    return str(done.exception)


@pytest.mark.long
def test_a_secret_opens_unchanged_with_whichever_key_encrypted_it(here: Path) -> None:
    older, newer = a_key(), a_key()
    pieces = [encrypted(older, "first, ", here), encrypted(older, "second", here)]
    text = "- secret:\n    name: login\n    data:\n      old: !encrypted/pkcs1-oaep\n"
    text += "".join(f"        - {piece}\n" for piece in pieces)
    text += f"      new: !encrypted/pkcs1-oaep {encrypted(newer, 'third', here)}\n"
    run_git("init", "-q", "-b", "master", str(here / "work"), at=here)
    (here / "work/zuul.yaml").write_text(text)
    run_git("add", ".", at=here / "work")
    run_git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x", at=here / "work")
    run_git("clone", "-q", "--bare", str(here / "work"), str(here / "repos/org/my app"), at=here)
    check = ["check", "--config", str(here / "headgate.conf")]
    assert keys(here, "import", exported(here, {path_of("hub", "org/other"): record(a_key())})).exit_code == 0
    assert "org/my app (hub) has no key here" in CliRunner().invoke(group, check).output
    done = keys(here, "import", exported(here, {path_of("hub", "org/my app"): record(older, newer)}))
    assert "Imported the keys of 1 projects" in done.output
    checked = CliRunner().invoke(group, check)
    assert checked.exit_code == 0, checked.output
    shown = [one for one in keys(here, "show").output.splitlines() if one.startswith("org/my app")]
    assert [one.split()[4] for one in shown] == ["2", "1"] and "(older)" in shown[1]
    assert "2023-11-14 22:13 UTC" in shown[1]
    assert "has key 3" in keys(here, "rotate", "org/my app").output
    assert CliRunner().invoke(group, check).exit_code == 0, "older ones go on to open"


@pytest.mark.long
def test_an_import_lists_keys_that_are_not_for_secrets_and_omits_them(here: Path) -> None:
    found = {
        path_of("hub", "org/app"): record(a_key()),
        path_of("hub", "org/app", "ssh"): record(a_key()),
        "/keystorage2/tenant/acme/ssh": record(a_key()),
        "/keystorage2/oidc/RS256": {"keys": "whatever"},
        path_of("gone", "single"): record(a_key()),
    }
    output = keys(here, "import", exported(here, found)).output
    assert "Imported the keys of 2 projects" in output
    for path in list(found)[1:4]:
        assert f"Left out {path}: " in output
    assert "has no connection gone;" in output
    assert [one.split()[0] for one in keys(here, "show").output.splitlines()] == ["single", "org/app"]


@pytest.mark.long
def test_again_is_the_same_and_another_key_is_not_replaced_by_mistake(here: Path) -> None:
    pem = a_key()
    file = exported(here, {path_of("hub", "org/app"): record(pem)})
    assert keys(here, "import", file).exit_code == 0
    before = keys(here, "show", "org/app").output
    assert keys(here, "import", file).exit_code == 0 and keys(here, "show", "org/app").output == before
    assert openssl("rsa", "-pubout", "-passin", f"pass:{OLD}", given=pem.encode()).decode() == before
    other = exported(here, {path_of("hub", "org/app"): record(a_key()), path_of("hub", "org/b"): record(pem)})
    assert "org/app (hub) already has another key; nothing was imported" in error_of(keys(here, "import", other))
    assert "org/b" not in keys(here, "show").output
    assert keys(here, "import", "--overwrite", other).exit_code == 0
    assert keys(here, "show", "org/app").output != before


@pytest.mark.long
def test_the_password_may_be_another_one(here: Path) -> None:
    file = exported(here, {path_of("hub", "org/app"): record(a_key())})
    conf = here / "headgate.conf"
    conf.write_text(conf.read_text().replace(OLD, OURS))
    assert "written with another password" in error_of(keys(here, "import", file))
    assert "No project has a key yet" in keys(here, "show").output
    (here / "old").write_text(f"{OLD}\n")
    assert keys(here, "import", "--password-file", str(here / "old"), file).exit_code == 0
    assert "has key 2" in keys(here, "rotate", "org/app").output, "what was taken opens with our password"


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "wrong", "why"),
    [
        (path_of("hub", "org/app"), {"schema": 2, "keys": []}, "its schema is 2"),
        (path_of("hub", "org/app"), {"schema": 1, "keys": []}, "its versions are"),
        (path_of("hub", "org/app"), [], "not a valid key record"),
        (path_of("hub", "org/app"), {"schema": 1, "keys": [{"version": 0}]}, "not a valid key record"),
        (path_of("hub", "org/app"), {"schema": 1, "keys": [{"version": "0", "created": 1, "private_key": "x"}]}, "0"),
        (path_of("hub", "org/app"), record("no key"), "cannot be decrypted"),
        (path_of("hub", "org/app"), {"schema": 1, "keys": record("a")["keys"] * 2}, "must be distinct numbers"),
        ("/keystorage/hub/other/org%2Fapp/secrets", record("x"), "is not below"),
        ("/keystorage/hub/org/org%2Fapp%1b[2J/secrets", {"schema": 3, "keys": []}, "its schema is 3"),
    ],
)
def test_errors_name_their_path_and_nothing_is_imported(here: Path, path: str, wrong: Any, why: str) -> None:
    error = error_of(keys(here, "import", exported(here, {path: wrong, path_of("hub", "org/fine"): record(a_key())})))
    assert why in error and error.isprintable()
    assert "No project has a key yet" in keys(here, "show").output


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": 1}', "null", "\x00", '{"keys": {"a": 1}'])
def test_a_file_that_is_no_export_is_recognised(here: Path, text: str) -> None:
    (here / "file").write_text(text)
    assert "this file was written neither by" in error_of(keys(here, "import", str(here / "file")))
