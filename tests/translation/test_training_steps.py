"""Tests of training steps: loss, learning rate, best weights, divergence and a full run."""

from dataclasses import replace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from clearhead.translation import (
    RunDirectory,
    TrainingCallbacks,
    Transformer,
    _trainer,
    train,
)
from clearhead.translation._evaluation import ValidationMetrics
from clearhead.translation._loss import cross_entropy
from clearhead.translation._trainer import learning_rate_factor
from clearhead.translation.data._batching import batch_indices, collate
from clearhead.translation.tokenizer import PAD
from support.toy_training import (
    TINY,
    assert_same,
    changed,
    copying,
    weights,
)


class TestSteps:
    def test_the_learning_rate_warms_up_and_decays(self):
        rates = [learning_rate_factor(step, TINY.training) for step in range(1, 13)]
        assert rates[:4] == [1 / 3, 2 / 3, 1.0, 1.0]
        assert rates[3:] == sorted(set(rates[3:]), reverse=True)
        assert rates[-1] == pytest.approx(1 / 9)

    def test_the_optimizer_gets_the_scheduled_rate_and_clipped_gradients(self, tmp_path):
        rates, norms = [], {}

        def collect(optimizer, arguments, options):
            group = optimizer.param_groups[0]
            rates.append(group["lr"])
            norms[clip].append(float(torch.cat([p.grad.flatten() for p in group["params"]]).norm()))

        hook = register_optimizer_step_pre_hook(collect)
        try:
            for clip in (0.25, 1e6):
                norms[clip] = []
                train(copying(), changed(clip=clip, steps=5), RunDirectory(tmp_path / str(clip)))
        finally:
            hook.remove()
        assert rates[:5] == rates[5:]
        assert rates[:5] == [0.01 * learning_rate_factor(step, changed(steps=5).training) for step in range(1, 6)]
        assert norms[0.25] == pytest.approx([0.25] * 5, rel=1e-3)
        assert min(norms[1e6]) > 0.3

    def test_label_smoothing_matches_the_formula(self):
        logits = torch.randn(2, 3, 7)
        expected = torch.tensor([[5, 6, 2], [4, PAD, PAD]])
        logs = logits.log_softmax(dim=-1)
        tokens = [(0, 0, 5), (0, 1, 6), (0, 2, 2), (1, 0, 4)]  # all but the padding
        loss = sum(
            -0.7 * logs[row, position, token] - 0.3 * logs[row, position].mean() for row, position, token in tokens
        )
        assert float(cross_entropy(logits, expected, 0.3)) == pytest.approx(float(loss), rel=1e-5)

    def test_the_loss_of_a_step_is_the_mean_over_its_tokens(self, tmp_path):
        config = replace(changed(steps=1, label_smoothing=0.3), model=replace(TINY.model, dropout=0.0))
        data, run = copying(), RunDirectory(tmp_path / "run")
        train(data, config, run)
        torch.manual_seed(0)
        model = Transformer(config.model, len(data.vocabulary))
        first = batch_indices(data.epoch(0), 128, (0, 0))[0]
        batch = collate([data.epoch(0)[index] for index in first])
        with torch.no_grad():
            loss = cross_entropy(model(batch.source, batch.target, batch.lengths), batch.expected, 0.3)
        assert run.metrics()[-1]["loss"] == pytest.approx(float(loss) / int((batch.expected != PAD).sum()), abs=2e-5)

    def test_another_seed_gives_other_weights(self, complete_run, tmp_path):
        run = RunDirectory(tmp_path / "run")
        train(copying(), changed(seed=1), run)
        with pytest.raises(AssertionError):
            assert_same(run, complete_run)

    def test_bfloat16_training_keeps_float32_weights(self, tmp_path):
        run = RunDirectory(tmp_path / "run")
        train(copying(), TINY, run, dtype=torch.bfloat16)
        assert {tensor.dtype for tensor in weights(run.folder)["best"].values()} == {torch.float32}
        first, last = run.metrics()[0], run.metrics()[-1]
        assert last["validation"]["loss"] < first["validation"]["loss"]

    def test_a_toy_task_is_learned(self, tmp_path):
        """The task has seven sentences. A uniform guess has a loss of ln 15 = 2.7 nats."""
        data = copying(7, 7)
        data = replace(data, epoch=lambda index: data.valid)
        config = changed(steps=80, validate_every=80, warmup=8, label_smoothing=0.0)
        run = RunDirectory(tmp_path / "run")
        model = train(data, replace(config, model=replace(TINY.model, d_model=32, dropout=0.0)), run)
        first, last = (line["validation"] for line in run.metrics())
        assert first["loss"] > 2
        assert last["loss"] < 0.3
        assert last["exact"] == 1
        assert not model.training

    def test_train_uses_the_model_that_was_passed(self, tmp_path):
        config = replace(TINY, model=replace(TINY.model, d_model=8))
        model = Transformer(config.model, len(copying().vocabulary))
        assert train(copying(), config, RunDirectory(tmp_path / "run"), model=model) is model


