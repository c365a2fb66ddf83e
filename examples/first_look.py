"""First example: the weights of a causal head on a sentence, as a picture and as statistics."""

import torch

from clearhead import Causal, attention

tokens = ["fast", "kernels", "throw", "the", "attention", "matrix", "away", "and", "clearhead", "keeps", "it"]
torch.manual_seed(0)
query, key, value = (torch.randn(1, 2, len(tokens), 4) for _ in range(3))
output, weights = attention(query, 2 * key, value, mask=Causal(), return_weights=True)

print(f"\n{weights}\n\nHead 1, queries down, keys across:")
for token, row in zip(tokens, weights[0, 0], strict=True):
    levels = torch.ceil(4 * row / row.max()).int()  # the largest weight of a row is darkest
    print(f"{token:>9} {''.join(2 * ' ░▒▓█'[level] for level in levels.tolist())}")
statistics = weights.observe(entropy=True, received=True, top=1)
most, top_key = int(statistics.received[0, 0].argmax()), int(statistics.top.keys[0, 0, -1, 0])
received = statistics.received[0, 0, most]
print(f"\n{tokens[most]!r} receives the most attention: {received:.2f}, summed over {len(tokens)} queries")
entropy = statistics.entropy[0, 0, -1]
print(f"The last query has an entropy of {entropy:.2f} nats and attends most to {tokens[top_key]!r}")

long = torch.randn(1, 1, 20_000, 64)
_, weights = attention(long, long, long, mask=Causal(), return_weights=True)
print(f"\n{weights}\nRow 12,345 of the 400 million cells sums to {weights[0, 0, 12_345].sum():.6f}")
