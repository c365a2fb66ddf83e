"""Tests of the limit of an output folder."""

import json
import os

import pytest

from clearhead.serving.disk_limit import DiskLimit
from clearhead.serving.output_files import append_line
from clearhead.serving.results import SeenRequests, read_requests
from clearhead.serving.settings import Settings
from clearhead.serving.writer import Writer
from support.served_requests import Tokenizer, finished_request, small_request


def folder_bytes(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_oldest_recordings_and_statistics_are_deleted(tmp_path):
    limit = DiskLimit(tmp_path, 2000)
    for index in range(40):
        path = tmp_path / ("recordings", "statistics")[index % 2] / f"{index}.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (index, index))
        limit.add(path)
        assert folder_bytes(tmp_path) <= 1000
    kept = sorted(int(path.stem) for path in tmp_path.rglob("*.safetensors"))
    assert kept == list(range(kept[0], 40))
    assert len(kept) >= 8


def test_a_file_that_exceeds_the_limit_is_kept(tmp_path):
    path = tmp_path / "recordings" / "a.safetensors"
    path.parent.mkdir()
    path.write_bytes(bytes(5000))
    DiskLimit(tmp_path, 2000).add(path)
    assert path.exists()


def test_lines_are_rotated_and_read_in_order(tmp_path):
    limit, seen = DiskLimit(tmp_path, 4000), SeenRequests(tmp_path)
    for index in range(100):
        append_line(tmp_path / "requests.jsonl", {"request": str(index), "text": "x" * 50})
        limit.rotate_lines()
        assert folder_bytes(tmp_path) <= 2200
        assert list(read_requests(tmp_path))[-1]["request"] == str(index)
    names = [int(line["request"]) for line in read_requests(tmp_path)]
    assert names == list(range(names[0], 100))
    assert len(names) > 10
    assert list(seen) == []


def test_writers_keep_the_limit(tmp_path):
    writer = Writer(Settings(output=tmp_path, max_disk="1 MiB"), "model", Tokenizer)
    for index in range(60):
        writer.put(finished_request(f"r-{index}"))
    assert writer.close(60)
    assert folder_bytes(tmp_path) <= 2**20
    assert writer.metrics.snapshot()["requests"]["recorded"] == 60


def test_nothing_is_deleted_by_default(tmp_path):
    writer = Writer(Settings(output=tmp_path), "model", Tokenizer)
    for index in range(20):
        writer.put(small_request(str(index)))
    assert writer.close(60)
    assert [path.name for path in tmp_path.iterdir()] == ["requests.jsonl"]
    assert len(list(read_requests(tmp_path))) == 20


@pytest.mark.parametrize("value", ["1 KiB", 0, True, "much"])
def test_limits_that_are_too_small_are_refused(value):
    with pytest.raises((TypeError, ValueError), match="max_disk is"):
        Settings("/results", max_disk=value)
    assert json.loads(Settings("/results", max_disk="2 GiB").to_json())["max_disk"] == 2**31
