"""Tests of validation: loss, exact translations and BLEU."""

import pytest
import torch

from clearhead.translation import (
    Transformer,
    _decoding,
    _evaluation,
)
from clearhead.translation._decoding import decode_all
from clearhead.translation._evaluation import bleu_score, validate
from clearhead.translation.data._batching import batch_indices
from support.toy_training import (
    TINY,
    copying,
)


class TestValidation:
    def test_bleu_of_a_perfect_and_a_useless_translation(self):
        assert bleu_score(["ka ki ku ke"], ["ka ki ku ke"], "none") == pytest.approx(100)
        assert bleu_score(["so so so so"], ["ka ki ku ke"], "none") < 1
        assert bleu_score(["私は本を読んだ。"], ["私は本を読んだ。"], "ja-mecab") == pytest.approx(100)

    def test_metrics_do_not_depend_on_the_batch_size(self, monkeypatch):
        """Checks the loss, the order of the translations, and that the training mode is restored."""
        data = copying(30, 13)
        model = Transformer(TINY.model, len(data.vocabulary))
        for layer in model.decoder:  # make the translations depend on the sources
            torch.nn.init.normal_(layer.cross.output.weight)
            torch.nn.init.normal_(layer.cross.value.weight)
        sources, references = [pair.source for pair in data.valid], [pair.target for pair in data.references]
        metrics = []
        for tokens in (8192, 40):
            for module in (_decoding, _evaluation):
                monkeypatch.setattr(module, "EVALUATION_BATCH_TOKENS", tokens)
            assert (len(batch_indices(data.valid, tokens)) > 1) is (tokens < 1000)
            for mode in (True, False):
                model.train(mode)
                metrics.append(validate(model, data.vocabulary, data.valid, references, "none"))
                assert model.training is mode
            written = [
                hypothesis.tokens[:9] for hypothesis in decode_all(model.eval(), sources, beams=1)
            ]  # the token limit depends on the longest source of a batch
            assert written == [decode_all(model, [source], beams=1)[0].tokens[:9] for source in sources]
            assert len(set(written)) > 1
        for other in metrics[1:]:
            assert other.loss == pytest.approx(metrics[0].loss, rel=1e-5)

    def test_an_error_leaves_the_model_in_training_mode(self, monkeypatch):
        data = copying(30, 13)
        model = Transformer(TINY.model, len(data.vocabulary)).train()
        monkeypatch.setattr(model, "encode", lambda *arguments, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            validate(model, data.vocabulary, data.valid, [pair.target for pair in data.references], "none")
        assert all(module.training for module in model.modules())

    def test_exact_is_the_share_of_equal_translations(self, monkeypatch):
        data = copying(30, 13)
        model = Transformer(TINY.model, len(data.vocabulary)).eval()
        texts = [
            data.vocabulary.decode(hypothesis.tokens)
            for hypothesis in decode_all(model, [pair.source for pair in data.valid], beams=1)
        ]
        texts[:3] = ["ka"] * 3
        assert validate(model, data.vocabulary, data.valid, texts, "none").exact == 10 / 13
