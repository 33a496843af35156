"""Test files that describe how an image is built."""

from __future__ import annotations

import pytest

from headgate.adapters.process.containers.containerfile import BadFile, read

FILE = """\
# what a team writes
ARG TAG=12
FROM docker.io/library/debian:${TAG}
arg WHO
ENV A=1 B="two words" \\
    # between the lines
    C=$A-${NONE:-else}
ENV OLD one name, all the rest
WORKDIR /opt
WORKDIR made
COPY greeting tools/ ./
RUN apt-get update \\
 && apt-get install -y "$B"
RUN ["/bin/true", "$A"]
USER nobody
CMD ["sh"]
"""


def test_a_containerfile_becomes_steps() -> None:
    found = read(FILE.encode())
    assert found.base == "docker.io/library/debian:12" and found.copies
    assert found.environment == {"A": "1", "B": "two words", "C": "-else", "OLD": "one name, all the rest"}
    copied, run, listed = found.steps
    assert (copied.line, copied.sources, copied.target) == (11, ("greeting", "tools"), "/opt/made/./")
    assert (run.line, run.directory) == (12, "/opt/made") and listed.command == ("/bin/true", "$A")
    assert run.command[:2] == ("/bin/sh", "-c") and run.command[2].split() == [
        "apt-get", "update", "&&", "apt-get", "install", "-y", '"$B"'
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it has no FROM"),
        ("RUN true", "line 1: RUN comes before FROM"),
        ("FROM a AS b", "line 1: only one FROM"),
        ("FROM a\nFROM b", "line 2: only one FROM"),
        ("FROM a\n\nADD http://x /", "line 3: 'ADD' is not supported; FROM, ARG, ENV, WORKDIR, RUN and COPY are"),
        ("FROM a\nCOPY ../x /", "line 2: '../x' is not the name of a file next to the Containerfile"),
        ("FROM a\nCOPY /etc/shadow /", "line 2: '/etc/shadow' is not the name of a file next to"),
        ("FROM a\nCOPY *.py /", r"line 2: '\*.py' is not the name of a file next to"),
        ("FROM a\nCOPY x", "line 2: COPY needs at least one source, and a target"),
        ("FROM a\nRUN --mount=type=bind,src=/,dst=/x true", "line 2: options of RUN"),
        ("FROM a\nCOPY --from=b x /", "line 2: options of COPY"),
        ("FROM a\nRUN <<EOF\ntrue\nEOF", "line 2: options of RUN, and here-documents, are not supported"),
        ("FROM a\nENV 1=2", "line 2: '1' cannot be the name of a variable"),
        ('FROM a\nENV A="x', "line 2: No closing quotation"),
        ("FROM a\n" + "RUN true\n" * 101, "line 102: more than 100 steps"),
        ("FROM a\nENV A=" + "x" * 99_990, "it has more than 100000 bytes"),
        ("FROM a\nENV A=" + "x" * 60_000 + "\nENV B=$A$A", "line 3: its text is too long after substitution"),
        ("FROM a\nENV A=" + "x" * 30_000 + "\nENV B=$A\nARG C=$A", "line 4: the variables together are too large"),
        ("\udcff", "it is not UTF-8"),
    ],
)
def test_errors_name_their_line(text: str, why: str) -> None:
    with pytest.raises(BadFile, match=why):
        read(text.encode(errors="surrogateescape"))
