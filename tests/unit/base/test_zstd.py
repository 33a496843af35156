"""Test compressed values: they are read in bounded memory, completely or not at all."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from headgate.base.zstd import ZstdError, compress, decompress, reader

PLAIN = bytes(range(256)) * 40


def test_a_value_is_read_back() -> None:
    assert decompress(compress(PLAIN), len(PLAIN)) == PLAIN
    assert decompress(compress(b""), 0) == b""


def test_data_larger_than_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than 10239 bytes"):
        decompress(compress(PLAIN), len(PLAIN) - 1)


@pytest.mark.parametrize("left", [5, 20, -1])
def test_truncated_data_is_refused(left: int) -> None:
    with pytest.raises(ValueError, match="damaged"):
        decompress(compress(PLAIN)[:left], len(PLAIN))


@pytest.mark.skipif(shutil.which("zstd") is None, reason="there is no zstd here")
def test_a_stream_of_another_program_that_names_no_size_is_read_and_bounded(tmp_path: Path) -> None:
    streamed = subprocess.run(["zstd", "-c"], input=PLAIN, capture_output=True, check=True).stdout
    assert decompress(streamed, len(PLAIN)) == PLAIN
    with pytest.raises(ValueError, match="larger than 10239 bytes"):
        decompress(streamed, len(PLAIN) - 1)


def test_a_file_is_read_in_pieces_and_one_that_is_cut_short_is_an_error() -> None:
    packed = compress(PLAIN)
    assert reader(io.BytesIO(packed)).read(100) == PLAIN[:100]
    with pytest.raises(EOFError):
        reader(io.BytesIO(packed[:-2])).read()
    with pytest.raises(ZstdError):
        reader(io.BytesIO(b"garbage" * 10)).read()
