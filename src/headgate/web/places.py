"""Locate changes in the queues: once for each status, whoever asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headgate.web.shapes import ItemShape, PipelineShape, QueueShape, StatusShape


class ItemSpot(NamedTuple):
    """Locate one item in its queue."""

    pipeline: PipelineShape
    queue: QueueShape
    line: Sequence[ItemShape]
    """The live items of the queue."""
    position: int
    """Position of this item among them; items ahead come first."""

    @property
    def item(self) -> ItemShape:
        return self.line[self.position]


class ItemPlaces:
    """Locate all changes of one status."""

    def __init__(self, status: StatusShape) -> None:
        self.status = status
        self._pipelines: dict[str, dict[str, None]] = {}
        self._spots: dict[str, list[ItemSpot]] = {}
        for pipeline in status.pipelines:
            for queue in pipeline.change_queues:
                self._note(pipeline, queue)

    def _note(self, pipeline: PipelineShape, queue: QueueShape) -> None:
        items = [item for head in queue.heads for item in head]
        line = [item for item in items if item.live]
        for position, item in enumerate(line):
            for ref in item.refs:
                self._spots.setdefault(ref.key, []).append(ItemSpot(pipeline, queue, line, position))
        for key in (ref.key for item in items for ref in item.refs):
            self._pipelines.setdefault(key, {})[pipeline.name] = None

    def live(self, key: str) -> Sequence[ItemSpot]:
        """Return where a change is itself."""
        return self._spots.get(key, ())

    def pipelines(self, key: str) -> tuple[str, ...]:
        """Return the pipelines in which it is, including those in which it is only needed by others."""
        return tuple(self._pipelines.get(key, ()))
