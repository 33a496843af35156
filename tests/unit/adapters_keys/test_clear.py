"""Test how decrypted secrets are written to files and removed from text."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.adapters.keys.clear import Censor, Clear, write_private


def test_the_repr_of_decrypted_secrets_hides_their_values():
    assert repr(Clear(pypi={"token": "s3cr3t"})) == "Clear(pypi)"
    assert list(Clear(a={"b": ["x", 1, {"c": "y"}]}).texts) == ["x", "y"]


def test_a_private_file_takes_the_place_of_a_link(tmp_path):
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "vars").symlink_to(tmp_path / "mine")
    write_private(tmp_path / "vars", b"clear")
    assert (tmp_path / "mine").read_text() == "kept"
    assert (tmp_path / "vars").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("secret", "line", "shown"),
    [
        ("s3cr3t", b"a s3cr3t and a s3cr3t", b"a [redacted] and a [redacted]"),
        ("first line\nsecond line", b"second line", b"[redacted]"),
        ('say "it"', json.dumps('say "it"').encode(), b'"[redacted]"'),
        ("schl\u00fcssel", json.dumps("schl\u00fcssel").encode(), b'"[redacted]"'),
        ("yes", b"yes", b"yes"),
        ("s3cr3t", b"a \x1b[01;31m\x1b[Ks3\x1b[m\x1b[Kcr3t", b"a [redacted]"),  # as grep prints its matches
        ("s3cr3t", b"\x1b[1ms3cr3t\x1b[m", b"\x1b[1m[redacted]\x1b[m"),
        ("s3cr3t", b"\x1b[1mpublic\x1b[m", b"\x1b[1mpublic\x1b[m"),
    ],
)
def test_a_secret_is_found_however_it_is_shown(secret, line, shown):
    censor = Censor()
    censor.learn([secret])
    assert censor.line(line) == shown
    assert censor.found == (b"redacted" in shown)


@pytest.mark.long
@pytest.mark.heavy
@given(st.text(min_size=8, max_size=40).filter(lambda text: len(text.strip()) >= 8), st.binary(max_size=5), st.binary())
def test_a_secret_is_found_in_the_forms_that_programs_give_it(secret, before, after):
    assume("\n" not in secret and len(secret.splitlines()) == 1)
    censor = Censor()
    censor.learn([secret])
    plain = secret.encode("utf-8")
    around = base64.b64encode(before + plain + after), base64.urlsafe_b64encode(before + plain + after)
    for shown in (plain.hex().encode(), quote(secret, safe="").encode(), json.dumps(secret).encode(), *around):
        censor.found = False
        censor.line(b"it is " + shown)
        assert censor.found, shown


def test_the_longest_secret_is_removed_entirely():
    censor = Censor()
    censor.learn(["pass", "password"])
    assert censor.value({"password": ["the password", 1, None]}) == {"[redacted]": ["the [redacted]", 1, None]}


def test_without_secrets_nothing_is_touched():
    assert Censor().line(b"anything") == b"anything"
    assert Censor().value({"a": "anything"}) == {"a": "anything"}
