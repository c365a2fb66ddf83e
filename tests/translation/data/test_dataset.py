"""Tests of datasets: the built-in grammar, and parallel text from files."""

from dataclasses import replace

import pytest

from clearhead.translation import (
    from_files,
    from_grammar,
)
from clearhead.translation.data import dataset
from support.toy_training import (
    TINY,
    WORDS,
    changed,
    sentences,
    written_columns,
)


class TestData:
    def test_grammar_data_are_reproducible_and_disjoint_from_held_out_sentences(self, monkeypatch):
        monkeypatch.setattr(dataset, "GRAMMAR_EPOCH_SIZE", 300)
        monkeypatch.setattr(dataset, "PROBE_SIZE", 50)
        data, again = from_grammar(TINY), from_grammar(TINY)
        assert data.fingerprint == again.fingerprint
        assert data.epoch(3) == again.epoch(3)
        assert data.epoch(3) != data.epoch(4)
        assert data.epoch(0) != from_grammar(changed(seed=1)).epoch(0)
        assert from_grammar(replace(TINY, text=replace(TINY.text, validation=8))).fingerprint != data.fingerprint
        learned = {data.vocabulary.decode(pair.source) for index in range(4) for pair in data.epoch(index)}
        assert len(data.epoch(0)) == 300
        assert len({pair.source for pair in data.references}) == 7
        assert len({example.source for example in data.probe}) == 50
        held_out = {pair.source for pair in data.references} | {" ".join(example.source) for example in data.probe}
        assert len(held_out) == 57
        assert not learned & held_out

    def test_a_validation_set_is_held_out_from_the_data(self, tmp_path):
        data = from_files([written_columns(tmp_path / "copies.tsv")], [], TINY)
        texts = set(sentences(47))
        learned = {data.vocabulary.decode(pair.source) for pair in data.epoch(0)}
        held_out = {pair.source for pair in data.references}
        assert len(held_out) == 7
        assert not held_out & learned
        assert held_out | learned == texts
        assert [data.vocabulary.decode(pair.target) for pair in data.valid] == [pair.target for pair in data.references]
        assert data.notes == ()

    def test_a_separate_validation_set_is_removed_from_the_data(self, tmp_path):
        columns, held_out = written_columns(tmp_path / "copies.tsv"), written_columns(tmp_path / "valid.tsv", 5)
        data = from_files([columns], [held_out], TINY)
        assert [pair.source for pair in data.references] == sentences(5)
        assert {data.vocabulary.decode(pair.source) for pair in data.epoch(0)} == set(sentences(47)[5:])
        assert data.notes == (f"5 pairs that are held out for validation left out (the first: {sentences(1)[0]!r})",)

    def test_long_pairs_are_left_out_and_noted(self, tmp_path):
        columns = tmp_path / "long.tsv"
        written_columns(columns)
        long = " ".join(WORDS * 4)
        columns.write_text(f"{long}\tKA\nka ki\t{long.upper()}\n{columns.read_text()}")
        config = replace(TINY, text=replace(TINY.text, max_tokens=40))
        data = from_files([str(columns)], [written_columns(tmp_path / "valid.tsv", 5)], config)
        assert (
            data.notes[-1]
            == f"2 training pairs of more than 40 tokens left out (text.max_tokens), the first: {long[:60]!r}"
        )
        assert len(data.epoch(0)) == 42
        with pytest.raises(ValueError, match="no training pair has at most 2 tokens"):
            from_files([str(columns)], [], replace(TINY, text=replace(TINY.text, max_tokens=2)))

    def test_too_few_pairs_for_validation_are_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"data has 7 pairs, but 7 are held out for validation"):
            from_files([written_columns(tmp_path / "few.tsv", 7)], [], TINY)

    def test_other_data_have_another_fingerprint(self, tmp_path):
        first, same, more = (
            from_files([written_columns(tmp_path / f"{index}.tsv", count)], [], TINY)
            for index, count in enumerate((40, 40, 41))
        )
        assert first.fingerprint == same.fingerprint != more.fingerprint

    def test_fingerprints_are_those_of_earlier_runs(self, tmp_path):
        """Runs store the fingerprint of their data, and can be resumed only with the same fingerprint."""
        assert from_grammar(TINY).fingerprint == 1452404977
        assert from_files([written_columns(tmp_path / "copies.tsv")], [], TINY).fingerprint == 2984895509
