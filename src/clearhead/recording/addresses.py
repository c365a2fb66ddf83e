"""Names of heads, such as "cross.2.5"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clearhead._utils.checks import describe
from clearhead._utils.parsing import shortened
from clearhead._utils.text import visible_text

if TYPE_CHECKING:
    from clearhead.recording.recording import Address, Recording


def find_address(recording: Recording, head: str) -> Address:
    """Return the stack, layer and head of a name; the stack may be left out if there is only one."""
    if not isinstance(head, str):
        raise TypeError(f"head is {describe(head)}; expected a name such as 'cross.2.5'")
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
