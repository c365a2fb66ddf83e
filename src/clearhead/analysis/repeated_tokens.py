"""Attention to earlier occurrences of the query's token, and to the keys after them, in ordinary text."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.recording.recording import Tokens

MAX_PAIRS = 2**14  # pairs of a query and an earlier occurrence; texts with more use evenly spaced queries
TEXT_SCORES: tuple[str, ...] = ("text_duplicate", "text_induction")

ReadWeights = Callable[[Int[Tensor, " pairs"], Int[Tensor, " pairs"]], Float[Tensor, "heads pairs"]]


@dataclass(frozen=True, eq=False)
class RepeatedTokens:
    """Queries whose token has occurred before, paired with each earlier occurrence.

    Tokens are equal if their texts are. Special tokens are left out.

    Attributes:
        queries: query of each pair, in ascending order.
        keys: key of each pair: an earlier occurrence of the query's token.
    """

    queries: Int[Tensor, " pairs"]
    keys: Int[Tensor, " pairs"]

    @classmethod
    def from_tokens(cls, tokens: Tokens, chosen: Sequence[int] | None = None) -> RepeatedTokens:
        """Return the pairs of all queries, or of chosen ones. Evenly spaced queries keep their number bounded.

        Args:
            tokens: tokens of both axes of self-attention.
            chosen: indices of the queries to use, in ascending order (default: all queries).
        """
        return _pairs(tokens, None if chosen is None else tuple(chosen))

    @functools.cached_property
    def followers(self) -> RepeatedTokens:
        """Pairs with the key after each occurrence. The query itself is left out."""
        follows = self.keys + 1 < self.queries
        return RepeatedTokens(self.queries[follows], self.keys[follows] + 1)

    @property
    def counts(self) -> dict[str, int]:
        """Number of queries of each sum: those that have at least one such key."""
        followers = self.followers.query_count
        return {"text_duplicate": self.query_count, "text_induction": followers, "text_chance": followers}

    @functools.cached_property
    def query_count(self) -> int:
        """Number of different queries."""
        return len(self.queries.unique_consecutive())

    def sums(self, read: ReadWeights, read_uniform: ReadWeights) -> dict[str, Float[Tensor, " heads"]]:
        """Return the sums over queries of the weight on these keys, for every head.

        Args:
            read: function that returns the weights of some cells, given the query and the key of each.
            read_uniform: the same for uniform attention to the visible keys, with one head.
        """
        followers = self.followers
        sums = {
            name: read(pairs.queries, pairs.keys).double().sum(dim=-1).cpu()
            for name, pairs in zip(TEXT_SCORES, (self, followers), strict=True)
        }
        chance = read_uniform(followers.queries, followers.keys).double().sum(dim=-1).cpu()
        return {**sums, "text_chance": chance.expand_as(sums["text_induction"])}


@functools.lru_cache(maxsize=8)  # every layer of a stack has the same pairs
def _pairs(tokens: Tokens, chosen: tuple[int, ...] | None) -> RepeatedTokens:
    codes: dict[str, int] = {}
    token_codes = torch.tensor([codes.setdefault(text, len(codes)) for text in tokens.texts])
    ordinary = torch.tensor([not special for special in tokens.special], dtype=torch.bool)
    by_token = token_codes.argsort(stable=True)  # equal tokens are next to each other, in the order of the text
    first = torch.searchsorted(token_codes[by_token], token_codes)
    earlier = torch.empty_like(by_token).scatter_(0, by_token, torch.arange(len(by_token))) - first
    queries = torch.arange(len(by_token)) if chosen is None else torch.tensor(chosen, dtype=torch.long)
    queries = queries[ordinary[queries] & (earlier[queries] > 0)]
    step = -(-int(earlier[queries].sum()) // MAX_PAIRS)
    queries = queries[:: max(1, step)]
    counts = earlier[queries]
    ends = counts.cumsum(0)
    within = torch.arange(int(counts.sum())) - (ends - counts).repeat_interleave(counts)
    keys = by_token[first[queries].repeat_interleave(counts) + within]
    return RepeatedTokens(queries.repeat_interleave(counts), keys)
