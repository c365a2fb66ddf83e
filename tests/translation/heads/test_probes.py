"""Tests of head analysis: probes on models with known attention, emergence, ablation and the plot."""

import xml.etree.ElementTree as ElementTree
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from clearhead.analysis.relations import wilson
from clearhead.translation.config import Config, TextConfig
from clearhead.translation.data.dataset import encode_pair, from_grammar
from clearhead.translation.data.grammar import generate
from clearhead.translation.data.grammar.generate import SOURCE_RELATIONS, TARGET_RELATIONS, AnnotatedPair, Link
from clearhead.translation.heads import probes
from clearhead.translation.heads.ablation import TOKEN_KINDS, AblationEffect, ablation_effect, token_kinds
from clearhead.translation.heads.emergence import Emergence, measure_emergence
from clearhead.translation.heads.probes import RELATION_STACKS, ProbeResult, head_accuracies, probe_results
from clearhead.translation.model import Memory, Transformer
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.tokenizer import PAD, Vocabulary
from support.small_transformers import make

WORDS = [f"w{index}" for index in range(47)]
VOCABULARY = Vocabulary.from_words(WORDS)


def make_pair(index: int, length: int, steps: dict[str, int] | int, relations=tuple(RELATION_STACKS)) -> AnnotatedPair:
    """Return a sentence of this length; each relation links its third token to the one `steps` further on."""
    steps = dict.fromkeys(RELATION_STACKS, steps) if isinstance(steps, int) else steps
    source = (WORDS[index], *WORDS[1:length])
    links = tuple(Link(relation, 2, 2 + steps[relation]) for relation in relations)
    return AnnotatedPair(source, (WORDS[30], WORDS[29], WORDS[index]), links)


class ScriptedHeads(Transformer):
    """Model whose heads are functions of a query's position, its answer, and the number of words.

    A head returns the keys that it attends to, in order of decreasing weight. The last key of a sentence is the end
    token; padding follows.
    """

    def __init__(self, probe, encoder, cross):
        nn.Module.__init__(self)  # skip the layers of Transformer
        self.embedding = nn.Embedding(2, 3)
        self.pairs = {tuple(encode_pair(VOCABULARY, pair).source): pair for pair in probe}
        self.heads = {"encoder": encoder, "cross": cross}
        self.batches = []

    def forward(self, source, target, lengths, *, return_weights):
        assert return_weights
        assert not self.training
        pairs = [self.pairs[tuple(row[row != PAD].tolist())] for row in source]
        self.batches.append(len(pairs))
        sides = {"encoder": (source.shape[1],) * 2, "cross": (target.shape[1], source.shape[1])}
        attentions = {}
        for stack, layers in self.heads.items():
            attentions[stack] = []
            for heads in layers:
                weights = torch.zeros(len(pairs), len(heads), *sides[stack])
                for row, pair in enumerate(pairs):
                    answers = {link.at: link.to for link in pair.links if RELATION_STACKS[link.relation] == stack}
                    for index, head in enumerate(heads):
                        for query in range(sides[stack][0]):
                            for rank, key in enumerate(head(query, answers.get(query, 0), len(pair.source))):
                                if 0 <= key < source.shape[1]:
                                    weights[row, index, query, key] += 2.0**-rank
                attentions[stack].append(SimpleNamespace(dense=weights.clone))
        return None, attentions


def gold(query, answer, words):
    return [answer]


def next_word(query, answer, words):
    return [query + 1]


def first_word(query, answer, words):
    return [0]


def distracted(query, answer, words):
    """Return the token itself, the end token and padding before the answer."""
    return [query, words, words + 1, words + 2, answer]


