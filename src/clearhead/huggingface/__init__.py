"""clearhead as an attention implementation of transformers: `attn_implementation="clearhead"`.

Importing this package registers the attention function and the mask function. With `output_attentions=True` each
`outputs.attentions[layer]` is an `AttentionWeights`. `watch` computes statistics of each layer while a model runs,
`ablate` removes heads, and `head_importance` ranks them.
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
