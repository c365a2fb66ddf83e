"""Names of heads, such as "cross.2.5"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clearhead._utils.checks import check_int, describe
from clearhead._utils.parsing import shortened
from clearhead._utils.text import visible_text

if TYPE_CHECKING:
    from clearhead.recording.recording import Address, Recording


def find_address(recording: Recording, head: object) -> Address:
    """Return the address of a head, as `recording.heads()` yields it.

    Args:
        recording: the recording.
        head: stack, layer and head, which may be negative to count from the end. Or a name such as "cross.2.5"; the
            stack may be left out if there is only one.
    """
    if isinstance(head, str):
        return _find_name(recording, head)
    if not isinstance(head, tuple | list) or len(head) != 3:
        raise TypeError(f"head is {describe(head)}; expected a head, such as ('cross', 2, 5) or 'cross.2.5'")
    stack, layer, index = head
    layers = recording[stack].layers
    layer = check_int("layer", layer, least=-len(layers))
    if layer >= len(layers):
        raise IndexError(f"layer is {layer}; expected 0 to {len(layers) - 1}, the layers of {stack!r}")
    heads = layers[layer].shape[1]
    return stack, layer % len(layers), check_int("head", index, least=-heads, most=heads - 1) % heads


def _find_name(recording: Recording, head: str) -> Address:
    stacks = recording.stacks
    is_whole = head.count(".") >= 2  # the name of a stack may contain dots
    stack, layer, index = head.rsplit(".", 2) if is_whole else (next(iter(stacks)), *head.partition(".")[::2])
    expected = "; ".join(
        f"{name}.0.0 to {name}.{len(each.layers) - 1}.{each.layers[-1].shape[1] - 1}" for name, each in stacks.items()
    )
    is_named = is_whole or (head.count(".") == 1 and len(stacks) == 1)
    digits = all(part.isascii() and part.isdecimal() and len(part) <= 9 for part in (layer, index))
    if is_named and digits and (stack, int(layer), int(index)) in set(recording.heads()):
        return stack, int(layer), int(index)
    raise ValueError(
        f"head is {shortened(head)}, which {visible_text(recording.model)} does not have; expected {expected}, counted"
        " from 0"
    )