class TestAccuracies:
    # five sentences in each half: 4 of 5 even ones link to the next word, and 2 of 5 odd ones
    PROBE = tuple(make_pair(index, 5 + index % 3, 1 if index in (0, 2, 4, 6, 1, 3) else -1) for index in range(10))

    def test_accuracies_of_scripted_heads(self):
        model = ScriptedHeads(
            self.PROBE, [[gold, next_word], [first_word, distracted]], [[first_word, gold, next_word]]
        )
        table = head_accuracies(model, VOCABULARY, self.PROBE)
        assert table.keys() == RELATION_STACKS.keys()
        for relation in SOURCE_RELATIONS:
            assert table[relation] == {"0.0": (1, 1), "0.1": (0.8, 0.4), "1.0": (0, 0), "1.1": (1, 1)}
        for relation in TARGET_RELATIONS:
            assert table[relation] == {"0.0": (0, 0), "0.1": (1, 1), "0.2": (0.8, 0.4)}

    def test_only_self_attention_excludes_the_word_itself(self):
        """Token 2 of the target may attend to word 2 of the source; a word of the source not to itself."""
        probe = tuple(make_pair(index, 5, dict.fromkeys(TARGET_RELATIONS, 0) | dict.fromkeys(SOURCE_RELATIONS, 1))
                      for index in range(4))  # fmt: skip
        model = ScriptedHeads(probe, [[distracted]], [[lambda query, answer, words: [query]]])
        table = head_accuracies(model, VOCABULARY, probe)
        assert {table[relation]["0.0"] for relation in RELATION_STACKS} == {(1, 1)}

    def test_the_end_and_padding_are_excluded(self):
        def end_first(query, answer, words):
            return [words, words + 1, words + 2, answer]

        model = ScriptedHeads(self.PROBE, [[end_first]], [[end_first]])
        table = head_accuracies(model, VOCABULARY, self.PROBE)
        assert {table[relation]["0.0"] for relation in RELATION_STACKS} == {(1, 1)}

    @pytest.mark.parametrize("batch", [1, 3, 100])
    def test_halves_do_not_depend_on_the_batch_size(self, batch, monkeypatch):
        monkeypatch.setattr(probes, "PROBE_BATCH_SIZE", batch)
        model = ScriptedHeads(self.PROBE, [[next_word]], [[next_word]])
        assert head_accuracies(model, VOCABULARY, self.PROBE)["noun"] == {"0.0": (0.8, 0.4)}
        assert model.batches[0] == min(batch, 10)

    @pytest.mark.parametrize("training", [False, True])
    def test_the_training_mode_is_restored(self, training):
        model = ScriptedHeads(self.PROBE, [[gold]], [[gold]]).train(training)
        head_accuracies(model, VOCABULARY, self.PROBE)
        assert model.training == training

    def test_padded_batches_give_the_accuracies_of_single_sentences(self, monkeypatch):
        monkeypatch.setattr(probes, "PROBE_BATCH_SIZE", 31)
        probe = tuple(islice(generate.sentences(0, "probe"), 71))
        source, target = generate.vocabulary()
        vocabulary = Vocabulary.from_words(sorted({*source, *target}))
        model = make(len(vocabulary), scale=0.1)
        correct, counts = {}, {}
        for pair_index, pair in enumerate(probe):
            read, written = (vocabulary.encode(" ".join(side)) for side in (pair.source, pair.target))
            with torch.no_grad():
                _, attentions = model(torch.tensor([read]), torch.tensor([[1, *written[:-1]]]), return_weights=True)
            for relation, at, to in pair.links:
                row = attentions[RELATION_STACKS[relation]][1].dense()[0, 2, at, : len(pair.source)].clone()
                if RELATION_STACKS[relation] == "encoder":
                    row[at] = 0
                key = relation, pair_index % 2
                correct[key] = correct.get(key, 0) + (int(row.argmax()) == to)
                counts[key] = counts.get(key, 0) + 1
        table = head_accuracies(model, vocabulary, probe)
        for relation in RELATION_STACKS:
            expected = [correct[relation, half] / counts[relation, half] for half in (0, 1)]
            assert table[relation]["1.2"] == pytest.approx(expected, abs=1e-4)


def test_every_word_of_the_grammar_is_one_token(monkeypatch):
    monkeypatch.setattr("clearhead.translation.data.dataset.PROBE_SIZE", 211)
    data = from_grammar(Config(text=TextConfig(validation=1)))
    assert len(data.probe) == 211
    for pair in data.probe:
        for side, token_ids in zip((pair.source, pair.target), encode_pair(data.vocabulary, pair), strict=True):
            assert data.vocabulary.pieces(token_ids) == [*side, "</s>"]


class TestProbeResults:
    def test_heads_are_selected_on_one_half_and_scored_on_the_other(self):
        """Head 0.0 and the next word are best on the even sentences, but not on the odd ones."""
        probe = [make_pair(index, 5, 1 if index in (0, 2, 3) else -2) for index in range(8)]
        probe[4] = probe[0]
        table = {"noun": {"0.0": (0.9, 0.25), "1.2": (0.8, 1.0)}, "verb → object": {"0.0": (0.1, 1.0), "2.1": (0.2, 0)}}
        noun, verb = probe_results(table, probe)
        assert (noun.relation, noun.address, noun.accuracy) == ("noun", ("cross", 0, 0), 0.25)
        assert (verb.relation, verb.address, verb.accuracy) == ("verb → object", ("encoder", 2, 1), 0)
        assert (noun.offset, noun.baseline, noun.count) == (1, 0.25, 4)
        assert (noun.low, noun.high) == wilson(1, 4)

    def test_only_links_of_the_relation_count(self):
        probe = [make_pair(index, 5, 1, ("noun",) if index < 4 else ("verb",)) for index in range(10)]
        assert [
            result.count for result in probe_results({"noun": {"0.0": (1, 1)}, "verb": {"0.0": (1, 1)}}, probe)
        ] == [2, 3]

    @pytest.mark.parametrize(("count", "clear"), [(5, False), (10, True)])
    def test_clear_requires_a_significant_difference(self, count, clear):
        """The offset is right in 3 of 5, the head always: its lower bound is 57 % for 5 links and 72 % for 10."""
        odd = [make_pair(index, 5, 1 if index % 5 < 3 else -1) for index in range(count)]
        probe = [pair for couple in zip([make_pair(0, 5, 1)] * count, odd, strict=True) for pair in couple]
        (result,) = probe_results({"noun": {"0.0": (1.0, 1.0)}}, probe)
        assert (result.count, result.baseline, result.accuracy) == (count, 0.6, 1.0)
        assert result.low == wilson(count, count)[0]
        assert result.clear is clear

    def test_a_head_equal_to_the_offset_is_not_clear(self):
        probe = [make_pair(index, 5, 1) for index in range(20)]
        (result,) = probe_results({"noun": {"0.0": (1.0, 1.0)}}, probe)
        assert (result.accuracy, result.baseline, result.clear) == (1.0, 1.0, False)


