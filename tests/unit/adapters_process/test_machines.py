"""Machines of an executor's own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headgate.adapters.nodes.machines import ListedMachine, ListedMachines, NoNode, read_machines
from headgate.base.errors import UserError
from headgate.config.model import Node, Nodeset
from headgate.map.records import OwnMachine

BIG, SMALL = Nodeset("big", (Node(("one",), "big"),)), Nodeset("small", (Node(("one",), "small"),))
TWO = Nodeset("two", (Node(("one", "other"), "small"),))


async def test_the_first_nodeset_that_the_machines_can_serve_is_used() -> None:
    machines = ListedMachines((ListedMachine("m", ("small",)),))
    async with machines.take(BIG, TWO, SMALL) as taken:
        assert taken == (SMALL, {"one": {"ansible_host": "m"}}, ("m",))


async def test_a_nodeset_whose_machines_are_busy_is_waited_for() -> None:
    machines, order = ListedMachines((ListedMachine("b", ("big",)), ListedMachine("s", ("small",)))), list[str]()

    async def one(name: str) -> None:
        async with machines.take(BIG, SMALL) as taken:
            order.append(f"{name} {taken.hosts['one']['ansible_host']}")
            await asyncio.sleep(0)

    await asyncio.gather(one("first"), one("second"))
    assert order == ["first b", "second b"]


async def test_when_no_nodeset_can_be_served_all_are_named() -> None:
    machines = ListedMachines((ListedMachine("m", ("tiny",)),))
    with pytest.raises(NoNode, match="labels of the nodeset: big; nor of small"):
        async with machines.take(BIG, TWO):
            pass


async def test_without_machines_every_node_is_this_one() -> None:
    async with ListedMachines().take(BIG, SMALL) as taken:
        assert taken == (BIG, {"one": {"ansible_connection": "local"}}, ())


async def test_a_held_machine_is_assigned_to_nobody_until_it_is_released() -> None:
    machines = ListedMachines((ListedMachine("a", ("small",)), ListedMachine("b", ("small",))))
    async with machines.take(SMALL) as taken:
        assert taken.machines == ("a",)
        await machines.keep(["a"])
    async with machines.take(SMALL) as other:
        assert other.machines == ("b",)

        async def next_one() -> tuple[str, ...]:
            async with machines.take(SMALL) as found:
                return found.machines

        waiting = asyncio.ensure_future(next_one())
        await asyncio.sleep(0)
        assert not waiting.done()
        await machines.keep([])
        assert await waiting == ("a",)


def test_a_file_says_address_port_user_and_key(tmp_path: Path) -> None:
    (tmp_path / "nodes.yaml").write_text(
        "- name: board\n  labels: [arm]\n  ansible_host: 10.0.0.7\n  ansible_port: 2222\n  ansible_user: jobs\n"
        "  ansible_ssh_private_key_file: /etc/key\n  headgate_host_key: ssh-ed25519 AAAA\n  vars: {rack: 7}\n"
    )
    (found,) = read_machines(tmp_path / "nodes.yaml")
    assert found == ListedMachine("board", ("arm",), {
        "ansible_host": "10.0.0.7", "ansible_port": 2222, "ansible_user": "jobs", "rack": 7,
        "ansible_ssh_private_key_file": "/etc/key", "headgate_host_key": "ssh-ed25519 AAAA",
    })  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("host: h", "there is no key 'host'; did you mean 'ansible_host'"),
        ("key: k", "there is no key 'key'; did you mean 'ansible_ssh_private_key_file'"),
        ("rack: 7", "there is no key 'rack', only name, labels, vars, .* under `vars`"),
        ("vars: [1]", "vars: expected variables"),
    ],
)
def test_an_unknown_key_of_the_file_is_an_error(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "nodes.yaml").write_text(f"- name: board\n  labels: [arm]\n  {line}\n")
    with pytest.raises(UserError, match=f"nodes.yaml: machine board: {message}"):
        read_machines(tmp_path / "nodes.yaml")


async def test_the_user_of_a_machine_is_shown_to_others_and_to_waiting_builds() -> None:
    variables = {"ansible_host": "192.0.2.7", "ansible_user": "ci", "ansible_password": "hunter2"}
    machines, messages = ListedMachines((ListedMachine("a", ("small",), variables),)), list[str]()
    seen = machines.listed_now()
    assert seen == (OwnMachine("a", ("small",), "192.0.2.7", "ci"),)
    changes = asyncio.ensure_future(machines.changed(seen))
    async with machines.take(SMALL, build="b1"):
        assert await changes == (OwnMachine("a", ("small",), "192.0.2.7", "ci", "b1"),)

        async def another() -> None:
            async with machines.take(SMALL, build="b2", say=messages.append):
                pass

        waiting = asyncio.ensure_future(another())
        back = asyncio.ensure_future(machines.changed(machines.listed_now()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert messages == ["Waiting for machines of this executor with the labels small: a is taken"]
    await waiting
    await back
    assert machines.listed_now() == seen
    await machines.keep(["a"])
    assert machines.listed_now()[0].held


def nodeset(*labels: str) -> Nodeset:
    return Nodeset("many", tuple(Node((f"n{number}",), label) for number, label in enumerate(labels)))


@pytest.mark.parametrize(
    ("machines", "labels", "taken"),
    [
        ([("small", "big"), ("small",)], ["small", "big"], ("m1", "m0")),
        ([("small", "big"), ("small",)], ["big", "small"], ("m0", "m1")),
        ([("small", "big"), ("small", "big")], ["small", "big"], ("m0", "m1")),
        ([("a", "b"), ("b", "c"), ("c",)], ["b", "c", "a"], ("m1", "m2", "m0")),
        ([("a",), ("a", "b"), ("a",)], ["a", "a", "b"], ("m0", "m2", "m1")),
    ],
)
async def test_a_machine_with_several_labels_serves_the_node_that_no_other_can_serve(
    machines: list[tuple[str, ...]], labels: list[str], taken: tuple[str, ...]
) -> None:
    listed = ListedMachines(tuple(ListedMachine(f"m{number}", one) for number, one in enumerate(machines)))
    async with listed.take(nodeset(*labels)) as found:
        assert found.machines == taken
        assert [host["ansible_host"] for host in found.hosts.values()] == list(taken)


async def test_machines_that_suffice_for_each_node_but_not_for_all_serve_none() -> None:
    machines = ListedMachines((ListedMachine("m0", ("a", "b")), ListedMachine("m1", ("c",))))
    with pytest.raises(NoNode):
        async with machines.take(nodeset("a", "b")):
            pass
