"""Tests of `AttentionLog`: its lines have the statistics of the observed steps, over forward passes and ranks."""

import json
import math
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from clearhead import attention, watch
from clearhead.distributed import ProcessGroup
from clearhead.ops.masks import Causal
from clearhead.watching import AttentionLog
from clearhead.watching._head_totals import HeadTotals, over_ranks
from support.ranks import started
from support.tiny_models import inputs_for, make

HEADS, WIDTH = 3, 5
ORIGINAL = SimpleNamespace(sdpa=functional.scaled_dot_product_attention)  # `watch` replaces references in modules


class Block(nn.Module):
    def __init__(self, heads=HEADS):
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * heads * WIDTH)
        self.heads = heads

    def factors(self, x):
        return self.project(x).unflatten(-1, (3, self.heads, WIDTH)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        return functional.scaled_dot_product_attention(*self.factors(x), is_causal=True).mean(dim=1).repeat(1, 1, HEADS)


class Model(nn.Module):
    def __init__(self, *, reentrant=None, skip=None):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.reentrant, self.skip = reentrant, skip

    def forward(self, x):
        for index, block in enumerate(self.blocks):
            if index == self.skip:
                continue
            output = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
            x = x + output
        return x


class ScalarList(list):
    def add_scalar(self, tag, value, step):
        self.append((tag, value, step))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def data(batch=2, length=7, seed=1):
    return torch.randn(batch, length, HEADS * WIDTH, generator=torch.Generator().manual_seed(seed))


def expected_heads(model, batches):
    """Return the statistics of each head of the two blocks, from the lazy matrices of all batches."""
    columns = [{"entropy": [], "distance": [], "sink": [], "peak": []} for _ in model.blocks]
    with torch.no_grad():
        for x in batches:
            for block, rows in zip(model.blocks, columns, strict=True):
                query, key, value = block.factors(x)
                _, weights = attention(query, key, value, mask=Causal(), return_weights=True)
                for name, statistic in (
                    ("entropy", weights.entropy()),
                    ("distance", weights.distance()),
                    ("sink", weights.dense()[..., 0]),
                    ("peak", weights.peak()),
                ):
                    rows[name].append(statistic.transpose(0, 1).flatten(1))
                x = x + block(x)
    return [{name: reduced(name, torch.cat(parts, dim=1)) for name, parts in rows.items()} for rows in columns]


def reduced(name, rows):
    return rows.amax(dim=1) if name == "peak" else rows.mean(dim=1)


def assert_line(line, model, batches):
    for index, expected in enumerate(expected_heads(model, batches)):
        module = line["modules"][f"blocks.{index}"]
        assert module["queries"] == sum(x.shape[0] * x.shape[1] for x in batches)
        for name, values in expected.items():
            torch.testing.assert_close(torch.tensor(module[name]), values, rtol=2e-5, atol=2e-6)


def test_lines_have_the_statistics_of_every_head(tmp_path):
    model, path, scalars = Model(), tmp_path / "new" / "log.jsonl", ScalarList()
    log = AttentionLog(model, path, every=2, tensorboard=scalars)
    for step in range(5):
        with log.step(step):
            model(data(seed=step))
        model(data(seed=99))  # outside the block, such as an evaluation
    assert [line["step"] for line in lines(path)] == [0, 2, 4]
    for line in lines(path):
        assert list(line) == ["step", "entropy", "distance", "sink", "peak", "modules"]
        assert list(line["modules"]) == ["blocks.0", "blocks.1"]
        assert_line(line, model, [data(seed=line["step"])])
        for name in ("entropy", "distance", "sink", "peak"):
            heads = [value for module in line["modules"].values() for value in module[name]]
            over_heads = max(heads) if name == "peak" else math.fsum(heads) / len(heads)
            assert line[name] == pytest.approx(over_heads, rel=1e-5)
            assert (f"attention/{name}", line[name], line["step"]) in scalars
    tags = {tag for tag, _, _ in scalars}
    assert {"attention_entropy/blocks.0", "attention_peak/blocks.1", "attention_sink/blocks.0"} < tags
    assert len(scalars) == 3 * 4 * 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_means_are_over_all_passes_of_a_step_and_count_checkpointed_ones_once(tmp_path, reentrant):
    model, path = Model(reentrant=reentrant), tmp_path / "log.jsonl"
    log = AttentionLog(model, path)
    batches = [data(2, 7), data(1, 11, seed=2), data(3, 5, seed=3)]
    with log.step(0):
        for x in batches:
            model(x.requires_grad_()).square().mean().backward()
    assert_line(lines(path)[0], model, batches)


def test_padding_is_excluded(tmp_path):
    model, inputs = make("llama", "sdpa").train(), inputs_for("llama", "right")
    log = AttentionLog(model, tmp_path / "log.jsonl", where="*layers.1*")
    with log.step(0):
        model(**inputs)
    (line,) = lines(tmp_path / "log.jsonl")
    assert list(line["modules"]) == ["model.layers.1.self_attn"]
    assert line["modules"]["model.layers.1.self_attn"]["queries"] == int(inputs["attention_mask"].sum())
    inputs["attention_mask"][:] = 0
    with log.step(100):
        model(**inputs)
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[1])["step"] == 100


