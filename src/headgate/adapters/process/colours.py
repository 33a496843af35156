"""Colours of a line of output: they stay, and everything else that a terminal would obey goes.

What hides text, blinks, or would reach beyond its line is not among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

COLOUR = r"\x1b\[[0-9;]*m"
RESET = "\x1b[m"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_]?)")
"""What colours text and moves the cursor."""
_PLAIN = frozenset((1, 2, 3, 4, 7, 22, 23, 24, 27, 39, 49, *range(30, 38), *range(40, 48), *range(90, 98)))
_LONG = (38, 48)
"""Of text and of what is behind it."""
_SIZES = {5: 3, 2: 5}
"""Figures of one such, by the second: of a palette, or of three lights."""
_FIGURES_MAX, _FIGURE_MAX = 32, 255


def kept(text: str) -> str:
    """Return it with its colours."""
    return _SEQUENCE.sub(lambda found: _kept(found[0]) if re.fullmatch(COLOUR, found[0]) else "", text)


def ended(text: str) -> str:
    """Return what has nothing but colours in it so that they end with it."""
    last = text.rfind("\x1b")
    return text if last < 0 or text.startswith(RESET, last) else text + RESET


def _kept(sequence: str) -> str:
    figures = [int(figure or 0) if len(figure) < 4 else -1 for figure in sequence[2:-1].split(";")]
    codes = list(_codes(figures[:_FIGURES_MAX]))
    return RESET if codes == ["0"] else f"\x1b[{';'.join(codes)}m" if codes else ""


def _codes(figures: Sequence[int]) -> Iterator[str]:
    """Yield those that colour text; of what is not understood, nothing that follows."""
    at = 0
    while at < len(figures):
        size = 1
        if figures[at] in _LONG:
            size = _SIZES.get(figures[at + 1], 0) if at + 1 < len(figures) else 0
            whole = figures[at : at + size]
            if not size or len(whole) < size or not all(0 <= figure <= _FIGURE_MAX for figure in whole):
                return
            yield ";".join(map(str, whole))
        elif figures[at] in _PLAIN or figures[at] == 0:
            yield str(figures[at])
        at += size
