"""What is code in the scripts of the pages: texts, comments and patterns are left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""(?P<skipped>//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""  # comments, texts
    r"|(?<=[(,=:\[!&|?{};+>])[ \n]*/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\[\n])+/)"  # patterns: nothing to divide
    r"|(?P<name>[A-Za-z_$][\w$]*)|(?P<mark>[`{}])|.",
    re.S,
)
_TEMPLATE = re.compile(r"(?:\\.|\$(?!\{)|[^`\\$])*(?P<end>`|\$\{)", re.S)
"""The rest of a template, to its end or to the next expression in it."""


def names(text: str) -> Iterator[str]:
    """Yield the identifiers of a script, each as often as it is there."""
    at, opened = 0, list[str]()  # what is open: `{` of the code, `$` of an expression in a template
    while found := _TOKEN.match(text, at):
        at = found.end()
        if found["name"]:
            yield found["name"]
        elif found["mark"] == "{":
            opened.append("{")
        elif found["mark"] == "`" or (found["mark"] == "}" and opened.pop() == "$"):
            rest = _TEMPLATE.match(text, at)
            assert rest is not None, "a template that does not end"
            at = rest.end()
            if rest["end"] != "`":
                opened.append("$")