def test_numbers_that_are_not_finite_are_null(tmp_path):
    model, scalars = Model(), ScalarList()
    log = AttentionLog(model, tmp_path / "log.jsonl", tensorboard=scalars)
    with pytest.warns(UserWarning, match="^blocks.0: the statistics of call 0 are NaN"), log.step(0):
        model(torch.full((1, 3, HEADS * WIDTH), math.nan))
    text = (tmp_path / "log.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    (line,) = lines(tmp_path / "log.jsonl")
    assert line["entropy"] is None
    assert line["peak"] is None
    assert line["modules"]["blocks.0"]["queries"] == 3
    assert all(math.isfinite(value) for _, value, _ in scalars)


def test_peak_of_another_rank_stays_nan():
    """Backends of torch.distributed differ in whether a maximum with NaN is NaN."""
    ranks = SimpleNamespace(
        all_gather=lambda layout: [layout],
        all_reduce=lambda sums: sums,
        all_reduce_max=lambda peaks: peaks.nan_to_num(nan=3.0),
    )
    sums = torch.tensor([[7.0, 2.0, 5.0, 1.0], [7.0, math.nan, 5.0, 1.0]])
    totals = over_ranks({"attn": HeadTotals(sums, torch.tensor([2.0, math.nan]))}, None, ranks)
    assert totals["attn"].peaks.isnan().tolist() == [False, True]


def test_training_is_equal_with_and_without_the_log(tmp_path):
    results = []
    for logged in (False, True):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.Adam(model.parameters())
        log = AttentionLog(model, tmp_path / "log.jsonl", every=1)
        for step in range(3):
            with log.step(step) if logged else nullcontext():
                loss = functional.dropout(model(data(seed=step)), 0.1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append([*model.parameters(), torch.get_rng_state()])
    assert all(torch.equal(plain, logged) for plain, logged in zip(*results, strict=True))


def call_and_raise(model, error):
    model(data())
    raise error


def test_nothing_is_written_or_left_replaced_if_the_block_raises(tmp_path):
    model, path = Model(), tmp_path / "log.jsonl"
    log = AttentionLog(model, path)
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error, match="stop"), log.step(0):
            call_and_raise(model, error("stop"))
        assert functional.scaled_dot_product_attention is ORIGINAL.sdpa
    assert not path.exists()
    with log.step(0):
        model(data(seed=2))
    assert_line(lines(path)[0], model, [data(seed=2)])


def test_resumed_runs_append_and_remove_an_incomplete_line(tmp_path):
    model, path = Model(), tmp_path / "log.jsonl"

    def log_step(step):
        with AttentionLog(model, path).step(step):
            model(data())

    log_step(0)
    first = path.read_text()
    log_step(100)
    complete = path.read_text()
    for length in (len(first) + 1, len(first) + 5, len(first) + 80, len(complete) - 2):
        path.write_text(complete[:length])
        log_step(100)
        assert path.read_text() == complete
    path.write_text(complete[:-1])  # only the end of the line is missing
    log_step(200)
    assert [line["step"] for line in lines(path)] == [0, 100, 200]
    path.write_text(first + "a note of mine")
    log_step(100)
    assert path.read_text() == first + "a note of mine\n" + complete[len(first) :]


class TestRejects:
    def test_wrong_arguments(self, tmp_path):
        model, path = Model(), tmp_path / "log.jsonl"
        for every in (0, -3):
            with pytest.raises(ValueError, match=f"every is {every}; expected a whole number of at least 1"):
                AttentionLog(model, path, every=every)
        with pytest.raises(TypeError, match="every is 2.5; expected a whole number"):
            AttentionLog(model, path, every=2.5)
        with pytest.raises(IsADirectoryError, match=f"path is '{tmp_path}', a folder; expected the name of a file"):
            AttentionLog(model, tmp_path)
        with pytest.raises(TypeError, match="path is 3; expected a path"):
            AttentionLog(model, 3)
        with pytest.raises(TypeError, match="model is 'gpt2'; expected a torch.nn.Module"):
            AttentionLog("gpt2", path)
        with pytest.raises(TypeError, match="tensorboard is 3; expected a folder, or a writer with add_scalar"):
            AttentionLog(model, path, tensorboard=3)
        with pytest.raises(ValueError, match="step is -1; expected"), AttentionLog(model, path).step(-1):
            pass
        script = tmp_path / "train.py"
        script.write_text("import torch\n")
        with pytest.raises(ValueError, match="train.py', which has other contents than lines of JSON; expected a new"):
            AttentionLog(model, script)
        assert script.read_text() == "import torch\n"

    def test_steps_without_attention(self, tmp_path):
        path = tmp_path / "log.jsonl"
        linear, model = nn.Linear(3, 5), Model()
        for logged, where, call, message in (
            (
                linear,
                None,
                lambda: linear(torch.randn(2, 3)),
                "watch observed no attention of Linear: no call of",
            ),
            (model, None, lambda: None, "watch observed no attention of Model: it was not called within the block"),
            (model, "nothing", lambda: None, "where is 'nothing', which matches none of"),
        ):
            with pytest.raises(ValueError, match=message), AttentionLog(logged, path, where=where).step(0):
                call()
        with pytest.raises(ValueError, match="no attention of Model was observed in step 7: it was not called"):
            AttentionLog(Model(), path).write(7)
        assert not path.exists()

    def test_tensorboard_that_is_not_installed(self, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        with pytest.raises(ImportError, match="tensorboard='runs' needs the package tensorboard: pip install"):
            AttentionLog(Model(), tmp_path / "log.jsonl", tensorboard="runs")


# -- several ranks -----------------------------------------------------------------------------------------------------


def rank_batch(rank):
    return data(2 + rank, (7, 11)[rank], seed=rank)


def train_on_ranks(mesh, path):
    rank = mesh.get_local_rank()
    torch.manual_seed(0)
    model = Model()
    log = AttentionLog(DistributedDataParallel(model), path, every=2)
    parallel = log._model
    for step in range(3):
        with log.step(step):
            loss = parallel(rank_batch(rank)).square().mean()
        loss.backward()
        parallel.zero_grad()
    alone = AttentionLog(model, path.with_name(f"alone-{rank}.jsonl"), process_group=ProcessGroup())
    with alone.step(0):
        model(rank_batch(rank))
    skipping = Model(skip=1 if rank == 0 else None)
    skipping.load_state_dict(model.state_dict())
    with AttentionLog(skipping, path.with_name("skipping.jsonl")).step(0):
        skipping(rank_batch(rank))
    errors = []
    other = Model()
    other.blocks[1] = Block(heads=HEADS + rank)
    for wrong, call in ((other, True), (Model(), rank == 1)):
        try:
            with AttentionLog(wrong, path.with_name("wrong.jsonl")).step(0):
                if call:
                    wrong(rank_batch(rank))
        except ValueError as error:
            errors.append(str(error))
    return errors


@pytest.mark.slow
def test_means_are_over_ranks(tmp_path):
    path = tmp_path / "log.jsonl"
    with started(2) as ranks:
        errors = ranks.run(2, train_on_ranks, path)
    torch.manual_seed(0)
    model = Model()
    batches = [rank_batch(0), rank_batch(1)]
    assert [line["step"] for line in lines(path)] == [0, 2]
    for line in lines(path):
        assert_line(line, model, batches)
    for rank, x in enumerate(batches):
        assert_line(lines(tmp_path / f"alone-{rank}.jsonl")[0], model, [x])
    (line,) = lines(tmp_path / "skipping.jsonl")
    assert line["modules"]["blocks.0"]["queries"] == 2 * 7 + 3 * 11
    assert line["modules"]["blocks.1"]["queries"] == 3 * 11
    differing = "rank 1 has 4 heads in blocks.1, but a rank before it has 3; expected the same on all ranks"
    absent = "watch observed no attention of Model: it was not called within the block"
    assert errors == [[differing, absent], [differing, f"rank 0: {absent}"]]
    assert not (tmp_path / "wrong.jsonl").exists()


def test_sinks_are_those_of_every_stack(tmp_path):
    model = make("bart", "sdpa")
    log = AttentionLog(model, tmp_path / "log.jsonl")
    with torch.no_grad(), log.step(0), watch(model, spans={"*": {"sink": (0, 1)}}) as seen:
        model(**inputs_for("bart"))
    (line,) = lines(tmp_path / "log.jsonl")
    assert [stack for stack in ("encoder", "decoder", "cross") if (stack, 0) in seen.summary().layers] == [
        "encoder", "decoder", "cross",
    ]  # fmt: skip
    for name, watched in seen.items():
        expected = watched.means["mass"][:, 0].tolist()
        assert line["modules"][name]["sink"] == pytest.approx(expected, rel=1e-5)