class TestEmergence:
    PROBE = tuple(make_pair(index, 5, 1 if index % 4 < 2 else -1) for index in range(40))

    def table(self, first: tuple[float, float], second: tuple[float, float]):
        return {relation: {"0.0": first, "0.1": second} for relation in RELATION_STACKS}

    def run(self, folder) -> RunDirectory:
        run = RunDirectory(folder)
        run.add_metrics({"step": 0, "heads": self.table((0.3, 0.2), (0.1, 0.15)), **self.quality(0)})
        run.add_metrics({"step": 5})
        run.add_metrics({"step": 10, "heads": self.table((0.4, 0.5), (0.6, 0.65)), **self.quality(60)})
        last = self.table((0.5, 1.0), (0.9, 0.95)) | {"tense": {"0.0": (0.5, 0.5), "0.1": (0.4, 0.4)}}
        run.add_metrics({"step": 20, "heads": last, **self.quality(70)})
        return run

    def quality(self, bleu: float):
        return {"validation": {"loss": 1.0, "exact": 0.0, "bleu": bleu}}

    def test_emergence_is_read_from_the_metrics(self, tmp_path):
        emergence = measure_emergence(self.run(tmp_path), self.PROBE)
        assert emergence.steps == [0, 10, 20]
        assert emergence.curves["noun"] == [0.15, 0.65, 0.95]  # scores of the head selected at the end
        assert emergence.curves["tense"] == [0.2, 0.5, 0.5]
        assert emergence.curves.keys() == RELATION_STACKS.keys()
        trained, untrained = (
            {result.relation: result for result in side} for side in (emergence.trained, emergence.untrained)
        )
        assert (trained["noun"].address, trained["noun"].accuracy) == (("cross", 0, 1), 0.95)
        assert (untrained["noun"].address, untrained["noun"].accuracy) == (("cross", 0, 0), 0.2)
        assert trained["noun"].baseline == 0.5

    def test_trained_results_are_those_of_the_best_step(self, tmp_path):
        run = self.run(tmp_path)
        run.add_metrics({"step": 30, "heads": self.table((1.0, 0.0), (0.0, 0.0)), **self.quality(65)})
        emergence = measure_emergence(run, self.PROBE)
        assert (emergence.best, emergence.steps) == (20, [0, 10, 20, 30])
        assert emergence.trained[0].address == ("cross", 0, 1)
        assert emergence.curves["noun"] == [0.15, 0.65, 0.95, 0.0]

    def test_only_clear_relations_are_labels(self, tmp_path):
        labels = measure_emergence(self.run(tmp_path), self.PROBE).labels()
        assert labels == {
            ("cross", 0, 1): [relation for relation in TARGET_RELATIONS if relation != "tense"],
            ("encoder", 0, 1): [*SOURCE_RELATIONS],
        }

    def test_a_run_without_head_accuracies_is_refused(self, tmp_path):
        run = RunDirectory(tmp_path)
        for _ in range(2):
            with pytest.raises(ValueError, match="has no head accuracies"):
                measure_emergence(run, self.PROBE)
            run.add_metrics({"step": 0})


