"""Tests of the parsing of choices of indices and of sizes."""

import pytest

from clearhead._utils.parsing import parse_bytes, parse_indices


@pytest.mark.parametrize(
    ("text", "indices"), [("3", {3}), ("0,3-5", {0, 3, 4, 5}), (" 1 , 0-2", {0, 1, 2}), ("6-6", {6})]
)
def test_indices(text, indices):
    assert parse_indices("x", text, 7, "") == indices


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("7", " outside"),
        ("5-1", " outside"),
        ("0-" + "9" * 5000, " outside"),
        ("", "; expected numbers and ranges such as 0,3-5"),
        ("-1", "; expected numbers and ranges such as 0,3-5"),
        ("0,,1", "; expected numbers and ranges such as 0,3-5"),
        ("1.5", "; expected numbers and ranges such as 0,3-5"),
    ],
)
def test_other_indices_are_refused(text, end):
    with pytest.raises(ValueError, match=rf"^x is .{{2,42}}{end}$"):
        parse_indices("x", text, 7, " outside")


@pytest.mark.parametrize(
    ("text", "size"), [("500 MiB", 500 * 2**20), ("2GiB", 2**31), ("7 B", 7), ("0.5 KiB", 512), ("1.25 TiB", 5 * 2**38)]
)
def test_bytes(text, size):
    assert parse_bytes("memory", text) == size


@pytest.mark.parametrize("text", ["", "2", "2 GB", "-1 GiB", "1e3 MiB", "٣ MiB", "GiB", "9" * 5000 + " B"])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match=r"^memory is .{2,42}; expected a size such as 500 MiB or 2 GiB$"):
        parse_bytes("memory", text)
