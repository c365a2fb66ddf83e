"""A first look: one causal head over a sentence, its weights as a picture and its statistics."""

import torch

from clearhead import Causal, attention
from clearhead._utils.color_scales import labeled_shades

tokens = ["fast", "kernels", "throw", "the", "attention", "matrix", "away", "and", "clearhead", "keeps", "it"]
torch.manual_seed(0)
query, key, value = (torch.randn(1, 2, len(tokens), 4) for _ in range(3))
output, weights = attention(query, 2 * key, value, mask=Causal(), return_weights=True)

print(f"\n{weights}\n\nHead 1, queries down, keys across:")
print(labeled_shades(weights[0, 0].numpy(), tokens))
seen = weights.observe(entropy=True, received=True, top=1)
most, looked_at = int(seen.received[0, 0].argmax()), int(seen.top.keys[0, 0, -1, 0])
print(f"\n{tokens[most]!r} receives most: {seen.received[0, 0, most]:.2f} of {len(tokens)} queries' attention")
print(f"The last query has an entropy of {seen.entropy[0, 0, -1]:.2f} nats and looks at {tokens[looked_at]!r} most")

long = torch.randn(1, 1, 20_000, 64)
_, weights = attention(long, long, long, mask=Causal(), return_weights=True)
print(f"\n{weights}\nRow 12,345 of the 400 million cells sums to {weights[0, 0, 12_345].sum():.6f}")
