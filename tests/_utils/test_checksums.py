"""Tests of checksums: readers detect damage to any byte, and the files are plain safetensors."""

import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from clearhead import Recording
from clearhead._utils import checksums
from clearhead.analysis.accumulate import HeadSums
from clearhead.translation.translator import Translator
from clearhead.weights import serialization
from support.crafted_recordings import weights_of
from support.damage import flipped

FORMAT = "clearhead.Test"
FACTS = {"format": FORMAT, "version": 1, "name": '"sha256": "' + "0" * 64 + '"'}


def read(path, **options):
    return serialization.read(path, FORMAT, 1, "cpu", **options)


@pytest.fixture
def path(tmp_path):
    serialization.write(tmp_path / "file", {"a": torch.arange(7.0), "b": torch.ones(3, dtype=torch.int64)}, FACTS)
    return tmp_path / "file"


def test_readers_detect_damage_to_every_byte(path):
    contents = path.read_bytes()
    for offset in range(len(contents)):
        path.write_bytes(flipped(contents, offset, bit=offset % 8))
        with pytest.raises(ValueError, match=f"^{path}: "):
            read(path)
    path.write_bytes(contents)
    tensors, facts = read(path)
    assert torch.equal(tensors["a"], torch.arange(7.0))
    assert facts == FACTS


def test_the_error_names_the_checksum(path):
    path.write_bytes(flipped(path.read_bytes(), -1))
    with pytest.raises(ValueError, match=r"file: damaged \(its contents do not match its checksum\)$"):
        read(path)


def test_plain_safetensors_reads_the_file(path):
    assert torch.equal(load_file(path)["a"], torch.arange(7.0))


def test_the_same_contents_give_the_same_bytes(path, tmp_path):
    tensors, facts = read(path)
    serialization.write(tmp_path / "again", tensors, facts)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("entry", ["checksum", "sha256"])
def test_a_file_that_lost_one_checksum_entry_is_damaged(path, entry):
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["clearhead"])
    del facts[entry]
    save_file(load_file(path), path, {"clearhead": json.dumps(facts)})
    with pytest.raises(ValueError, match="damaged"):
        read(path)


def test_files_without_checksum_are_read_with_a_warning(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "old", {"clearhead": json.dumps(FACTS)})
    with pytest.warns(UserWarning, match="old: carries no checksum"):
        tensors, _ = read(tmp_path / "old")
    assert torch.equal(tensors["a"], torch.ones(2))
    with pytest.raises(ValueError, match="old: carries no checksum$"):
        read(tmp_path / "old", need_checksum=True)


def test_seal_rejects_a_file_without_checksum_entries(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match="foreign: the metadata has no entry for a checksum"):
        checksums.seal(tmp_path / "foreign")


def test_matches_reads_the_file_in_chunks(path, monkeypatch):
    """The check does not hold a second copy of the data in memory."""
    serialization.write(path, {"a": torch.zeros(2_000_000)}, FACTS)
    largest = 0
    update = checksums.hashlib.sha256

    class SpiedHash:
        def __init__(self, data):
            self.inner = update(data)
            self.digest_size, self.block_size, self.name = 32, 64, "sha256"

        def update(self, data):
            nonlocal largest
            largest = max(largest, len(data))
            self.inner.update(data)

        def hexdigest(self):
            return self.inner.hexdigest()

    monkeypatch.setattr(checksums.hashlib, "sha256", SpiedHash)
    assert checksums.matches(path)
    assert 0 < largest <= 1 << 20


def test_tensors_that_share_memory_are_written(tmp_path):
    tensor = torch.arange(6.0)
    serialization.write(tmp_path / "file", {"a": tensor, "b": tensor, "c": tensor[2:4]}, FACTS)
    tensors, _ = read(tmp_path / "file")
    assert torch.equal(tensors["b"], tensor)
    assert torch.equal(tensors["c"], tensor[2:4])


def test_write_rejects_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe: a pipe or a device; expected the name of a file"):
        serialization.write(tmp_path / "pipe", {}, FACTS)
    assert (tmp_path / "pipe").is_fifo()


def test_read_rejects_a_folder(tmp_path):
    with pytest.raises(IsADirectoryError, match="a folder; expected a file"):
        read(tmp_path)


def test_weights_and_head_sums_verify_their_checksum(tmp_path):
    path = tmp_path / "file"
    weights_of(torch.eye(3)[None]).save(path)
    path.write_bytes(flipped(path.read_bytes(), -1))
    with pytest.raises(ValueError, match="damaged"):
        type(weights_of(torch.eye(3)[None])).load(path)
    HeadSums("a model", {"encoder": [1]}, {"x": torch.ones(1).double()}).save(path)
    path.write_bytes(flipped(path.read_bytes(), -1))
    with pytest.raises(ValueError, match="damaged"):
        HeadSums.load(path)
    serialization.write(path, {}, {"format": "clearhead.HeadSums", "version": 1})
    with pytest.raises(ValueError, match="file: saved by HeadSums.save, but without model or heads"):
        HeadSums.load(path)


def test_bundled_weights_and_recordings_have_a_checksum(tmp_path):
    translator = Translator.load()  # pytest turns a warning about a missing checksum into an error
    translator.record("I read a book.").save(tmp_path / "book")
    (tmp_path / "book").write_bytes(flipped((tmp_path / "book").read_bytes(), -1))
    with pytest.raises(ValueError, match="book: damaged"):
        Recording.load(tmp_path / "book")
