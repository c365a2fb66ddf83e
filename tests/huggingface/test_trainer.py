"""Tests of `AttentionLogCallback`: steps of the Trainer are logged, and training computes the same."""

import copy
import inspect
import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional
from transformers import Trainer, TrainerCallback, TrainingArguments

from clearhead.huggingface import AttentionLogCallback
from clearhead.watching import AttentionLog
from support.tiny_models import VOCABULARY, make

ORIGINAL = SimpleNamespace(sdpa=functional.scaled_dot_product_attention)  # `watch` replaces references in modules
BATCH, LENGTH, ACCUMULATION, STEPS = 2, 7, 2, 6
QUERIES = BATCH * LENGTH * ACCUMULATION


class Texts(torch.utils.data.Dataset):
    def __init__(self, count, seed=1):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(3, VOCABULARY, (count, LENGTH), generator=generator)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def make_model():
    model = make("llama", "sdpa")
    model.config.attention_dropout = 0.1
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.1
    return model


def make_trainer(model, folder, *callbacks, **options):
    arguments = TrainingArguments(
        folder,
        **{
            "per_device_train_batch_size": BATCH,
            "per_device_eval_batch_size": 5,
            "gradient_accumulation_steps": ACCUMULATION,
            "max_steps": STEPS,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "logging_strategy": "no",
            "dataloader_pin_memory": False,
            **options,
        },
    )
    return Trainer(
        model, arguments, train_dataset=Texts(STEPS * QUERIES // LENGTH), eval_dataset=Texts(5), callbacks=[*callbacks]
    )


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_clean(model):
    assert functional.scaled_dot_product_attention is ORIGINAL.sdpa
    assert "forward" not in vars(model)


def test_training_is_equal_with_and_without_the_callback(tmp_path):
    states = []
    for callbacks in ([], [AttentionLogCallback(every=2)]):
        model = make_model()
        trainer = make_trainer(model, tmp_path, *callbacks)
        trainer.train()
        states.append([*model.state_dict().values(), torch.get_rng_state()])
        assert_clean(model)
    assert all(torch.equal(plain, logged) for plain, logged in zip(*states, strict=True))
    logged = lines(tmp_path / "attention.jsonl")
    assert [line["step"] for line in logged] == [1, 2, 4, 6]
    for line in logged:
        assert list(line["modules"]) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
        assert all(module["queries"] == QUERIES for module in line["modules"].values())  # evaluation is not counted


def test_statistics_are_those_of_the_batches_of_a_step(tmp_path):
    batches = []

    class Keeping(Trainer):
        def training_step(self, model, inputs, *args):
            batches.append({name: tensor.clone() for name, tensor in inputs.items()})
            return super().training_step(model, inputs, *args)

    model = make_model()
    trainer = make_trainer(model, tmp_path, AttentionLogCallback(tmp_path / "log.jsonl"), max_steps=1)
    trainer.__class__ = Keeping
    before = copy.deepcopy(model).train()
    trainer.train()
    assert len(batches) == ACCUMULATION
    log = AttentionLog(before, tmp_path / "plain.jsonl", every=1)
    with log.step(1):
        for batch in batches:
            before(**batch)
    # dropout differs, and it changes the second layer only
    (got,), (expected,) = lines(tmp_path / "log.jsonl"), lines(tmp_path / "plain.jsonl")
    assert got["modules"]["model.layers.0.self_attn"] == expected["modules"]["model.layers.0.self_attn"]


# transformers ≥ 5.23 has the first name
CHECKPOINTING = next(
    name for name in ("activation_checkpointing", "gradient_checkpointing") if hasattr(TrainingArguments, name)
)


@pytest.mark.parametrize("option", [CHECKPOINTING, "bf16"])
def test_checkpointing_and_mixed_precision_are_observed_once(tmp_path, option):
    model = make_model()
    make_trainer(model, tmp_path, AttentionLogCallback(every=1), max_steps=2, **{option: True}).train()
    assert [line["step"] for line in lines(tmp_path / "attention.jsonl")] == [1, 2]
    for line in lines(tmp_path / "attention.jsonl"):
        assert all(module["queries"] == QUERIES for module in line["modules"].values())
    assert functional.scaled_dot_product_attention is ORIGINAL.sdpa


class Raising(TrainerCallback):
    """Raise in a step, or stop the training between two batches of a step."""

    def __init__(self, error, event):
        self.error = error
        setattr(self, event, self.fail)

    def fail(self, args, state, control, **kwargs):
        if self.error is None:
            control.should_training_stop = True
        elif state.global_step == 1:
            raise self.error
        return control


def test_interruption_leaves_nothing_replaced(tmp_path):
    for error in (KeyboardInterrupt("stop"), RuntimeError("stop")):
        model = make_model()

        def fail(*args, error=error):
            assert functional.scaled_dot_product_attention is not ORIGINAL.sdpa
            raise error

        handle = model.model.layers[1].self_attn.q_proj.register_forward_hook(fail)
        callback = AttentionLogCallback(every=1)
        trainer = make_trainer(model, tmp_path / error.__class__.__name__, callback)
        with pytest.raises(type(error), match="stop"):
            trainer.train()
        assert functional.scaled_dot_product_attention is ORIGINAL.sdpa
        handle.remove()
        model.eval()(torch.tensor([[3, 4, 5]]))  # not observed
        trainer.train()
        assert_clean(model)
        logged = lines(tmp_path / error.__class__.__name__ / "attention.jsonl")
        assert [line["step"] for line in logged] == [1, 2, 3, 4, 5, 6]
        assert all(module["queries"] == QUERIES for line in logged for module in line["modules"].values())


def test_error_between_passes_leaves_nothing_replaced(tmp_path):
    model = make_model()
    callback = AttentionLogCallback(every=1)
    with pytest.raises(RuntimeError, match="stop"):
        make_trainer(model, tmp_path, callback, Raising(RuntimeError("stop"), "on_substep_end")).train()
    assert functional.scaled_dot_product_attention is ORIGINAL.sdpa
    assert [line["step"] for line in lines(tmp_path / "attention.jsonl")] == [1]
    twin = copy.deepcopy(model)  # its forward pass is that of the copy
    with torch.no_grad():
        twin.lm_head.weight.zero_()
        assert not twin(torch.tensor([[3, 4, 5]])).logits.any()
    assert next(iter(inspect.signature(model.forward).parameters)) == "input_ids"


def test_step_that_stops_between_batches_is_not_logged(tmp_path):
    model = make_model()
    make_trainer(model, tmp_path, AttentionLogCallback(every=1), Raising(None, "on_substep_end")).train()
    assert not (tmp_path / "attention.jsonl").exists()
    assert_clean(model)


def test_another_wrapper_around_forward_is_kept(tmp_path):
    model = make_model()
    calls = []

    class Wrapping(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            inner = model.forward
            model.forward = lambda *args, **kwargs: calls.append(1) or inner(*args, **kwargs)

    make_trainer(model, tmp_path, AttentionLogCallback(every=1), Wrapping(), max_steps=1, eval_strategy="no").train()
    before = len(calls)
    model(torch.tensor([[3, 4, 5]]))
    assert len(calls) == before + 1
    assert functional.scaled_dot_product_attention is ORIGINAL.sdpa


def test_rejects_wrong_arguments(tmp_path):
    with pytest.raises(ValueError, match="every is 0; expected a whole number of at least 1"):
        AttentionLogCallback(every=0)
    with pytest.raises(IsADirectoryError, match="a folder; expected the name of a file"):
        AttentionLogCallback(tmp_path)
    with pytest.raises(TypeError, match="tensorboard is 3; expected a folder, or a writer with add_scalar"):
        AttentionLogCallback(tensorboard=3)
    trainer = make_trainer(make_model(), tmp_path, AttentionLogCallback(where="nothing"))
    with pytest.raises(ValueError, match="where is 'nothing', which matches none of"):
        trainer.train()
    for name, value, message in (
        ("torch_compile", True, "torch_compile is True, and AttentionLogCallback cannot observe compiled"),
        ("_n_gpu", 2, "the Trainer has 2 GPUs in one process"),
    ):
        trainer = make_trainer(make_model(), tmp_path)
        setattr(trainer.args, name, value)
        with pytest.raises(ValueError, match=message):
            AttentionLogCallback().on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)
