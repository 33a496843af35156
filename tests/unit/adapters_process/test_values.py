"""Test how a job's variables reach playbooks that have more rights."""

from __future__ import annotations

import pytest
import yaml

from headgate.adapters.process.context.hostvars import (
    JobVariables,
    evaluated,
    evaluation_arguments,
    for_ansible,
    literal,
    plain,
    templates,
)
from headgate.config.model import FrozenJob, NodeGroup, Nodeset
from headgate.gate.state.change import Change
from headgate.gate.state.works import BuildSpec


def variables_of(**job: object) -> JobVariables:
    nodes = Nodeset(groups=(NodeGroup("b", ("one",)), NodeGroup("a", ("one", "two"))))
    frozen = FrozenJob(name="job", nodeset=nodes, **job)
    change = Change("local", "h/code", "master", "topic", "1" * 40)
    spec = BuildSpec("b", "set", "t", "gate", "i", frozen, change, parent_data={"x": "returned", "r": 1})
    return JobVariables(spec, {"x": "file", "f": 1})


def test_the_strongest_value_of_each_is_that_of_the_nearest():
    variables = variables_of(
        vars={"x": "job", "v": 1},
        group_vars={"all": {"x": "all"}, "a": {"x": "a"}, "b": {"x": "b"}},
        host_vars={"two": {"x": "host"}},
        extra_vars={"e": 1},
    )
    assert variables.on("one") == {"x": "b", "r": 1, "f": 1, "v": 1, "e": 1}
    assert [variables.on(host)["x"] for host in ("two", "localhost")] == ["host", "all"]


def test_variables_that_choose_the_programs_of_ansible_are_left_out():
    variables = variables_of(
        vars={
            "ansible_become": True,
            "ansible_become_exe": "evil",
            "ansible_shell_type": "powershell",
            "ansible_winrm_scheme": "{{ evil }}",
            "ansible_ssh_args": "-F evil",
            "zuul": {},
            "mine": 1,
        },
        host_vars={"one": {"ansible_python_interpreter": "evil"}},
    )
    assert variables.harmless(["one"])["one"] == {
        "ansible_shell_type": "powershell",
        "mine": 1,
        "x": "file",
        "r": 1,
        "f": 1,
    }
    assert plain({"one": {"ansible_shell_type": "sh", "mine": 1}}) == {"one": {"mine": 1}}


@pytest.mark.parametrize(
    ("value", "is_one"),
    [("{{ x }}", True), ({"{% x": 1}, True), ([{"a": ["{#"]}], True), ("{ {", False), ({"a": [1, None]}, False)],
)
def test_templates_are_found_wherever_they_are(value, is_one):
    assert templates(value) is is_one


def test_a_literal_is_no_template_nor_are_its_names():
    text = for_ansible({"a": literal({"{{ k }}": ["{{ x }}", 1]}), "b": "{{ live }}"}).decode()
    assert text == 'a:\n  !unsafe "{{ k }}":\n  - !unsafe "{{ x }}"\n  - 1\nb: \'{{ live }}\'\n'


def test_odd_texts_survive_as_they_are():
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))
    odd = {"a": "\x07\x85\u2028 \U0001f600 'q' \"d\" \\ \n\ttab", "no": "no", "n": "012", "empty": ""}
    assert yaml.load(for_ansible(literal(odd)), Loader) == odd


def test_only_requested_values_of_an_evaluation_are_used():
    wanted = {"one": {"a": "{{ x }}", "b": 1, "ansible_shell_type": "sh"}}
    assert evaluation_arguments(wanted, "/p") == {
        "names": {"one": ["a", "b"]},
        "files": {"one": "/p/values-0"},
        "facts": [],
    }
    found = evaluated(b'{"a": "x", "ansible_become_exe": "evil", "c": 1}', wanted["one"])
    assert found == {"ansible_shell_type": "sh", "a": "x"}
    for wrong in (b"[", b"[1]", b"[" * 100_000):
        with pytest.raises(ValueError, match="cannot be read"):
            evaluated(wrong, wanted["one"])


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("{{ ansible_user_dir }}/x", True),
        ({"a": ["{{ ansible_facts.user_dir }}"]}, True),
        ({"{{ ansible_user_dir }}": 1}, True),
        ("ansible_user_dir", False),
        ("{{ x }}", False),
    ],
)
def test_facts_are_looked_up_where_a_template_names_one_and_not_of_the_executor(value: object, named: bool) -> None:
    wanted = {host: {"a": value} for host in ("one", "localhost")}
    assert evaluation_arguments(wanted, "/p", ["one"])["facts"] == (["one"] if named else [])
