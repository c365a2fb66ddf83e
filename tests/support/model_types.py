"""Comparison of clearhead with eager attention on a tiny model of any model type of transformers.

A configuration is shrunk by the names of its settings. The model is first built on the meta device to count its
parameters, then run on several kinds of input until eager attention accepts one. Types that no recipe can build or run
are reported as "not run".
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionMaskInterface, PreTrainedConfig, PreTrainedModel, masking_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING

import clearhead.huggingface._attention_function as forward

LENGTH, VOCABULARY = 13, 160
MAX_PARAMETERS = 20_000_000
FIXED_TABLE = "KeyError: 'clearhead'"  # models with their own table of attention implementations

LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers", "decoder_layers",
          "num_decoder_layers", "num_encoder_layers", "encoder_num_hidden_layers",
          "decoder_num_hidden_layers")  # fmt: skip
WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim", "encoder_hidden_size", "emb_dim",
          "decoder_hidden_size", "out_hidden_size", "text_hidden_size", "audio_hidden_size", "projection_dim",
          "output_dim", "encoder_hidden_dim", "embedding_size", "output_hidden_size")  # fmt: skip
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
         "encoder_num_attention_heads", "decoder_num_attention_heads")  # fmt: skip
INNER = ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim", "n_inner", "mlp_dim",
         "moe_intermediate_size", "shared_expert_intermediate_size", "intermediate_size_mlp", "ffn_hidden_size",
         "decoder_intermediate_size", "decoder_hidden_dim", "dim_feedforward")  # fmt: skip
SMALL: dict[str, Any] = {
    **dict.fromkeys(LAYERS, 2),
    **dict.fromkeys(WIDTHS, 64),
    **dict.fromkeys(HEADS, 4),
    **dict.fromkeys(INNER, 96),
    "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "v_head_dim": 16, "kv_channels": 16, "vocab_size": VOCABULARY,
    "max_position_embeddings": 512, "image_size": 32, "patch_size": 8, "num_experts": 4, "num_local_experts": 4,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "qk_head_dim": 16,
    "rotary_dim": 8, "sliding_window": 6, "max_window_layers": 1, "num_mel_bins": 16, "max_source_positions": 32,
    "max_target_positions": 64, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
    "index_topk": 8, "index_n_heads": 4, "index_head_dim": 16, "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 0, "query_pre_attn_scalar": 16, "num_queries": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16, "attention_window": 8,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1, "sep_token_id": 3,
    "cls_token_id": 4, "mask_token_id": 5,
}  # fmt: skip
SPECIAL_TOKENS = 20  # lower token ids are reserved for image, audio and other special tokens


@dataclass
class Outcome:
    """Result for one model type: "equal", "different", "refused" or "not run", with the reason."""

    type: str
    outcome: str
    reason: str = ""
    calls: int = 0  # of clearhead's attention function
    error: float = 0.0  # of the worst element, against eager in float64
    allowed: float = 0.0  # twice the error of eager in float32, plus two ulps


def tiny_config(kind: type[PreTrainedConfig], small: Mapping[str, Any]) -> PreTrainedConfig:
    """Return a configuration with the sizes in `small`, for the settings that it has."""
    default = kind()
    given: dict[str, Any] = {}
    for key, part in default.sub_configs.items():
        value = getattr(default, key, None)
        part = type(value) if isinstance(value, PreTrainedConfig) else part
        if part is not transformers.AutoConfig:
            given[key] = tiny_config(part, small).to_dict()
    known = default.to_dict()
    token = SPECIAL_TOKENS
    for name, value in known.items():
        if name in given or isinstance(value, bool):
            continue
        if name in small and (isinstance(value, int) or (value is None and name == "num_key_value_heads")):
            given[name] = small[name]
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value >= VOCABULARY:
            token -= 1
            given[name] = token
        elif name in ("vocab_size", "pad_token_id") and value is None:
            given[name] = small[name]
        elif name == "layer_types" and isinstance(value, list):
            given[name] = _two_kinds(value)
        elif name == "rope_parameters" and isinstance(value, dict) and "rope_type" in value:
            rotated = int(small.get("head_dim", 16) * value.get("partial_rotary_factor", 1.0)) // 2
            given[name] = {**value, "mrope_section": [rotated // 4, rotated // 4, rotated // 2]}
    return kind(**given)


def _two_kinds(kinds: list[str]) -> list[str]:
    """Return the kinds of two layers: different if possible, attention last."""
    attention = [kind for kind in dict.fromkeys(kinds) if "attention" in kind]
    others = [kind for kind in dict.fromkeys(kinds) if "attention" not in kind]
    return ([*others, *attention] * 2)[-2:]


def recipes() -> Iterator[dict[str, Any]]:
    """Yield dictionaries of sizes to try, from small to nearly the default."""
    yield SMALL
    yield {name: size for name, size in SMALL.items() if name not in ("head_dim", "num_key_value_heads")}
    yield {**SMALL, "head_dim": SMALL["qk_rope_head_dim"], "num_key_value_heads": SMALL["num_attention_heads"]}
    yield {name: size for name, size in SMALL.items() if name not in WIDTHS}
    yield {name: size for name, size in SMALL.items() if name in LAYERS or name.endswith(("vocab_size", "_token_id"))}


class NotRunError(Exception):
    """Error if no recipe gives a model of this type that runs with eager attention."""


def tiny(model_type: str) -> tuple[PreTrainedModel, list[dict[str, Tensor]]]:
    """Return a small model of a type with eager attention, and inputs that it accepts."""
    kind = CONFIG_MAPPING[model_type]
    reasons = []
    for small in recipes():
        try:
            size = parameters_of(tiny_config(kind, small), default=0 if "hidden_size" in small else MAX_PARAMETERS + 1)
            if size > MAX_PARAMETERS:
                raise ValueError(f"{size:,} parameters with these sizes; expected at most {MAX_PARAMETERS:,}")
            model = make(tiny_config(kind, small), "eager")
        except Exception as error:  # unusual sizes can raise any error
            reasons.append(short(error))
            continue
        for inputs in possible_inputs(model):
            try:
                run(model, inputs[0])
            except Exception as error:
                reasons.append(short(error))
            else:
                return model, [given for given in inputs if given is inputs[0] or _runs(model, given)]
    raise NotRunError(reasons[0] if reasons else "it accepts neither text nor images nor audio")


def _runs(model: PreTrainedModel, inputs: dict[str, Tensor]) -> bool:
    try:
        run(model, inputs)
    except Exception:
        return False
    return True


def parameters_of(config: PreTrainedConfig, default: int) -> int:
    """Return the number of parameters of a model, or `default` if it cannot be built on the meta device."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in make(config, "eager").parameters())
    except RuntimeError as error:
        if "meta" not in str(error):
            raise
        return default


