"""Tests of bounded reads: size limits that messages name and environment variables raise."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from clearhead._utils import bounded_reads
from clearhead._utils.bounded_reads import (
    BEAM_LIMIT,
    LINE_LIMIT,
    SENTENCE_LIMIT,
    TEXT_LIMIT,
    TOKEN_LIMIT,
    numbered_lines,
    read_text,
    stdin_lines,
)
from support.paths import ROOT

MIB = 2**20


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setenv(TEXT_LIMIT.variable, "1")
    monkeypatch.setenv(LINE_LIMIT.variable, "1")


def test_reads_file_up_to_the_limit(small, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"x" * MIB)
    assert len(read_text(path)) == MIB
    path.write_bytes(b"x" * (MIB + 1))
    with pytest.raises(ValueError, match="text is too large; expected at most 1 MiB .CLEARHEAD_MAX_TEXT_MIB raises"):
        read_text(path)


@pytest.mark.parametrize("source", ["/dev/zero"])
def test_rejects_endless_file(small, source):
    with pytest.raises(ValueError, match="/dev/zero is too large"):
        read_text(Path(source))
    with pytest.raises(ValueError, match="line 1 is too long; expected at most 1 KiB .CLEARHEAD_MAX_LINE_KIB raises"):
        list(numbered_lines(source))


def test_size_limit_applies_to_all_decompressed_lines(small, tmp_path):
    path = tmp_path / "lines.gz"
    path.write_bytes(gzip.compress(b"0123456\n" * (MIB // 8)))
    assert len(list(numbered_lines(path))) == MIB // 8
    path.write_bytes(gzip.compress(b"0123456\n" * (MIB // 8 + 1)))
    with pytest.raises(ValueError, match="lines.gz is too large"):
        list(numbered_lines(path))


def test_reads_line_up_to_the_limit(small, tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"a" * 1023 + b"\n" + b"b" * 1024)
    assert [len(line) for _, line in numbered_lines(path)] == [1023, 1024]
    path.write_bytes(b"a\n" + b"b" * 1025)
    with pytest.raises(ValueError, match="lines, line 2 is too long"):
        list(numbered_lines(path))


class _Stdin:
    def __init__(self, content):
        self.buffer = io.BytesIO(content)


def test_reads_standard_input_line_by_line(small, monkeypatch):
    monkeypatch.setattr(sys, "stdin", _Stdin("\ufeffein\r\n\nzwei".encode()))
    assert stdin_lines() == ["ein", "", "zwei"]
    monkeypatch.setattr(sys, "stdin", _Stdin(b"a\n\xff"))
    with pytest.raises(ValueError, match="standard input, line 2: not UTF-8"):
        stdin_lines()
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ValueError, match="standard input is closed"):
        stdin_lines()


@pytest.mark.parametrize("raw", ["", "0", "-1", "1e9", "many", "9" * 5000])
def test_rejects_invalid_limit(monkeypatch, raw):
    monkeypatch.setenv(BEAM_LIMIT.variable, raw)
    with pytest.raises(ValueError, match="CLEARHEAD_MAX_BEAMS is .*; expected a whole number of beams above 0"):
        _ = BEAM_LIMIT.value


def test_every_limit_is_documented():
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    limits = [value for value in vars(bounded_reads).values() if isinstance(value, bounded_reads.Limit)]
    assert set(limits) == {TEXT_LIMIT, LINE_LIMIT, TOKEN_LIMIT, SENTENCE_LIMIT, BEAM_LIMIT}
    for limit in limits:
        assert f"| `{limit.variable}` | {limit.default:,} {limit.unit} |" in page
