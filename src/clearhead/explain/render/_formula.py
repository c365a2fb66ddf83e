"""The whole calculation as one formula, and its cost."""

from __future__ import annotations

from clearhead._utils.text import count_noun
from clearhead.explain.steps import KEY_HEAD_STEPS, Step, Trace, key_head

Formula = tuple[str, str]  # as text and as LaTeX


def whole_formula(trace: Trace) -> list[Formula]:
    """Return the lines of the whole formula, from the output to the projections."""
    first: dict[str, Step] = {}
    for step in trace.all_steps:
        first.setdefault(step.name, step)
    many = trace.heads > 1
    lines: list[Formula] = []
    if "output" in first and "concat" in first:
        lines.append(_output_line(first["output"], first["concat"], many))
    if "weights" in first and "head_output" in first:
        lines.append(_head_line(first))
    projections = [first[name] for name in ("query", "key", "value") if name in first and first[name].how != "input"]
    if projections:
        lines.append((",  ".join(step.formula for step in projections), ",\\quad ".join(s.latex for s in projections)))
    return [
        (_any_head(text, "₁", "ᵢ"), _any_head(latex, "_{1}", "_{i}")) if many else (text, latex)
        for text, latex in lines
    ]


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
    if weights.how != "softmax" or value is None or "scaled" not in first or output.how == "given":
        return output.formula, output.latex
    scaled = first["scaled"]
    text, latex = (formula.split(" = ", 1)[-1] for formula in (scaled.formula, scaled.latex))
    if scaled.how == "given":
        text, latex = scaled.symbol, scaled.latex_symbol
    for name in ("biased", "masked"):
        for operand in first[name].operands[1:] if name in first else ():
            text, latex = f"{text} + {operand.symbol}", f"{latex} + {operand.latex}"
    if len(weights.operands) > 1:
        text, latex = f"{text}; sink", f"{latex};\\ \\text{{sink}}"
    return (
        f"{output.symbol} = softmax({text}) {value.symbol}",
        f"{output.latex_symbol} = \\text{{softmax}}\\left({latex}\\right) {value.latex_symbol}",
    )


def _any_head(formula: str, head: str, index: str) -> str:
    """Write i for the index of the first head, except in a list of all heads."""
    return formula if "Concat" in formula else formula.replace(head, index)


def _head_cost(trace: Trace, head: int) -> int:
    shared = key_head(head, trace.heads, trace.kv_heads)
    steps = (step for step in trace.all_steps if step.head == (shared if step.name in KEY_HEAD_STEPS else head))
    return sum(step.multiply_adds for step in steps)
