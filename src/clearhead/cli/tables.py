"""Tables of heads and of examples for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from clearhead._utils.color_scales import text_shades
from clearhead._utils.consoles import column_groups
from clearhead._utils.text import visible_text
from clearhead.analysis.roles import Roles
from clearhead.explain import BUILT_IN, load
from clearhead.recording.recording import Address, Recording
from clearhead.recording.row_labels import row_label
from clearhead.translation.heads import AblationEffect, Emergence
from clearhead.translation.tokenizer import SPECIAL_TOKENS, UNKNOWN

MIN_ERROR_INCREASE = 0.005  # increases of a token kind's error rate below this are not printed
EFFECT_COLUMNS = ("loss change, text", "loss change, repeats")  # without the head, in nats per token
SCORE_ORDER = (
    "previous",
    "next",
    "self",
    "sink",
    "positional",
    "delimiter",
    "duplicate",
    "induction",
    "text_duplicate",
    "text_induction",
)


def print_examples(console: Console) -> None:
    """Print the name, description, size and number of claims of each built-in example."""
    table = Table("name", "example", title="Built-in examples")
    for column in ("tokens", "heads", "claims"):
        table.add_column(column, justify="right")
    for name, description in BUILT_IN.items():
        example = load(name)
        tokens = f"{len(example.tokens)}"
        if example.memory is not None:
            tokens = f"{tokens} → {len(example.memory_tokens)}"
        table.add_row(name, description, tokens, str(example.heads), str(len(example.claims)))
    console.print(table)


def print_statistics(console: Console, columns: dict[str, list], title: str) -> None:
    """Print one row per head, with three digits for means."""
    table = Table(title=title)
    for name, values in columns.items():
        numeric = bool(values) and not isinstance(values[0], str)
        table.add_column(Text(visible_text(name)), justify="right" if numeric else "left")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(_cell, row))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:  # a stack without the span
        return ""
    return f"{value:.3f}" if isinstance(value, float) else visible_text(str(value))


def print_roles(console: Console, roles: Roles) -> None:
    """Print the heads with labels, the best heads of each score, and the relations."""
    columns = ["head", "labels", "entropy", "distance", *(EFFECT_COLUMNS if roles.loss is not None else ())]
    table = Table(*columns, title=f"{visible_text(roles.model)}: heads with a clear role")
    for address in roles.labeled:
        statistics = roles.heads[address]
        labels = visible_text(", ".join(roles.labels(address)))
        row = [head_name(address), labels, _format(statistics.entropy), _format(statistics.distance)]
        effect = roles.effects.get(address)
        table.add_row(*row, *(() if effect is None else (f"{effect.text:+.3f}", f"{effect.repeated:+.3f}")))
    console.print(table)
    if roles.loss is not None:
        console.print(f"loss with all heads: {roles.loss.text:.3f} on text, {roles.loss.repeated:.3f} on repeats")
    console.print(f"{len(roles.heads) - len(roles.labeled)} of {len(roles.heads)} heads have no clear role")
    table = Table("score", "highest-scoring heads", title="Best heads")
    for score in SCORE_ORDER:
        best = roles.top(score)
        if best:
            table.add_row(score, ", ".join(f"{head_name(address)} {value:.2f}" for address, value in best))
    console.print(table)
    if not roles.relations:
        return
    columns = ("relation", "direction", "best head", "accuracy", "95% CI", "fixed offset", "pairs")
    table = Table(
        *columns, title="Best head of each relation (selected on one half of the sentences, scored on the other)"
    )
    for score in roles.relations:
        interval, fixed = f"{score.low:.2f}–{score.high:.2f}", f"{score.baseline:.2f} at {score.offset:+d}"
        head = (visible_text(score.relation), score.direction, head_name(score.address))
        table.add_row(*head, f"{score.accuracy:.2f}", interval, fixed, str(score.count))
    console.print(table)


def head_name(address: Address) -> str:
    """Return the name of a head: "decoder 3.7" is head 7 of layer 3, both counted from 0."""
    stack, layer, head = address
    return f"{visible_text(stack)} {layer}.{head}"


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def print_emergence(console: Console, emergence: Emergence) -> None:
    """Print the best head of each relation, compared with the untrained model and with a fixed offset."""
    columns = ("relation", "head", "accuracy", "95% CI", "untrained", "fixed offset", "questions", "found")
    table = Table(*columns, title="Best head of each relation (selected on one half of the probe, scored on the other)")
    for after, before in zip(emergence.trained, emergence.untrained, strict=True):
        interval, fixed = f"{after.low:.2f}–{after.high:.2f}", f"{after.baseline:.2f} at {after.offset:+d}"
        head = (after.relation, head_name(after.address), f"{after.accuracy:.2f}", interval, f"{before.accuracy:.2f}")
        table.add_row(*head, fixed, str(after.count), "yes" if after.clear else "no")
    console.print(table)


def print_ablation_effects(
    console: Console, effects: Iterable[AblationEffect], labels: Mapping[Address, list[str]]
) -> None:
    """Print the errors that ablating each labeled head causes."""
    for effect in effects:
        before, after = effect.exact
        worse = [
            (kind, *shares) for kind, shares in effect.errors.items() if shares[1] - shares[0] >= MIN_ERROR_INCREASE
        ]
        worse.sort(key=lambda item: item[1] - item[2])
        wrong = ", ".join(f"{kind} {was:.1%} → {now:.1%}" for kind, was, now in worse)
        errors = f"wrong tokens: {wrong}" if wrong else f"no error rate rises by {MIN_ERROR_INCREASE:.1%} or more"
        label = ", ".join(labels[effect.address])
        console.print(f"without {head_name(effect.address)} ({label}): {before:.1%} → {after:.1%} exact; {errors}")
        if effect.example is not None:
            source, right, written = effect.example
            console.print(f"  {source}\n    with it:    {right}\n    without it: {written}")


def print_alignment(console: Console, recording: Recording) -> None:
    """Print the cross-attention weights, a row per token of the translation and a column per source word.

    A row is labeled with the token that it reads and the token that it writes. The row that writes the end token is
    left out. A darker cell has more weight. The weights are the mean over all heads, and the sum over the tokens of a
    word. An unknown word is one column.
    """
    cross = recording["cross"]
    mean = torch.stack([weights.dense()[0].mean(dim=0) for weights in cross.layers]).mean(dim=0)
    words = sorted({word for word in cross.keys.words if word is not None})
    if not words:
        console.print("no word of the source is in the model's vocabulary, so there is no alignment to show")
        return
    pieces = [[index for index, owner in enumerate(cross.keys.words) if owner == word] for word in words]
    pieces = sorted(
        [*pieces, *([index] for index, text in enumerate(cross.keys.texts) if text == SPECIAL_TOKENS[UNKNOWN])]
    )
    columns = torch.stack([mean[:, indices].sum(dim=1) for indices in pieces], dim=1).cpu().numpy()
    heads = [visible_text("".join(cross.keys.texts[index] for index in indices)) for indices in pieces]
    rows = [row_label(cross, query) for query in range(len(cross.queries) - 1)]
    before = max(map(cell_len, rows), default=0) + 2
    for chosen in column_groups([max(2, cell_len(head)) + 2 for head in heads], console.width - before):
        table = Table(box=None, padding=(0, 1))
        for head in ("", *(heads[index] for index in chosen)):
            table.add_column(Text(head), no_wrap=True)
        for row, line in zip(rows, text_shades(columns), strict=False):
            table.add_row(Text(row), *(line[2 * index : 2 * index + 2] for index in chosen))
        console.print(table)
