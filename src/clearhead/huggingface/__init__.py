"""clearhead as an attention implementation of transformers: `attn_implementation="clearhead"`.

Importing this package registers the attention function and the mask function. With `output_attentions=True` each
`outputs.attentions[layer]` is an `AttentionWeights`. `head_importance` ranks heads by the loss without each of them,
and `AttentionLogCallback` logs statistics during training. The functions of `clearhead.watching` are exported here too.
"""

from clearhead._utils.extras import needs_extra

with needs_extra("hf", "clearhead.huggingface"):
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from clearhead.analysis.summary import AttentionSummary
from clearhead.huggingface._attention_function import attention_forward
from clearhead.huggingface._observed_interface import observed_interface
from clearhead.huggingface._observed_masks import observed_masks, shape_of_call
from clearhead.huggingface._watched_models import adapter_of
from clearhead.huggingface._whisper import keep_implementation
from clearhead.huggingface.ablation import HeadImportance, head_importance
from clearhead.huggingface.lazy_mask import LazyMask, make_mask
from clearhead.huggingface.model import HuggingFaceModel
from clearhead.huggingface.modules import NAME, AttentionModule, attention_modules
from clearhead.huggingface.trainer import AttentionLogCallback
from clearhead.watching.ablation import ablate
from clearhead.watching.activation_patching import patching
from clearhead.watching.adapters import register
from clearhead.watching.circuits import composition, composition_scores
from clearhead.watching.cuts import cut
from clearhead.watching.head_matrices import Head, Heads, heads
from clearhead.watching.head_patches import patch
from clearhead.watching.logit_attribution import direct_logits
from clearhead.watching.model_adapters import register_models, register_shapes
from clearhead.watching.replacement import MethodReplacement
from clearhead.watching.watcher import watch

AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, make_mask)
keep_implementation()
register(
    "transformers",
    [
        MethodReplacement(AttentionInterface, "get_interface", observed_interface, [ALL_ATTENTION_FUNCTIONS]),
        MethodReplacement(AttentionMaskInterface, "__getitem__", observed_masks),
    ],
)
register_models(adapter_of)
register_shapes(shape_of_call)

__all__ = [
    "AttentionLogCallback",
    "AttentionModule",
    "AttentionSummary",
    "Head",
    "HeadImportance",
    "Heads",
    "HuggingFaceModel",
    "LazyMask",
    "ablate",
    "attention_modules",
    "composition",
    "composition_scores",
    "cut",
    "direct_logits",
    "head_importance",
    "heads",
    "patch",
    "patching",
    "watch",
]
