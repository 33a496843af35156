"""Start the jobs that build or try images."""

from __future__ import annotations

import msgspec

from headgate.gate.change import HEADS, Change, EventKind, TriggerEvent
from headgate.gate.imagework import Body, occasion
from headgate.map.inventory.images import ImageFile
from headgate.map.records import BranchCache
from headgate.recipes import blob
from headgate.services.context import Context
from headgate.store.types import Op


async def image_event_ops(
    context: Context, kind: EventKind, id: str, tenant: str, file: ImageFile, body: Body
) -> list[Op]:
    """Return operations that make a tenant's pipelines build or try an image, at the head of the branch that defines
    it; none while that branch is unknown."""
    path = context.map.cache.connection(file.connection).branches.data.path
    stored = await blob.read(context.store, path)
    heads = msgspec.json.decode(stored, type=BranchCache).projects if stored else {}
    ref = f"{HEADS}{file.branch}"
    commit = heads.get(file.project, {}).get(ref, "")
    if not commit:
        return []
    about = occasion(kind.value, id, file.image, body)
    change = Change(file.connection, file.project, file.branch, commit=commit, ref=ref, occasion=about)
    event = TriggerEvent(kind, change, id, context.now_ms())
    return list(context.map.events.tenant(tenant).trigger.stream.append(event))
