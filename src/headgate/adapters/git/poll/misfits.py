"""Refs that propose nothing or cannot be read, told to people."""

from __future__ import annotations

from headgate.adapters.git.objects.conflicts import shown_name

SHOWN_MAX = 5
"""Most refs that are named for one reason."""
REASONS_MAX = 5
NAME_MAX_CHARS = 300


class Misfits:
    """Collect the unusable refs of one repository by reason."""

    def __init__(self) -> None:
        self._refs: dict[str, list[str]] = {}

    def add(self, ref: str, why: str) -> None:
        self._refs.setdefault(why, []).append(ref)

    @property
    def text(self) -> str:
        """Describe the unusable refs; the text is empty if there are none."""
        reasons = [_reason(why, refs) for why, refs in list(self._refs.items())[:REASONS_MAX]]
        more = sum(map(len, list(self._refs.values())[REASONS_MAX:]))
        return "\n".join([*reasons, *([f"{more} more refs cannot be used for other reasons"] if more else [])])


def _reason(why: str, refs: list[str]) -> str:
    shown = [_shown(ref) for ref in sorted(refs)[:SHOWN_MAX]]
    more = f" and {len(refs) - SHOWN_MAX} more" if len(refs) > SHOWN_MAX else ""
    return f"{', '.join(shown)}{more}: {why}"


def _shown(ref: str) -> str:
    name = shown_name(ref)
    return name if len(name) <= NAME_MAX_CHARS else f"{name[:NAME_MAX_CHARS]}…"
