"""Test the final form of providers: inherited, replaced, merged and filled values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from headgate.config.assembly.inheritance import flattened
from headgate.config.layout import Layout, build_layout
from headgate.config.machines import FlatProvider
from headgate.config.operator.file import parse_tenant_file
from headgate.config.operator.model import Connection
from headgate.config.parse import ParseCache
from headgate.map.places import Map
from headgate.recipes.mirror import Mirror
from headgate.services.context import Context
from headgate.services.scheduler.tenantconfig import provider_ops
from headgate.store.memory import MemoryBackend
from headgate.store.store import Store

TENANT = """
- tenant:
    name: acme
    source: {git: {config-projects: [{ops: {include: [image, flavor, label, section, provider]}}]}}
"""
PROMISES = """
- image: {name: debian, type: cloud}
- image: {name: fedora, type: cloud}
- flavor: {name: small, description: little}
- label: {name: deb-small, image: debian, flavor: small, min-ready: 2, max-nodes: 5, max-ready-age: 60, aliases: [deb]}
- label: {name: fed-small, image: fedora, flavor: small}
"""


def laid_out(text: str) -> Layout:
    drivers = {"git": "git", "cloud": "aws"}
    file = parse_tenant_file(TENANT, "tenants.yaml", {n: Connection(n, n, d, False) for n, d in drivers.items()})
    acme = file.tenants["acme"]
    project = acme.projects[0]
    parsed = ParseCache().parse(project, "master", {"zuul.yaml": PROMISES + text})
    return build_layout(acme, {project.project: {"master": parsed}})


def providers(text: str) -> Mapping[str, FlatProvider]:
    return {one.name: one for one in flattened(laid_out(text))}


SITE = """
- section:
    name: world
    connection: cloud
    launch-timeout: 900
    resource-limits: {instances: 9, cores: 40}
    region: nowhere
    object-storage: {bucket-name: a}
    image-defaults: {username: admin, tags: {of: world, image: world}}
    label-defaults: {boot-timeout: 100, tags: {level: world}, key-name: top, reuse: true, max-ready-age: 7}
    images:
      - {name: debian, image-id: ami-1, volume-size: 20, userdata: from-image}
    flavors:
      - {name: small, instance-type: t3.small, volume-size: 30}
- section:
    name: west
    parent: world
    region: us-west-1
    resource-limits: {cores: 10}
    label-defaults: {key-name: west, tags: {west: "yes"}}
    images:
      - {name: fedora, image-id: ami-2, username: core, connection-port: 2222}
- provider:
    name: main
    section: west
    launch-attempts: 5
    label-defaults: {tags: {level: provider}}
    labels:
      - deb-small
      - {name: fed-small, boot-timeout: 30, aliases: [fed], tags: {own: "1"}}
"""


def test_a_provider_combines_its_sections_and_the_nearest_takes_precedence() -> None:
    made = providers(SITE)
    assert list(made) == ["git%2Fops/main"]
    main = made["git%2Fops/main"]
    assert (main.connection, main.driver, main.launch_timeout_s, main.launch_attempts) == ("cloud", "aws", 900, 5)
    assert main.limits == {"instances": 9, "cores": 10}
    assert main.settings == {"region": "us-west-1", "object-storage": {"bucket-name": "a"}}


def test_keys_of_a_label_come_from_its_entry_then_its_definition_then_the_defaults() -> None:
    main = providers(SITE)["git%2Fops/main"]
    deb, fed = main.labels
    assert (deb.name, deb.min_ready, deb.max_nodes) == ("deb-small", 2, 5)
    assert deb.label == {
        "name": "deb-small", "image": "debian", "flavor": "small", "aliases": ["deb"], "max-ready-age": 60,
        "boot-timeout": 100, "key-name": "west", "reuse": True, "max-age": 0, "min-retention-time": 0, "slots": 1,
        "host-key-checking": True, "tags": {"level": "provider", "west": "yes"}, "volume-size": 30,
        "userdata": "from-image",
    }  # fmt: skip
    assert (fed.min_ready, fed.max_nodes) == (0, -1)
    assert fed.label["boot-timeout"] == 30 and fed.label["max-ready-age"] == 7
    assert fed.label["tags"] == {"level": "provider", "west": "yes", "own": "1"}
    assert main.label("fed") == fed and main.label("deb-small") == deb and main.label("other") is None


def test_images_have_how_they_are_reached() -> None:
    deb, fed = providers(SITE)["git%2Fops/main"].labels
    assert deb.image == {
        "name": "debian", "type": "cloud", "image-id": "ami-1", "username": "admin", "volume-size": 20,
        "userdata": "from-image", "connection-type": "ssh", "connection-port": 22, "python-path": "auto",
        "tags": {"of": "world", "image": "world"},
    }  # fmt: skip
    assert (fed.image["username"], fed.image["connection-port"]) == ("core", 2222)
    assert deb.flavor == {
        "name": "small", "instance-type": "t3.small", "volume-size": 30, "public-ipv4": False, "public-ipv6": False,
        "tags": {},
    }  # fmt: skip


def test_a_lower_entry_replaces_a_higher_one_completely() -> None:
    text = SITE.replace("      - {name: fedora", "      - {name: debian, image-id: ami-9}\n      - {name: fedora")
    deb, _ = providers(text)["git%2Fops/main"].labels
    assert deb.image["image-id"] == "ami-9" and "volume-size" not in deb.image and deb.image["username"] == "admin"


def test_defaults_of_lower_sections_do_not_apply_to_a_final_image() -> None:
    text = SITE.replace("{name: debian, image-id: ami-1,", "{name: debian, final: true, image-id: ami-1,")
    text = text.replace(
        "    images:\n      - {name: fed", "    image-defaults: {username: low}\n    images:\n      - {name: fed"
    )
    deb, fed = providers(text)["git%2Fops/main"].labels
    assert (deb.image["username"], fed.image["username"]) == ("admin", "core")
    assert providers(text.replace("final: true, ", ""))["git%2Fops/main"].labels[0].image["username"] == "low"


def test_another_image_changes_the_digest_of_a_machine_and_min_ready_does_not() -> None:
    deb = providers(SITE)["git%2Fops/main"].labels[0]
    other = providers(SITE.replace("ami-1", "ami-7"))["git%2Fops/main"].labels[0]
    assert deb.digest != other.digest
    more = flattened(laid_out(SITE.replace("min-ready: 2", "min-ready: 3")))[0].labels[0]
    assert more.digest == deb.digest


def test_invalid_providers_are_left_out_and_the_others_stay() -> None:
    text = (
        SITE
        + """