class TestBest:
    @pytest.fixture
    def scripted(self, monkeypatch):
        """Return a function that scripts the validation scores; it returns the weights at each validation."""

        def prepare(*scores):
            script, snapshots = iter(scores), []

            def validate(model, *arguments):
                snapshots.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
                bleu, loss = next(script)
                return ValidationMetrics(loss, 0.0, bleu)

            monkeypatch.setattr(_trainer, "validate", validate)
            return snapshots

        return prepare

    def test_best_is_by_bleu_and_then_by_loss(self, scripted, tmp_path):
        run = RunDirectory(tmp_path / "run")
        snapshots = scripted((1, 9), (30, 5), (30, 4), (30, 4.5), (20, 1))
        model = train(copying(), changed(steps=4, validate_every=1), run)
        best = weights(run.folder)["best"]
        assert all(torch.equal(best[name], tensor) for name, tensor in snapshots[2].items())
        assert all(torch.equal(tensor, best[name]) for name, tensor in model.state_dict().items())
        assert not torch.equal(best["embedding.weight"], snapshots[3]["embedding.weight"])

    def test_patience_ends_the_run(self, scripted, tmp_path):
        messages, run = [], RunDirectory(tmp_path / "run")
        config = changed(steps=8, validate_every=1, patience=2)
        scripted((1, 9), (3, 9), (2, 9), (4, 9), (4, 9), (3, 9))
        train(copying(), config, run, callbacks=TrainingCallbacks(on_message=messages.append))
        assert messages == ["ended at step 5: BLEU has not improved in 2 validations"]
        assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3, 4, 5]
        before = weights(run.folder)
        train(copying(), config, run, resume=True)  # the script is empty: another validation would fail
        assert torch.equal(
            weights(run.folder)["last"]["model.embedding.weight"], before["last"]["model.embedding.weight"]
        )

    def test_zero_patience_never_ends_the_run(self, scripted, tmp_path):
        run = RunDirectory(tmp_path / "run")
        scripted((9, 9), *[(1, 9)] * 6)
        train(copying(), changed(steps=6, validate_every=1, patience=0), run)
        assert run.metrics()[-1]["step"] == 6


class TestDiverging:
    def test_a_nan_loss_raises(self, tmp_path):
        run = RunDirectory(tmp_path / "run")
        with pytest.raises(
            ValueError, match=r"step \d+: the loss is nan; a training.learning_rate below 1e\+30 may help"
        ):
            train(copying(), changed(learning_rate=1e30, warmup=1), run)
        assert all("NaN" not in line for line in (run.folder / "metrics.jsonl").read_text().splitlines())

    def test_resuming_in_another_dtype_is_refused(self, complete_run):
        with pytest.raises(ValueError, match="dtype is bfloat16; expected float32, as at the start of the run"):
            train(copying(), TINY, complete_run, dtype=torch.bfloat16, resume=True)