def make(config: PreTrainedConfig, implementation: str) -> PreTrainedModel:
    """Return a model with random weights that are large enough for sharp attention."""
    options = MODEL_MAPPING[type(config)]
    maker = options[0] if isinstance(options, tuple | list) else options
    torch.manual_seed(0)
    model = maker._from_config(config, attn_implementation=implementation).eval().float()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the only implementation with float64
    if model.device.type != "meta":
        with torch.no_grad():
            for parameter in model.parameters():
                if not parameter.isfinite().all() or not parameter.any():  # uninitialized, or all zeros
                    nn.init.normal_(parameter, std=0.02)
                elif parameter.ndim == 2:
                    parameter.mul_(3)
    return model


def possible_inputs(model: PreTrainedModel) -> Iterator[list[dict[str, Tensor]]]:
    """Yield possible inputs of a model, by the names in its signature: text, then images and audio."""
    names = inspect.signature(model.forward).parameters
    generator = torch.Generator().manual_seed(1)
    if "input_ids" in names:
        ids = torch.randint(SPECIAL_TOKENS, VOCABULARY, (2, LENGTH), generator=generator)
        plain = {"input_ids": ids}
        if "decoder_input_ids" in names:
            plain["decoder_input_ids"] = ids[:, :7]
        padded = []
        for hidden in (slice(LENGTH - 4, None), slice(0, 4)):
            mask = torch.ones_like(ids)
            mask[0, hidden] = 0
            padded.append({**plain, "input_ids": ids.where(mask.bool(), 0), "attention_mask": mask})
        yield [plain, *padded]
    config: Any = model.config
    for name, shapes in {
        "pixel_values": [(2, 3, side, side) for side in (_image_side(config), 32, 64)],
        "input_values": [(2, 2000), (2, 64, 16)],
        "input_features": [(2, 16, 64), (2, 64, 16), (2, 80, 64)],
    }.items():
        for shape in shapes if name in names else ():
            given = {name: torch.randn(shape, generator=generator)}
            if "decoder_input_ids" in names:
                given["decoder_input_ids"] = torch.randint(SPECIAL_TOKENS, VOCABULARY, (2, 7), generator=generator)
            yield [given]
            if "input_ids" in names:
                yield [
                    {**given, "input_ids": torch.randint(SPECIAL_TOKENS, VOCABULARY, (2, LENGTH), generator=generator)}
                ]


