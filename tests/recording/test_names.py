"""Tests of names of models, which are never paths."""

import pytest

from clearhead.recording.names import model_name


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/llama-finetuned", "llama-finetuned"),
        ("/data/llama-finetuned/model/", "llama-finetuned"),
        ("/data/bert/0_Transformer", "bert"),
        ("~/models/mine", "mine"),
        ("./mine", "mine"),
        (".cache/x/MiniLM/model", "MiniLM"),
        ("runs/sst2/checkpoint-500", "sst2"),
        ("/data/x/llama/checkpoint_20", "llama"),
        ("/data/x/llama/step1000", "llama"),
        ("/data/x/llama/epoch-3", "llama"),
        ("/data/x/llama/first-step-1", "first-step-1"),
        (r"C:\Users\ann\mine\model", "mine"),
        ("C:/work/x/mine", "mine"),
        ("/data/x/SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1"),
        ("/data/llama/ggml-model-q4_0.gguf", "llama"),
        (f"/x/hub/models--org--bert-base/snapshots/{'0123456789' * 4}", "org/bert-base"),
        ("/home/ann/model", "model"),
        (r"C:\Users\ann\model", "model"),
        ("/model", "model"),
        ("model", "model"),
        (".", "model"),
        ("..", "model"),
        ("/", "model"),
    ],
)
def test_path_gives_the_name_of_its_file_or_folder(path, name):
    assert model_name(path) == name
    assert model_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["en-ja", "sentence-transformers/all-MiniLM-L6-v2", "timm:vit_small.lvd", "pkg.module:make", "A/B", "a b\nc", ""],
)
def test_other_names_are_unchanged(name):
    assert model_name(name) == name


def test_default_is_the_name_of_a_path_without_one():
    assert model_name("/home/ann/models", "LlamaModel") == "LlamaModel"
