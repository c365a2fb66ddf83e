"""Attention of transformers models on clearhead: `attn_implementation="clearhead"`.

Importing this registers the attention function and the mask function. With `output_attentions=True` in a call each
`outputs.attentions[layer]` is an `AttentionWeights`; `watch` reduces each layer's attention while a model runs;
`ablate` takes heads out.
"""

from clearhead._utils.extras import needs_extra

with needs_extra("hf", "clearhead.huggingface"):
    from transformers import AttentionInterface, AttentionMaskInterface

from clearhead.analysis.summary import AttentionSummary
from clearhead.huggingface._attention_function import attention_forward
from clearhead.huggingface._whisper import keep_implementation
from clearhead.huggingface.ablation import HeadImportance, ablate, head_importance
from clearhead.huggingface.lazy_mask import LazyMask, make_mask
from clearhead.huggingface.model import HuggingFaceModel
from clearhead.huggingface.modules import NAME, AttentionModule, attention_modules
from clearhead.huggingface.watching import watch

AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, make_mask)
keep_implementation()

__all__ = [
    "AttentionModule",
    "AttentionSummary",
    "HeadImportance",
    "HuggingFaceModel",
    "LazyMask",
    "ablate",
    "attention_modules",
    "head_importance",
    "watch",
]
