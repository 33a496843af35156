"""Write what jobs, changes and messages say such that a forge shows it and does nothing else.

Reports are written in Headgate's name, and forges render them as Markdown.  A character that nobody sees keeps what
would act from being read as markup.  Entities would not do: in the lines of a log, which are code, people would read
the entity.
"""

from __future__ import annotations

import re

APART = "\u200b"
_ADDRESS = re.compile(r"https?://[^\s<>()\[\]\"'`]+")
"""URLs are not escaped: they contain no markup, and people follow them."""
_ACTIVE = re.compile(
    r"(?<![A-Za-z0-9])@(?=\w)"  # mentions somebody
    r"|<(?=[A-Za-z/!?])"  # HTML, also a comment like the mark of a report
    r"|!(?=\[)"  # an image, whose server learns who reads it
    r"|\](?=[(\[:])"  # a link whose text hides its destination
    r"|&(?=#|[A-Za-z]+;)"  # an entity, which may encode any of these
    r"|[`~](?=[`~]{2})"  # a fence, which turns the rest into code
)


def inert(text: str) -> str:
    """Return text that mentions nobody, hides no link's destination, loads nothing and hides nothing; URLs stay."""
    parts, at = list[str](), 0
    for found in _ADDRESS.finditer(text):
        parts += [_inert(text[at : found.start()]), found[0]]
        at = found.end()
    return "".join((*parts, _inert(text[at:])))


def _inert(text: str) -> str:
    return _ACTIVE.sub(lambda found: found[0] + APART, text)
