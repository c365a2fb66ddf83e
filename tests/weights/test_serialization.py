"""Tests of files of the lazy matrix."""

import pytest
import torch

from clearhead import ALiBi, AttentionWeights, Causal, Padding, Prefix, attention
from support.weights import sample


class TestFiles:
    def test_saved_weights_load_unchanged(self, tmp_path):
        query, key = torch.randn(2, 6, 13, 3), torch.randn(2, 3, 17, 3)
        for bias, mask in (
            (None, None),
            (ALiBi(torch.rand(6)), Causal()),
            (torch.randn(17), Padding([3, 9]) | Prefix(1)),
        ):
            _, weights = attention(
                query, key, key, bias=bias, mask=mask, sinks=torch.randn(6), softcap=3.0, return_weights=True
            )
            weights.save(tmp_path / "w.safetensors")
            loaded = AttentionWeights.load(tmp_path / "w.safetensors")
            assert repr(loaded) == repr(weights)
            assert torch.equal(loaded.dense(), weights.dense())
            assert torch.equal(loaded.distance(), weights.distance())
            assert torch.equal(loaded.value, key)

    def test_one_tensor_can_be_query_key_and_value(self, tmp_path):
        x = torch.randn(1, 1, 9, 3)
        _, weights = attention(x, x, x, return_weights=True)
        weights.save(tmp_path / "w")
        assert torch.equal(AttentionWeights.load(tmp_path / "w").dense(), weights.dense())

    def test_refuses_other_files_in_one_line(self, tmp_path):
        from safetensors.torch import save_file

        complete = tmp_path / "complete"
        sample()[-1].save(complete)
        (tmp_path / "short").write_bytes(complete.read_bytes()[:-50])
        (tmp_path / "junk").write_bytes(b"\x00\xff" * 99)
        (tmp_path / "empty").write_bytes(b"")
        save_file({"a": torch.ones(1)}, tmp_path / "foreign")
        for name, message in (
            ("short", "not a complete safetensors file"),
            ("junk", "not a complete safetensors file"),
            ("empty", "not a complete safetensors file"),
            ("foreign", "not saved by AttentionWeights.save"),
        ):
            with pytest.raises(ValueError, match=message) as caught:
                AttentionWeights.load(tmp_path / name)
            assert "\n" not in str(caught.value)
        with pytest.raises(FileNotFoundError, match="no such file"):
            AttentionWeights.load(tmp_path / "missing")

    def test_a_failed_write_keeps_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "w"
        sample()[-1].save(path)
        before = path.read_bytes()

        def raise_disk_full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("clearhead.weights.serialization.save_file", raise_disk_full)
        with pytest.raises(OSError, match="No space"):
            sample()[-1].save(path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir()] == ["w"]
