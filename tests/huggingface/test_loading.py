"""Tests of loading files: a GGUF header that is parsed once, progress by stage, and no output without a terminal."""

import shutil
import sys
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from gguf import gguf_reader
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, modeling_gguf_pytorch_utils
from transformers.utils import logging

from clearhead.huggingface.model import HuggingFaceModel
from clearhead.models import load
from support.tiny_models import make
from support.tiny_tokenizer import tokenizer

LAYERS, WIDTH, INNER, HEADS, KEY_HEADS = 2, 32, 48, 4, 2


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """GGUF file of a random Llama with a byte-level vocabulary."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer, generator = gguf.GGUFWriter(path, "llama"), np.random.default_rng(0)
    tokens = ["<s>", "</s>", "<unk>", *"abcdefghij", "Ġ", "ab"]
    writer.add_name("Tiny Llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    shapes = {"token_embd.weight": (len(tokens), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        parts = {"attn_q": (WIDTH, WIDTH), "attn_k": (WIDTH // 2, WIDTH), "attn_v": (WIDTH // 2, WIDTH)}
        parts |= {"attn_output": (WIDTH, WIDTH), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
        parts |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    for name, shape in shapes.items():
        writer.add_tensor(name, generator.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_model_has_the_name_of_its_file_or_of_its_metadata(file, tmp_path, monkeypatch):
    model = load(file)
    assert model.name == HuggingFaceModel.from_module(model.model).name == "tiny"
    monkeypatch.chdir(file.parent)
    assert load("tiny.gguf").name == "tiny"
    for folder in (".", file.parent):
        loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name)
        assert HuggingFaceModel.from_module(loaded).name == "Tiny Llama"
    shutil.copy(file, tmp_path / "model.gguf")
    assert load(tmp_path / "model.gguf").name == "Tiny Llama"
    tuned = make("llama")
    tuned.config._model_name_or_path = "Tiny Llama"  # saved by a model that was loaded from a GGUF file
    tuned.save_pretrained(tmp_path / "own")
    assert HuggingFaceModel.from_module(AutoModelForCausalLM.from_pretrained(tmp_path / "own")).name == "own"


def test_model_is_never_named_after_a_path(tmp_path, monkeypatch):
    for folder in (tmp_path / "mine", tmp_path / "yours" / "model"):
        make("bert").save_pretrained(folder)
        tokenizer().save_pretrained(folder)
    monkeypatch.chdir(tmp_path / "mine")
    assert load(".").name == load(tmp_path / "mine").name == "mine"
    loaded = AutoModel.from_pretrained(".")
    assert HuggingFaceModel.from_module(loaded).name == "mine"
    assert load(tmp_path / "yours" / "model").name == load("../yours/model").name == "yours"
    assert HuggingFaceModel.from_module(AutoModel.from_pretrained(tmp_path / "yours" / "model")).name == "yours"
    loaded.name_or_path = "someone/a-model"
    assert HuggingFaceModel.from_module(loaded).name == "someone/a-model"
    assert HuggingFaceModel.from_module(make("bert")).name == "BertModel"


def test_gguf_files_are_parsed_once_and_load_as_transformers_does(file, monkeypatch, capsys):
    parsed, parse = [], gguf_reader.GGUFReader.__init__

    def counted(self, *arguments, **options):
        parsed.append(self)
        parse(self, *arguments, **options)

    monkeypatch.setattr(gguf_reader.GGUFReader, "__init__", counted)
    before = gguf.GGUFReader, gguf.get_tensor_name_map, modeling_gguf_pytorch_utils.tqdm
    stages = []
    model = load(file, head=None, progress=lambda *stage: stages.append(stage))
    assert len(parsed) <= 1  # 0 if transformers reads this architecture by itself
    assert (gguf.GGUFReader, gguf.get_tensor_name_map, modeling_gguf_pytorch_utils.tqdm) == before
    expected = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    state = model.model.state_dict()
    for name, parameter in expected.state_dict().items():
        assert torch.equal(state[name], parameter), name
    made = model.record("abab cab")
    assert made["decoder"].queries.texts[:2] == ("ab", "ab")
    assert made.next_tokens.at(1)
    assert [*dict.fromkeys(name for name, _, _ in stages)][:4] == [
        "importing transformers",
        "reading the configuration",
        "loading the tokenizer",
        "loading the model",
    ]
    counted_stages = [stage for stage in stages if stage[2]]
    assert counted_stages[-1][1] == counted_stages[-1][2] > 9
    assert len(counted_stages) > 20  # the bar moves
    capsys.readouterr()
    load(file)
    assert capsys.readouterr() == ("", "")


def test_folders_report_their_weights(tmp_path):
    make("bert").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    stages = []
    load(tmp_path, progress=lambda *stage: stages.append(stage))
    assert stages[-1][0] == "loading weights"
    assert stages[-1][1] == stages[-1][2] > 9
    enabled = logging.is_progress_bar_enabled()
    load(tmp_path)
    assert logging.is_progress_bar_enabled() == enabled
    assert logging.set_tqdm_hook(None) is None
    with pytest.raises(TypeError, match="progress is 'yes'; expected a function of stage, done and total, or None"):
        load(tmp_path, progress="yes")


def test_bars_are_shown_on_terminals(file, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    load(file)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "100%" in captured.err


def test_errors_of_transformers_contain_no_control_characters(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(AutoConfig, "from_pretrained", Mock(side_effect=ValueError("no\n\x1b[2J model")))
    with pytest.raises(ValueError, match=r": no \\x1b\[2J model$"):
        load(tmp_path)