class Oracle(Transformer):
    """Model that returns the reference translations; with an ablated head, the verb of w3 sentences is wrong."""

    def __init__(self, probe):
        nn.Module.__init__(self)  # skip the layers of Transformer
        self.embedding = nn.Embedding(len(VOCABULARY), 1)
        self.pairs = {tuple(encode_pair(VOCABULARY, pair).source): pair for pair in probe}

    def forward(self, source, target, lengths, *, ablate):
        return torch.stack([self.logits(row, target.shape[1], ablate) for row in source])

    def logits(self, row, count, ablate):
        pair = self.pairs[tuple(row[row != PAD].tolist())]
        target = encode_pair(VOCABULARY, pair).target
        target += [PAD] * (count - len(target))
        if ablate and pair.source[0] == "w3":
            at = next(link.at for link in pair.links if link.relation == "verb")
            (target[at],) = VOCABULARY.encode("w7")[:-1]
        return nn.functional.one_hot(torch.tensor(target[:count]), len(VOCABULARY)).double()

    def encode(self, source, lengths, *, ablate):
        return Memory(source[..., None].double(), None)

    def caches(self):
        return []

    def decode(self, last, memory, *, caches, ablate):
        caches.append(last)
        return torch.stack([self.logits(row, len(caches), ablate) for row in memory.states[..., 0].long()])


class TestAblation:
    def test_ablating_a_necessary_head_causes_errors(self):
        # the verb is at 2, the adjective at 0; the link within the source has no effect
        probe = [
            AnnotatedPair(
                (WORDS[index % 5], *WORDS[10 : 13 + index]),
                ("w20", "w21", "w22", *["w23"] * index),
                (Link("adjective", 0, 1), Link("verb", 2, 2), Link("verb → object", 1, 2)),
            )
            for index in range(10)
        ]
        model = Oracle(probe).train()
        effect = ablation_effect(model, VOCABULARY, probe, ("encoder", 0, 0))
        assert effect == AblationEffect(
            ("encoder", 0, 0),
            (1.0, 0.8),
            {"adjective": (0.0, 0.0), "verb": (0.0, 0.2), "particle": (0.0, 0.0)},
            (" ".join(probe[3].source), "w20 w21 w22 w23 w23 w23", "w20 w21 w7 w23 w23 w23"),
        )

    def test_ablating_an_idle_head_has_no_effect(self):
        probe = tuple(islice(generate.sentences(0, "probe"), 31))
        source, target = generate.vocabulary()
        vocabulary = Vocabulary.from_words(sorted({*source, *target}))
        model = make(len(vocabulary), scale=0.1)
        with torch.no_grad():
            model.decoder[1].cross.output.weight[:, 10:20] = 0
        idle = ablation_effect(model, vocabulary, probe, ("cross", 1, 1))
        assert idle.exact[0] == idle.exact[1]
        assert all(before == after for before, after in idle.errors.values())
        assert idle.errors.keys() == {*TOKEN_KINDS}
        assert idle.example is None


def test_token_kinds_name_adverbs_tenses_and_particles():
    pair = next(
        candidate
        for candidate in generate.sentences(0)
        if "yukkuri" in candidate.target and "mashita" in candidate.target
    )
    named = dict(zip(pair.target, token_kinds(pair), strict=True))
    assert (named["yukkuri"], named["mashita"], named["."]) == ("adverb", "tense", "other word")
    assert {named[token] for token in ("wa", "ga", "o") if token in named} == {"particle"}
    assert {*named.values()} <= {*TOKEN_KINDS}


class TestPlot:
    def emergence(self) -> Emergence:
        trained = [
            ProbeResult(relation, (RELATION_STACKS[relation], 0, index % 4), 0.9, 0.8, 0.95, 100, 1, 0.3)
            for index, relation in enumerate(RELATION_STACKS)
        ]
        return Emergence(trained, trained, 20, [0, 10, 20], {relation: [0.1, 0.5, 0.9] for relation in RELATION_STACKS})

    def test_an_svg_is_written_without_temporary_files(self, tmp_path):
        pytest.importorskip("matplotlib")
        from clearhead.translation.heads.emergence_plot import plot_emergence

        path = tmp_path / "heads.svg"
        plot_emergence(self.emergence(), path, title="a run < another & so on")
        assert [path.name for path in tmp_path.iterdir()] == ["heads.svg"]
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        text = path.read_text(encoding="utf-8")
        for relation in RELATION_STACKS:
            assert f"{relation} (0." in text
        assert "a run &lt; another &amp; so on" in text

    def test_files_of_the_same_run_are_identical(self, tmp_path):
        pytest.importorskip("matplotlib")
        from clearhead.translation.heads.emergence_plot import plot_emergence

        for name in ("one.svg", "two.svg"):
            plot_emergence(self.emergence(), tmp_path / name)
        assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
        assert b"dc:date" not in (tmp_path / "one.svg").read_bytes()

    def test_png_is_supported_and_an_unknown_format_is_refused(self, tmp_path):
        pytest.importorskip("matplotlib")
        from clearhead.translation.heads.emergence_plot import plot_emergence

        plot_emergence(self.emergence(), tmp_path / "heads.png")
        assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")
        with pytest.raises(ValueError, match="doc"):
            plot_emergence(self.emergence(), tmp_path / "heads.doc")
        assert [path.name for path in tmp_path.iterdir()] == ["heads.png"]
