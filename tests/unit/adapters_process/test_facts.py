"""Test that facts of hosts pass from one playbook of a build to the next as far as rights allow, whatever a playbook
writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.process.context import hostvars as module
from headgate.adapters.process.context.hostvars import FactCache
from headgate.adapters.process.context.places import PlaybookContext

SECRET = "s3cr3t-5c1f"
PLAIN, TRUSTED = PlaybookContext(Path("1"), False), PlaybookContext(Path("2"), True)
OWN, SITE = (
    PlaybookContext(Path("3"), False, frozenset([b"own"])),
    PlaybookContext(Path("4"), True, frozenset([b"site"])),
)
EVERYBODY = (PLAIN, TRUSTED, OWN, SITE)


def left(place: Path, **hosts: Any) -> Path:
    """Write the files that Ansible 2.18 leaves, and everything that a playbook could write in their place."""
    place.mkdir()
    for host, content in hosts.items():
        (place / host).write_text(content if isinstance(content, str) else json.dumps(content))
    return place


def newer(data: dict[str, Any]) -> str:
    """Encode facts as Ansible 2.19 writes them."""
    return json.dumps({"__payload__": json.dumps(data)})


def tagged(value: Any) -> dict[str, Any]:
    tags = [{"__ansible_type": "TrustedAsTemplate"}, {"path": "x", "line_num": 1, "__ansible_type": "Origin"}]
    return {"value": value, "tags": tags, "__ansible_type": "_AnsibleTaggedStr"}


@pytest.mark.parametrize(
    ("by", "known", "readers"),
    [
        (PLAIN, [PLAIN], [TRUSTED, OWN, SITE]),
        (TRUSTED, [PLAIN, TRUSTED], [OWN, SITE]),
        (OWN, [PLAIN, OWN], [TRUSTED, SITE]),
        (SITE, [PLAIN, TRUSTED, SITE], [OWN]),
    ],
)
def test_contexts_with_the_same_or_fewer_rights_get_facts_and_others_get_variables(
    tmp_path: Path, by: PlaybookContext, known: list[PlaybookContext], readers: list[PlaybookContext]
) -> None:
    facts = FactCache()
    assert facts.learn(by, left(tmp_path / "f", node={"tool": "/bin/x", "ansible_distribution": "Debian"}), []) == []
    for context in EVERYBODY:
        expected = {"node": {"tool": "/bin/x", "ansible_distribution": "Debian"}} if context in known else {}
        assert facts.known(context) == expected
        assert facts.from_fewer_rights(context) == ({"node": {"tool": "/bin/x"}} if context in readers else {})


def test_values_with_a_special_meaning_to_ansible_become_text_or_are_omitted(tmp_path: Path) -> None:
    values = {
        "template": tagged("{{ lookup('pipe', 'id') }}"),
        "deep": tagged({"a": [tagged("{{ x }}"), {"__ansible_unsafe": "{{ y }}"}]}),
        "vault": {"__ansible_vault": "$ANSIBLE_VAULT;1.1"},
        "date": {"iso8601": "2026-01-01", "__ansible_type": "AnsibleSerializableDate"},
        "holds": {"date": {"__ansible_type": "x"}},
        **{name: "evil" for name in ("ansible_ssh_executable", "ansible_python_interpreter", "ansible_become_exe")},
        **{name: "evil" for name in ("zuul", "nodepool", "unsafe_vars", "discovered_interpreter_python", "_x")},
    }
    facts = FactCache()
    facts.learn(PLAIN, left(tmp_path / "f", s1_node=newer(values)), [])
    texts = {"template": "{{ lookup('pipe', 'id') }}", "deep": {"a": ["{{ x }}", "{{ y }}"]}}
    assert facts.from_fewer_rights(TRUSTED) == {"node": texts}
    facts.offer(PLAIN, tmp_path / "again")
    (file,) = (tmp_path / "again").iterdir()
    again = json.loads(json.loads(file.read_text())["__payload__"])
    assert file.name == "s1_node" and {name: again[name] for name in texts} == texts
    assert not {"vault", "date", "holds"} & again.keys() and "__ansible" not in file.read_text()


def test_a_fact_that_contains_a_secret_reaches_only_playbooks_that_have_the_secret(tmp_path: Path) -> None:
    facts = FactCache()
    wrote = {"node": {"token": [f"x {SECRET}"], "tool": "x", SECRET: 1}}
    facts.learn(SITE, left(tmp_path / "f", **wrote), [SECRET])
    assert facts.known(SITE) == wrote
    assert facts.known(PLAIN) == facts.known(TRUSTED) == facts.from_fewer_rights(OWN) == {"node": {"tool": "x"}}


def test_the_newest_fact_counts_and_cleared_facts_are_forgotten(tmp_path: Path) -> None:
    facts = FactCache()
    facts.learn(TRUSTED, left(tmp_path / "1", node={"a": 1, "b": 1}, other={"c": 1}), [])
    facts.learn(PLAIN, left(tmp_path / "2", node={"a": 2}), [])
    assert facts.known(PLAIN) == {"node": {"a": 2}, "other": {}}
    assert facts.known(TRUSTED) == {"node": {"a": 1, "b": 1}, "other": {"c": 1}}
    assert facts.from_fewer_rights(TRUSTED)["node"] == {"a": 2}


def test_facts_gathered_about_the_executor_stay_in_their_context(tmp_path: Path) -> None:
    facts = FactCache(("here",))
    gathered = {"ansible_user_dir": "/home", "module_setup": True, "_ansible_facts_gathered": True, "set": 1}
    facts.learn(TRUSTED, left(tmp_path / "1", here=gathered, there=gathered), [])
    assert facts.known(TRUSTED) == {"here": gathered, "there": gathered}
    assert facts.known(PLAIN) == {"here": {"set": 1}, "there": gathered}


DEEP = '{"a": ' + "[" * 350 + "]" * 350 + "}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nothing",
        "[" * 100_000,
        '{"a": ' * 50_000,
        newer({})[:-3],
        '{"__payload__": 1}',
        '{"a": "\\ud800"}',
        DEEP,
    ],
)
def test_garbage_is_named_and_takes_nothing_from_others(tmp_path: Path, text: str) -> None:
    facts = FactCache()
    facts.learn(PLAIN, left(tmp_path / "1", one={"a": 1}, two={"b": 1}), [])
    (problem,) = facts.learn(PLAIN, left(tmp_path / "2", one=text, two={"b": 2}), [])
    assert problem.startswith("The facts of one are not stored: ")
    assert facts.known(PLAIN) == {"one": {"a": 1}, "two": {"b": 2}}


def test_links_directories_and_facts_beyond_the_limits_are_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIZE_MAX_BYTES", 1_000)
    monkeypatch.setattr(module, "HOSTS_MAX", 4)
    (tmp_path / "mine").write_text('{"stolen": 1}')
    place = left(tmp_path / "f", c={"a": "x" * 2_000}, d={"a": 1}, e={"a": 1})
    (place / "a").symlink_to(tmp_path / "mine")
    (place / "b").mkdir()
    facts = FactCache()
    assert len(facts.learn(PLAIN, place, [])) == 4 and facts.known(PLAIN) == {"d": {"a": 1}}
    (tmp_path / "link").symlink_to(place)
    assert facts.learn(PLAIN, tmp_path / "link", []) and facts.learn(PLAIN, tmp_path / "none", []) == []


@pytest.mark.parametrize("host", ["", "..", ".", "x" * 240])
def test_a_fact_file_with_an_invalid_name_does_not_stop_later_playbooks(tmp_path: Path, host: str) -> None:
    facts, place = FactCache(), left(tmp_path / "f")
    for name in (f"s1_{host}", "s123456789_one"):
        (place / name).write_text(newer({"a": 1}))
    (problem,) = facts.learn(PLAIN, place, [])
    assert problem.endswith("that is not the name of a host") and facts.known(PLAIN) == {"one": {"a": 1}}
    facts.offer(PLAIN, tmp_path / "next")
    assert [one.name for one in (tmp_path / "next").iterdir()] == ["s123456789_one"]
