"""Judge proposed configurations for the gate: immediately if that is cheap, otherwise outside the event loop.

An item whose proposal is judged outside the event loop waits; the pipeline takes a turn when the answer arrives.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headgate.base.tasks import end
from headgate.config.dynamic import Judgement, LayoutRequest, TenantLayouts, refusal
from headgate.gate.state.world import LayoutView
from headgate.ports.judge import Judge, Judging

log = logging.getLogger("headgate.pipeline")

FILES_MAX = 100
"""Limit on the files of a change whose configuration is judged immediately."""
READ_MAX_BYTES = 32_000
"""Size limit of all changed configuration files that are read immediately."""
ANSWERS_MAX = 500
"""Limit on the answers stored until their items use them."""
# Such patterns need a slow regex engine, so even a small text may take long.
_COSTLY = re.compile(r"&|\(\?|\\[1-9xuU\r\n]|[*+?}]\+")
"""Patterns that may be slow: anchors; lookarounds, flags, references and other escapes; possessive repetitions."""
TIMES_MAX = 3
"""Number of times that a proposal is judged. After that, the answer counts even if the layout has changed, because in a
tenant whose layout keeps changing, an item would otherwise wait forever."""


class _Answer(NamedTuple):
    """Hold a judgement, and the number of the layouts that it is about."""

    judgement: Judgement
    generation: int
    times: int
    """How often the proposal has been judged."""


class Proposals:
    """Judge proposals of one pipeline in one process."""

    def __init__(self, judging: Judging | None, stir: Callable[[], None]) -> None:
        """Create a judge of proposals. Without `judging`, all are judged immediately; `stir` causes a turn."""
        self._judging, self._stir = judging, stir
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        """Buildset -> the latest answer."""
        self._about: TenantLayouts | None = None
        """The latest layouts."""
        self._generation = 0
        """Number of changes of the layouts so far."""
        self._asking: dict[str, asyncio.Future[None]] = {}
        self.answered = 0
        """Number of answers so far."""

    def over(self, layouts: TenantLayouts) -> JudgedLayouts:
        """Return the layouts of a turn."""
        return JudgedLayouts(layouts, self)

    async def __aenter__(self) -> Proposals:
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(*self._asking.values())

    def judged(self, layouts: TenantLayouts, request: LayoutRequest) -> Judgement | None:
        """Return the judgement, or None while the proposal is being judged."""
        judging = self._judging
        # Another process costs more than judging a small proposal, and an item would have to wait for another turn.
        if judging is None or _is_small(layouts, request, judging.at_once_max_bytes):
            return layouts.judged(request)
        # A waiting item is judged by the current layout, like one that is judged immediately.
        if layouts is not self._about:
            self._about, self._generation = layouts, self._generation + 1
        known = self._answers.get(request.buildset)
        if known is not None and (known.generation == self._generation or known.times >= TIMES_MAX):
            return known.judgement
        if request.buildset not in self._asking:
            asking = self._ask(judging.judge, layouts, request, self._generation)
            self._asking[request.buildset] = asyncio.ensure_future(asking)
        return None

    async def _ask(self, judge: Judge, layouts: TenantLayouts, request: LayoutRequest, generation: int) -> None:
        try:
            answer = await judge.judged(layouts, request)
        except Exception as error:  # after any error, the item must not wait forever
            log.exception("the configuration that %s proposes cannot be judged", request.project)
            answer = refusal(request, f"this configuration cannot be judged: {error}")
        finally:
            del self._asking[request.buildset]
        # If the layout has changed, the following turn requests another judgement.
        before = self._answers.pop(request.buildset, None)
        self._answers[request.buildset] = _Answer(answer, generation, 1 if before is None else before.times + 1)
        # Items may leave before they use their answers, so the number of answers is limited.
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        self.answered += 1
        self._stir()


class JudgedLayouts:
    """Implement `gate.state.world.Layouts` for one turn."""

    def __init__(self, layouts: TenantLayouts, proposals: Proposals) -> None:
        self._layouts, self._proposals = layouts, proposals

    @property
    def landed(self) -> LayoutView:
        return self._layouts.landed

    def content(self, project: str) -> Mapping[str, str]:
        return self._layouts.content(project)

    def reuses(self, pipeline: str, project: str, branch: str) -> bool:
        return self._layouts.reuses(pipeline, project, branch)

    def judged(self, request: LayoutRequest) -> Judgement | None:
        return self._proposals.judged(self._layouts, request)


def _is_small(layouts: TenantLayouts, request: LayoutRequest, most_bytes: int) -> bool:
    """Return whether judging takes only milliseconds. The size of the files limits the reading, and their new lines
    limit the building of the layout."""
    if not request.texts:
        return True
    fresh = layouts.fresh(request.texts)
    # A proposal may touch thousands of files; the number is known before any of them is read.
    if len(request.files or ()) > FILES_MAX or sum(len(text) for text, _ in fresh) > READ_MAX_BYTES:
        return False
    # Only new lines count, so that a change of one line in a long file is still small.
    more = (Counter(text.splitlines()) - Counter(had.splitlines()) for text, had in fresh)
    new = "".join(f"{line}\n" for lines in more for line in lines.elements())
    return len(new) <= most_bytes and not _COSTLY.search(new)