- section: {name: round, parent: about}
- section: {name: about, parent: round}
- provider: {name: lost, section: round}
- provider: {name: unknown, section: nowhere}
- section: {name: bare, region: x}
- provider: {name: idle, section: bare}
- section: {name: far, connection: absent}
- provider: {name: off, section: far}
"""
    )
    assert [one.name for one in providers(text)["git%2Fops/main"].labels] == ["deb-small", "fed-small"]
    lacking = text.replace("{name: fedora, image-id: ami-2, username: core, connection-port: 2222}", "nothing")
    assert [one.name for one in providers(lacking)["git%2Fops/main"].labels] == ["deb-small"]
    assert list(providers(lacking)) == ["git%2Fops/main"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("launch-attempts: 5", "resource-limits: {cores: many}"),
        ("launch-attempts: 5", "resource-limits: {cores: [1]}"),
        ("launch-attempts: 5", "resource-limits: {cores: .nan}"),
        ("launch-attempts: 5", "launch-attempts: soon"),
        ("boot-timeout: 30", "boot-timeout: soon"),
        ("boot-timeout: 30", "max-age: soon"),
        ("boot-timeout: 30", "aliases: [[x]]"),
        ("key-name: west", "reuse: perhaps"),
    ],
)
def test_a_provider_of_which_no_driver_could_read_the_values_is_left_out(right: str, wrong: str) -> None:
    """Launchers and the tenant would otherwise fail on it."""
    layout = laid_out(SITE.replace(right, wrong))
    assert flattened(layout) == () and any(one.severity == "error" for one in layout.errors)


def test_an_empty_limit_means_no_limit_and_a_single_alias_becomes_a_list() -> None:
    text = SITE.replace("{instances: 9,", "{instances: null,").replace("aliases: [fed]", "aliases: fed")
    main = providers(text)["git%2Fops/main"]
    assert main.limits == {"cores": 10} and main.labels[1].names == ("fed-small", "fed")


def test_a_machine_elsewhere_has_another_digest() -> None:
    deb = providers(SITE)["git%2Fops/main"].labels[0]
    assert providers(SITE.replace("us-west-1", "us-west-2"))["git%2Fops/main"].labels[0].digest != deb.digest


async def test_a_provider_with_invalid_values_keeps_its_old_ones_and_a_removed_one_goes() -> None:
    store = Store(MemoryBackend())
    context = Context(store, Mirror(store, Map().path), lambda: 0)
    reading = asyncio.ensure_future(context.mirror.run())
    await context.mirror.ready()
    place = context.map.nodes.providers("acme").provider("git%2Fops/main").record

    async def stored_provider(text: str) -> FlatProvider | None:
        for op in provider_ops(context, "acme", laid_out(text)):
            (entry,) = await store.commit([], [op])
            await (context.mirror.reached(entry.path, entry.version) if entry else context.mirror.gone(place.path))
        found = await store.get(place.path)
        return place.decode(found.value) if found is not None else None

    first = await stored_provider(SITE)
    assert first is not None
    assert (
        await stored_provider(SITE.replace("launch-attempts: 5", "launch-attempts: soon").replace("ami-1", "ami-7"))
        == first
    )
    assert await stored_provider(SITE.replace("ami-1", "ami-7")) != first
    assert await stored_provider("") is None
    reading.cancel()
