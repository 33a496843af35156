"""Test that errors name their place in the file, to the column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config.explain.marks import extent
from headgate.config.model import ConfigError

TEXT = """\
- job: {name: ünit, parent: 'two words', nodeset: smal}
- job:
    name: lint   # the name
    rnu: x
    description: |
      smal
      text
\t- broken
"""


@pytest.mark.parametrize(
    ("line", "message", "word"),
    [
        (1, "the nodeset 'smal' is not defined", "smal"),
        (1, "the parent job 'two words' is not defined", "'two words'"),
        (4, "a job has no key 'rnu'; did you mean 'run'?", "rnu"),
        (2, "this job lacks 'name'", "job"),
        (3, "whatever it is", "name: lint   # the name"),
        (5, "description of a job must be text", "description"),
        (8, "this is not YAML: found character that cannot start any token", "- broken"),
    ],
)
def test_the_word_that_an_error_message_quotes_is_underlined(line, message, word):
    good = TEXT.replace("\t- broken\n", "") if line != 8 else TEXT
    found = extent(ConfigError("Unknown", message, path="zuul.yaml", line=line), good)
    assert good.split("\n")[found.line - 1][found.column - 1 : found.end_column - 1] == word
    assert found.line == found.end_line == line


@pytest.mark.heavy
@given(st.text(max_size=200), st.integers(-2, 40), st.text(max_size=40))
def test_any_file_has_an_extent_within_it(text, line, message):
    found = extent(ConfigError("Unknown", message, line=line), text)
    assert found.line >= 1 and found.column >= 1 and (found.end_line, found.end_column) >= found[:2]
