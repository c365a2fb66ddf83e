"""The whole calculation as one formula, and its cost."""

from __future__ import annotations

import re

from clearhead._utils.text import count_noun
from clearhead.explain.steps import KEY_HEAD_STEPS, Step, Trace, key_head

Formula = tuple[str, str]  # as text and as LaTeX
_KEY_HEADS = {"i": "head", "j": "key head"}  # by the index of K and V


def whole_formula(trace: Trace) -> list[Formula]:
    """Return the lines of the whole formula, from the output to the projections."""
    first: dict[str, Step] = {}
    for step in trace.all_steps:
        first.setdefault(step.name, step)
    many, shared = trace.heads > 1, trace.group > 1 and trace.kv_heads > 1
    lines: list[Formula] = []
    if "output" in first and "concat" in first:
        lines.append(_output_line(first["output"], first["concat"], many))
    if "weights" in first and "head_output" in first:
        lines.append(_head_line(first))
    projections = [first[name] for name in ("query", "key", "value") if name in first and first[name].how != "input"]
    if projections:
        lines.append((",  ".join(step.formula for step in projections), ",\\quad ".join(s.latex for s in projections)))
    if many:
        key_index = "j" if shared else "i"
        lines = [(_any_head(text, key_index), _any_head_latex(latex, key_index)) for text, latex in lines]
    if shared:
        division = f"i / {trace.group}"
        explanation = f"j = \\lceil {division} \\rceil\\text{{, the key head of head }}i"
        lines.append((f"j = ⌈{division}⌉, the key head of head i", explanation))
    return lines


def cost_sentences(trace: Trace) -> list[str]:
    """Return the cost of each head and of the whole layer, and that of one wide head; empty for a selection."""
    heads = [_head_cost(trace, head) for head in range(trace.heads)]
    total = sum(step.multiply_adds for step in trace.all_steps)
    if not trace.is_whole or not total:
        return []
    shared = sum(step.multiply_adds for step in trace.all_steps if step.head is None)
    each = (
        f"{heads[0]:,} for each head"
        if len(set(heads)) == 1
        else f"{', '.join(f'{cost:,}' for cost in heads)} for the heads"
    )
    if trace.head_name:
        return [f"Cost: {count_noun(total, 'multiply-add')}, without the projections to Q, K and V."]
    if trace.heads == 1:
        each = f"{heads[0]:,} for the head"
    only_output = all(step.name == "output" for step in trace.all_steps if step.head is None and step.multiply_adds)
    parts = each if not shared else f"{each} and {shared:,} for {'W_O' if only_output else 'the other steps'}"
    repeated = sum(heads) + shared - total
    note = "" if not repeated else f" ({count_noun(repeated, 'multiply-add')} of shared keys and values counted once)"
    return [f"Cost: {count_noun(total, 'multiply-add')} in all, {parts}{note}.", *_wide_head(trace, total)]


def _wide_head(trace: Trace, total: int) -> list[str]:
    """Return a sentence that compares the layer with one head of the same total width."""
    first = {step.name: step for step in reversed(trace.all_steps)}
    names = ("input", "query", "key", "value", "output")
    if trace.heads == 1 or any(name not in first for name in names):
        return []
    if any(step.how in ("given", "partly") for step in trace.all_steps):
        return []
    queries, inputs = first["query"].shape[0], first["input"].shape[1]
    keys = first["key"].shape[0]
    memory = [step.shape[1] for step in trace.all_steps if step.rows == "memory" and step.how == "input"] or [inputs]
    key_dim, value_dim = trace.heads * first["query"].shape[1], trace.heads * first["value"].shape[1]
    wide = queries * inputs * key_dim + keys * memory[-1] * (key_dim + value_dim)
    wide += queries * keys * (key_dim + value_dim) + first["output"].multiply_adds
    wide += sum(step.multiply_adds for step in trace.all_steps if step.head is None and step.name != "output")
    others = "the same" if wide == total else "more" if wide > total else "less"
    sliced = any(step.name == "slice" for step in trace.all_steps)
    reason = ", because each head here reads only its own columns of the input" if others == "more" and sliced else ""
    width = f"keys of width {key_dim}" if key_dim == value_dim else f"keys of width {key_dim}, values of {value_dim}"
    return [f"One wide head ({width}) would cost {count_noun(wide, 'multiply-add')}: {others}{reason}."]


def _output_line(output: Step, concat: Step, many: bool) -> Formula:
    """Return the formula of the output, with the concatenation in place of C, or O if there is one head."""
    text, latex = (formula.split(" = ", 1) for formula in (output.formula, output.latex))
    if output.how == "given":
        return output.formula, output.latex
    joined = tuple(formula.split(" = ", 1)[-1] for formula in (concat.formula, concat.latex))
    if not many and concat.how == "concat":
        joined = (concat.operands[0].symbol, concat.operands[0].latex)
    if concat.how == "given":
        joined = (concat.symbol, concat.latex_symbol)
    return (
        f"{text[0]} = {text[1].replace(concat.symbol, joined[0], 1)}",
        f"{latex[0]} = {latex[1].replace(concat.latex_symbol, joined[1], 1)}",
    )


def _head_line(first: dict[str, Step]) -> Formula:
    """Return softmax(Q Kᵀ / √d + M) V of the first head."""
    weights, output = first["weights"], first["head_output"]
    value = first.get("value")
    scores = first.get("scaled", first.get("scores"))  # without scaling, there is no step "scaled"
    if weights.how != "softmax" or value is None or scores is None or output.how == "given":
        return output.formula, output.latex
    text, latex = (formula.split(" = ", 1)[-1] for formula in (scores.formula, scores.latex))
    if scores.how == "given":
        text, latex = scores.symbol, scores.latex_symbol
    for step in (first[name] for name in ("biased", "masked") if name in first):
        if step.how == "given":
            text, latex = step.symbol, step.latex_symbol
        for operand in step.operands[1:]:
            text, latex = f"{text} + {operand.symbol}", f"{latex} + {operand.latex}"
    if len(weights.operands) > 1:
        text, latex = f"{text}; sink", f"{latex};\\ \\text{{sink}}"
    return (
        f"{output.symbol} = softmax({text}) {value.symbol}",
        f"{output.latex_symbol} = \\text{{softmax}}\\left({latex}\\right) {value.latex_symbol}",
    )


def _any_head(formula: str, key_index: str) -> str:
    """Write i for the index of the first head, and `key_index` for that of K and V, except in a list of all heads."""
    if "Concat" in formula:
        return formula
    formula = re.sub("(?<=[KV])₁", {"i": "ᵢ", "j": "ⱼ"}[key_index], formula)
    return re.sub(r"\[columns? [^\]]*\]", f"[columns of {_KEY_HEADS[key_index]} {key_index}]", formula).replace(
        "₁", "ᵢ"
    )


def _any_head_latex(formula: str, key_index: str) -> str:
    """Do the same in LaTeX."""
    if "Concat" in formula:
        return formula
    formula = re.sub(r"(?<=[KV])_\{1\}", f"_{{{key_index}}}", formula)
    columns = f"_{{\\\\text{{columns of {_KEY_HEADS[key_index]} }}{key_index}}}"
    return re.sub(r"_\{\\text\{columns? \}\d+(?:\\text\{ to \}\d+)?\}", columns, formula).replace("_{1}", "_{i}")


def _head_cost(trace: Trace, head: int) -> int:
    shared = key_head(head, trace.heads, trace.kv_heads)
    steps = (step for step in trace.all_steps if step.head == (shared if step.name in KEY_HEAD_STEPS else head))
    return sum(step.multiply_adds for step in steps)
