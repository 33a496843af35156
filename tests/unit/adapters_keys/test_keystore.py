"""Test keys of projects: only they open what they encrypt, and only with the password.

`exported.json` was written by `headgate keys export`, and `secret.json` holds a value for its key. Users have such
files, so they must stay readable for ever.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from headgate.adapters.keys import rsa
from headgate.adapters.keys.keystore import ENCRYPTED, KeyStore
from headgate.cli.keys.keys import Exported
from headgate.map.keys import KeyPair
from headgate.ports.secrets import SecretError
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store

HERE = Path(__file__).parent
PASSWORD = "correct horse"
SECRET = json.loads((HERE / "secret.json").read_text())
APP = ("hub", "org/app")


def pair() -> KeyPair:
    return msgspec.json.decode((HERE / "exported.json").read_bytes(), type=Exported).keys[0].pairs[0]


async def keystore(password: str = PASSWORD, *, store: Store | None = None, empty: bool = False) -> KeyStore:
    keys = KeyStore(store or Store(MemoryBackend()), password, lambda: 1_700_000_000_000)
    if not empty:
        await keys.put(*APP, (pair(),))
    return keys


async def test_old_ciphertext_is_decrypted_anywhere_in_the_data():
    data = {"user": "ada", "tokens": [SECRET, {"deep": SECRET}]}
    text = "open sesame " * 50
    assert await (await keystore()).opened(*APP, data) == {"user": "ada", "tokens": [text, {"deep": text}]}


@pytest.mark.parametrize("plain", ["", "short", "ä" * 235, "x" * 471, "line\n" * 1_000])
async def test_a_value_of_any_length_goes_and_comes(plain):
    pieces = rsa.encrypt(pair().public, plain.encode())
    assert len(pieces) == max(1, -(-len(plain.encode()) // 470))
    assert await (await keystore()).opened(*APP, {ENCRYPTED: pieces}) == plain


async def test_without_anything_encrypted_no_key_is_needed():
    assert await (await keystore("", empty=True)).opened(*APP, {"a": [1, None]}) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({ENCRYPTED: ["not base64!"]}, "it is not base64"),
        (
            {ENCRYPTED: ["AAAA"]},
            "another key than this project's; encrypt it again with `headgate encrypt`",
        ),
        ({ENCRYPTED: rsa.encrypt(pair().public, b"\xff")}, "not UTF-8; encrypt it as base64"),
    ],
)
async def test_a_secret_that_cannot_be_opened_is_reported_with_reason_and_remedy(value, words):
    with pytest.raises(SecretError, match=words):
        await (await keystore()).opened(*APP, value)


async def test_a_wrong_password_says_what_to_do():
    with pytest.raises(SecretError, match=r"Set \[keystore\] password to the one with which it was written"):
        await (await keystore("wrong")).opened(*APP, SECRET)


async def test_no_password_says_what_to_do():
    with pytest.raises(SecretError, match=r"set `password` in section \[keystore\]"):
        await (await keystore("")).opened(*APP, SECRET)
    with pytest.raises(SecretError, match=r"set `password` in section \[keystore\]"):
        await (await keystore("", empty=True)).public(*APP)


async def test_a_change_of_the_password_keeps_keys_created_meanwhile(monkeypatch):
    keys, every = await keystore(), KeyStore.every

    async def overtaken(self):
        found = await every(self)
        await self.rotate(*APP)
        return found

    monkeypatch.setattr(KeyStore, "every", overtaken)
    with pytest.raises(SecretError, match=r"changed the keys of org/app \(hub\) in the meantime"):
        await keys.repassword(PASSWORD, "battery staple")
    assert [one.version for one in await keys.pairs(*APP)] == [2, 1]


async def test_a_project_without_a_key_says_what_to_do():
    with pytest.raises(SecretError, match="import the key"):
        await (await keystore(empty=True)).opened(*APP, SECRET)


async def test_a_wrong_password_makes_no_second_key():
    keys = await keystore("wrong")
    with pytest.raises(SecretError, match="cannot be decrypted"):
        await keys.rotate(*APP)
    assert await keys.pairs(*APP) == (pair(),)


async def test_secret_data_of_jobs_goes_and_comes_and_is_opened_no_further():
    keys, plain = await keystore(), json.dumps({"stolen": SECRET, "size": "x" * 60_000}).encode()
    sealed = await keys.sealed(*APP, plain)
    assert (sealed.connection, sealed.project) == APP and b"xxxxxxxx" not in msgspec.json.encode(sealed)
    assert await keys.unsealed(sealed) == plain, "a secret of the project in it is as it was"
    assert (await keys.sealed(*APP, plain)).box != sealed.box


async def test_sealed_data_that_was_changed_or_is_another_project_s_is_not_opened():
    keys = await keystore()
    await keys.put("hub", "org/other", (pair(),))
    sealed = await keys.sealed(*APP, b"{}")
    other = await keys.sealed(*APP, b"{}")
    wrong = [
        msgspec.structs.replace(sealed, project="org/other"),
        msgspec.structs.replace(sealed, key=other.key),
        msgspec.structs.replace(sealed, key=()),
        msgspec.structs.replace(sealed, box="AAAA"),
        msgspec.structs.replace(sealed, box="no base64"),
    ]
    for one in wrong:
        with pytest.raises(SecretError, match=r"that a job of org/(app|other) .hub. returned cannot be decrypted"):
            await keys.unsealed(one)
    with pytest.raises(SecretError, match="there is no password for the key store"):
        await (await keystore("", empty=True)).sealed(*APP, b"{}")
