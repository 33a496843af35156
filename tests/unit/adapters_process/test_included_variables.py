"""Files of variables that a job includes are read within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.adapters.process.variables import included

LEVELS = zip("abcdefgh", "bcdefghi", strict=True)
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 20)}]\n" for a, b in LEVELS)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "more than 100000 values"),
        ("a: &a " + "x" * 500_000 + "\nb: [" + "*a, " * 30 + "]", "has more than 10 MB"),
        ("a: " + "[" * 100_000, "more than 200 levels"),
        ("a: &a {b: *a}", "contains itself"),
        ("a: [" + "1," * 200_000 + "]", "more than 100000 values"),
        ("a: " + "1:" * 200_000 + "1", "is too long"),
        ("a: " + "9" * 900_000, "is too long"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML"),
        ("a: 'x\udcff'", "not YAML"),
        ("#" * 1_000_001, "larger than 1000 kB"),
        ("[a]", "not a mapping"),
        ("zuul: {a: b}", "which is reserved"),
    ],
)
def test_a_file_that_is_too_large_or_contains_no_variables_is_refused(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "vars.yaml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=why):
        included(file)


def test_variables_are_those_of_yaml(tmp_path: Path) -> None:
    file = tmp_path / "vars.yaml"
    file.write_text("a: &a {k: v, n: 1}\nb:\n  <<: *a\n  n: 2\nc: 2020-01-01\nd: 1\nd: 2\ne: !!set {x}\n")
    assert included(file) == {"a": {"k": "v", "n": 1}, "b": {"k": "v", "n": 2}, "c": "2020-01-01", "d": 2, "e": ["x"]}