def _image_side(config: Any) -> int:
    side = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", 32)
    return side if isinstance(side, int) else 32


def run(model: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Return the floating-point outputs of a model, without padding if they are per token."""
    torch.manual_seed(2)
    dtype = next(model.parameters()).dtype
    given = {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    with torch.no_grad():
        outputs = model(**given)
    names = ("last_hidden_state", "logits", "encoder_last_hidden_state", "text_embeds", "image_embeds")
    tensors = [outputs[name] for name in names if name in outputs and isinstance(outputs[name], Tensor)]
    tensors = tensors or [
        value for value in outputs.values() if isinstance(value, Tensor) and value.is_floating_point()
    ]
    mask = inputs.get("attention_mask")
    tensors = [value if mask is None or value.shape[:2] != mask.shape else value[mask.bool()] for value in tensors]
    if not tensors or not all(value.isfinite().all() for value in tensors):
        raise ValueError("the results are not finite numbers")
    return tensors


def compare(model_type: str) -> Outcome:
    """Run a model type with eager attention in float64 and float32, and with clearhead in float32."""
    try:
        eager, inputs = tiny(model_type)
    except NotRunError as error:
        return Outcome(model_type, "not run", str(error))
    calls = 0
    originals = {name: getattr(forward, name) for name in ("attention", "attend_with_weights")}

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*args, **options)

        return counted

    worst = Outcome(model_type, "equal")
    for name, original in originals.items():
        setattr(forward, name, counting(original))
    try:
        ours = make(copy.deepcopy(eager.config), "clearhead")
        ours.load_state_dict(eager.state_dict())
        results = [run(ours, given) for given in inputs]
    except Exception as error:
        return Outcome(model_type, "refused", short(error))
    finally:
        for name, original in originals.items():
            setattr(forward, name, original)
    peer = [run(eager, given) for given in inputs]
    if all(torch.equal(got, naive) for got, naive in zip(chain(*results), chain(*peer), strict=True)):
        return Outcome(model_type, "equal", "bit for bit", calls)
    try:
        with finite_masks():
            truth = [run(eager.double(), given) for given in inputs]
    except Exception as error:
        return Outcome(model_type, "not run", f"in float64: {short(error)}", calls)
    for mine, theirs, exact in zip(results, peer, truth, strict=True):
        for got, naive, true in zip(mine, theirs, exact, strict=True):
            true = true.double()
            allowed = 2 * float((naive - true).abs().max()) + 2 * torch.finfo(got.dtype).eps * float(true.abs().max())
            error = float((got - true).abs().max())
            if error / allowed >= worst.error / (worst.allowed or math.inf):
                worst = Outcome(model_type, "equal" if error <= allowed else "different", "", calls, error, allowed)
    return worst


@contextmanager
def finite_masks() -> Iterator[None]:
    """Mask keys with the lowest float32 number in float64 too; that of float64 overflows in eager's float32 softmax."""

    def float32_mask(*args: Any, **options: Any) -> Tensor | None:
        return masking_utils.eager_mask(*args, **{**options, "dtype": torch.float32})

    AttentionMaskInterface.register("eager", float32_mask)
    try:
        yield
    finally:
        AttentionMaskInterface.register("eager", masking_utils.eager_mask)


def short(error: Exception) -> str:
    """Return the type and first line of an error, without local paths."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {re.sub(r' from .*?>', '>', lines[0])[:160]}"
