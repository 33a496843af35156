"""Make the records of machines: of new ones, and of those that providers list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from headgate.base.ids import derived, fresh
from headgate.config.keys.nodes import LISTED_MAX
from headgate.config.machines import FlatLabel, FlatProvider
from headgate.map.inventory.nodes import MadeNode, NodeRequest
from headgate.ports.cloud import NODE_TAG, Amounts

_WORD = re.compile(r"\{(\w+)\}")


def new_node(
    provider: FlatProvider,
    label: FlatLabel,
    uses: Amounts,
    tags: Mapping[str, str],
    tenant: str,
    request: NodeRequest | None,
    now_ms: int,
) -> MadeNode:
    """Return the record of a machine to make; `tags` are the installation's."""
    id = fresh()
    words = {
        "tenant_name": tenant,
        "request_id": request.id if request else "",
        "pipeline_name": request.pipeline if request else "",
        "buildset_uuid": request.buildset if request else "",
        "zuul_event_id": request.event if request else "",
        "job_name": request.job if request else "",
        "job_uuid": request.build if request else "",
        "labels": ",".join(name for _, name in request.nodes) if request else label.name,
    }
    own = {
        # Unknown words become empty: the tags come from people, and a wrong one must not stop machines.
        name: _WORD.sub(lambda found: words.get(found[1], ""), str(text))
        for name, text in label.label.get("tags", {}).items()
    }
    definition = {"label": label.label, "image": label.image, "flavor": label.flavor, "provider": provider.said}
    return MadeNode(
        id=id,
        provider=provider.name,
        connection=provider.connection,
        label=label.name,
        said=definition,
        digest=label.digest,
        # The installation's tags win: with others, a label could declare its machines somebody else's.
        tags={**own, **tags, NODE_TAG: id},
        uses=dict(uses),
        tenant=tenant,
        asked_ms=now_ms,
        since_ms=now_ms,
        slots=label.slots if label.slots > 1 else 0,
    )


def host_nodes(provider: FlatProvider) -> Mapping[str, MadeNode]:
    """Return, by id, the records of the machines that a provider lists, one for each slot; without the tags of the
    installation, and without times."""
    # The encoded form is hashable, so the cache finds a provider that is equal, though not the same object.
    return _host_nodes(msgspec.json.encode(provider, order="deterministic")) if provider.is_static else {}


@lru_cache(maxsize=256)
def _host_nodes(encoded: bytes) -> Mapping[str, MadeNode]:
    provider, found = msgspec.json.decode(encoded, type=FlatProvider), dict[str, MadeNode]()
    for host in provider.hosts:
        label = next((one for one in provider.labels if one.name == host.get("label")), None)
        if label is None:
            continue
        slots = int(host.get("slots") or label.slots)
        # These four make the machine; other settings may change without making it another one.
        where = [str(host.get(key) or "") for key in ("name", "host", "connection-port", "username")]
        own = msgspec.json.encode(host, order="deterministic").decode()
        definition = {
            # Whatever the label says, a listed machine is used again: nothing could make a new one.
            "label": {**label.label, "reuse": True},
            "image": label.image,
            "flavor": label.flavor,
            "provider": {**provider.said, "node": dict(host)},
        }
        for slot in range(slots):
            if len(found) >= LISTED_MAX:
                return found
            # The id is derived from where the machine is, so each launcher finds the record of the last.
            id = derived(provider.name, *where, str(slot))
            found.setdefault(id, MadeNode(
                id=id, provider=provider.name, connection=provider.connection, label=label.name, state="registering",
                said=definition, digest=derived(label.digest, own), fixed=True, slot=slot if slots > 1 else None,
            ))  # fmt: skip
    return found


def digests(several: Iterable[FlatProvider]) -> dict[str, set[str]]:
    """Return the digests of each listed machine, by id: tenants may list it with different settings."""
    found: dict[str, set[str]] = {}
    for provider in several:
        for id, node in host_nodes(provider).items():
            found.setdefault(id, set()).add(node.digest)
    return found


def names_of(node: MadeNode) -> tuple[str, ...]:
    """Return the labels that a listed machine serves."""
    own = node.said["provider"].get("node", {}).get("aliases") or ()
    return node.label, *node.said["label"].get("aliases", ()), *([own] if isinstance(own, str) else own)


def serving(nodes: Iterable[MadeNode], provider: str, name: str) -> list[MadeNode]:
    """Return the listed machines of a provider that serve a label."""
    return [one for one in nodes if one.fixed and one.provider == provider and name in names_of(one)]


def order(several: Sequence[MadeNode]) -> list[MadeNode]:
    """Return the machines, with the one first that has rested longest."""
    return sorted(several, key=lambda one: (one.since_ms, one.id))
