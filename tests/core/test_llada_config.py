"""Every key of the published config.json is honoured or refused by name."""

import math

import numpy as np
import pytest
from dllm_numpy.backend import NumpyBackend

from dllm_core.errors import CheckpointError, DllmError, UnsupportedError
from dllm_core.models import build_model
from dllm_core.models.llada import FIXED, LladaConfig
from dllm_core.plugins import Registry
from dllm_core.tensors import from_array

# config.json of LLaDA-8B-Instruct, complete.
PUBLISHED = {
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "auto_map": {
        "AutoConfig": "configuration_llada.LLaDAConfig",
        "AutoModelForCausalLM": "modeling_llada.LLaDAModelLM",
        "AutoModel": "modeling_llada.LLaDAModelLM",
    },
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 4096,
    "embedding_dropout": 0.0,
    "embedding_size": 126464,
    "eos_token_id": 126081,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "init_cutoff_factor": None,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": 126336,
    "max_sequence_length": 4096,
    "mlp_hidden_size": 12288,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "pad_token_id": 126081,
    "precision": "amp_bf16",
    "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "transformers_version": "4.46.3",
    "use_cache": False,
    "vocab_size": 126464,
    "weight_tying": False,
}
WITHOUT = object()


def parse(**changes):
    config = {key: value for key, value in (PUBLISHED | changes).items() if value is not WITHOUT}
    return LladaConfig.parse(config)


def refused(*words, **changes):
    with pytest.raises(UnsupportedError) as caught:
        parse(**changes)
    text = f"{caught.value.message} -- {caught.value.hint}"
    assert "\n" not in text
    for word in words:
        assert str(word) in text


def test_the_published_config():
    c = parse()
    assert (c.d_model, c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim) == (4096, 32, 32, 32, 128)
    assert (c.mlp_hidden_size, c.vocab_size, c.embedding_size) == (12288, 126464, 126464)
    assert (c.mask_token_id, c.eos_token_id, c.pad_token_id) == (126336, 126081, 126081)
    assert (c.max_sequence_length, c.rms_norm_eps, c.rope_theta, c.scale_logits) == (4096, 1e-5, 500000.0, False)


OTHER = [
    ("activation_type", ["swiglu", "gelu", "relu", None, 1]),
    ("alibi", [True, 0, None, "false"]),
    ("attention_layer_norm", [True]),
    ("bias_for_layer_norm", [True]),
    ("block_group_size", [2, True]),
    ("block_type", ["sequential", "parallel", "Llama"]),
    ("include_bias", [True]),
    ("include_qkv_bias", [True]),
    ("input_emb_norm", [True]),
    ("layer_norm_type", ["default", "low_precision", "gemma_rms"]),
    ("layer_norm_with_affine", [False]),
    ("model_type", ["Dream", "LLaDA"]),
    ("rope", [False]),
    ("rope_full_precision", [False]),
    ("tie_word_embeddings", [True]),
    ("weight_tying", [True]),
]


def test_no_fixed_key_is_left_out_below():
    assert {key for key, _ in OTHER} == set(FIXED)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in OTHER for value in values])
def test_another_graph_is_refused_by_name(key, value):
    refused(f"{key}={value!r}", "not supported", "only", **{key: value})


@pytest.mark.parametrize(
    ("key", "default"),
    [("activation_type", "swiglu"), ("block_type", "sequential"), ("layer_norm_type", "default"), ("rope", False),
     ("weight_tying", True)],
)  # fmt: skip
def test_where_the_authors_default_is_another_graph_the_key_must_be_there(key, default):
    refused(f"lacks {key}", repr(default), **{key: WITHOUT})


def test_keys_that_may_be_absent():
    assert parse(n_kv_heads=WITHOUT).n_kv_heads == 32
    assert parse(n_kv_heads=None).n_kv_heads == 32
    assert parse(embedding_size=WITHOUT).embedding_size == 126464
    assert parse(embedding_size=None).embedding_size == 126464
    assert parse(mlp_hidden_size=None).mlp_hidden_size == 4 * 4096
    assert parse(mlp_hidden_size=None, mlp_ratio=3).mlp_hidden_size == 3 * 4096
    assert parse(mlp_hidden_size=None, mlp_ratio=WITHOUT).mlp_hidden_size == 4 * 4096
    assert parse(rope_theta=WITHOUT).rope_theta == 10000.0
    assert parse(rms_norm_eps=WITHOUT).rms_norm_eps == 1e-5
    assert parse(max_sequence_length=WITHOUT).max_sequence_length == 1024
    assert parse(pad_token_id=WITHOUT).pad_token_id == 126081
    assert parse(scale_logits=WITHOUT).scale_logits is False
    assert parse(bias_for_layer_norm=None).d_model == 4096  # null: as include_bias


@pytest.mark.parametrize("key", ["d_model", "n_heads", "n_layers", "vocab_size", "mask_token_id", "eos_token_id"])
@pytest.mark.parametrize("value", [WITHOUT, None])
def test_keys_that_must_be_there(key, value):
    refused(f"lacks {key}", **{key: value})


SIZES = ["d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size", "vocab_size", "embedding_size",
         "max_sequence_length"]  # fmt: skip
IDS = ["mask_token_id", "eos_token_id", "pad_token_id"]
REALS = ["rms_norm_eps", "rope_theta"]
JUNK = ["12", -1, True, [], {}, math.nan, math.inf]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [*JUNK, 0, 2.0, 2**31, 10**4000])
def test_sizes_are_positive_whole_numbers(key, value):
    refused(key, "positive whole number", **{key: value})


@pytest.mark.parametrize("key", IDS)
@pytest.mark.parametrize("value", [*JUNK, 2.0, 10**4000])
def test_ids_are_whole_numbers(key, value):
    refused(key, "token id", **{key: value})


@pytest.mark.parametrize("key", IDS)
def test_ids_lie_in_the_embedding(key):
    refused(f"{key}=126464", "126464 rows", **{key: 126464})
    assert getattr(parse(**{key: 126463}), key) == 126463
    assert getattr(parse(**{key: 0}), key) == 0


@pytest.mark.parametrize("key", REALS)
@pytest.mark.parametrize("value", [*JUNK, 0, 0.0, 1e-300, 1e300, 10**4000])
def test_reals_are_positive(key, value):
    refused(key, "positive number", **{key: value})


@pytest.mark.parametrize("value", ["false", 0, 1, []])
def test_scale_logits_is_a_truth_value(value):
    refused("scale_logits", "true or false", scale_logits=value)


@pytest.mark.parametrize("value", [0, -4, "4", 2.5, math.nan, [4]])
def test_mlp_ratio(value):
    refused("mlp_ratio", mlp_hidden_size=None, mlp_ratio=value)


def test_sizes_that_do_not_divide():
    refused("d_model=4098", "n_heads=32", d_model=4098)
    refused("d_model=96", "n_heads=32", "even", d_model=96)  # heads of width 3
    refused("d_model=16", "n_heads=32", d_model=16)
    refused("n_heads=32", "n_kv_heads=5", n_kv_heads=5)
    refused("n_heads=32", "n_kv_heads=64", n_kv_heads=64)
    refused("embedding_size=126000", "vocab_size=126464", embedding_size=126000)
    assert parse(n_kv_heads=4).n_kv_heads == 4
    assert parse(embedding_size=126592).embedding_size == 126592


def test_a_context_beyond_reason():
    refused("max_sequence_length=2147483647", max_sequence_length=2**31 - 1)


def test_multi_query_attention_and_n_kv_heads_must_agree():
    assert parse(multi_query_attention=True, n_kv_heads=None).n_kv_heads == 1
    assert parse(multi_query_attention=True, n_kv_heads=1).n_kv_heads == 1
    assert parse(multi_query_attention=False, n_kv_heads=WITHOUT).n_kv_heads == 32
    refused("n_kv_heads=32", "multi_query_attention=True", multi_query_attention=True)
    refused("n_kv_heads=4", "multi_query_attention=False", multi_query_attention=False, n_kv_heads=4)
    refused("multi_query_attention", multi_query_attention="yes")


def test_unknown_keys_are_refused_by_name():
    refused("family llada", "rope_scaling={'factor': 2}", rope_scaling={"factor": 2})
    refused(r"evil\n=1", **{"evil\n": 1})


@pytest.mark.parametrize("key", ["architectures", "attention_dropout", "auto_map", "flash_attention", "init_std",
                                 "precision", "transformers_version", "use_cache", "alibi_bias_max"])  # fmt: skip
def test_keys_without_effect_may_say_anything(key):
    assert parse(**{key: "anything"}) == parse()


# ---- build_model --------------------------------------------------------------------------------------------

SMALL = PUBLISHED | {
    "d_model": 8, "n_heads": 2, "n_kv_heads": 1, "n_layers": 1, "mlp_hidden_size": 6, "vocab_size": 10,
    "embedding_size": 12, "mask_token_id": 11, "eos_token_id": 1, "pad_token_id": 1, "max_sequence_length": 16,
}  # fmt: skip
BLOCK = "model.transformer.blocks.0."
SHAPES = {
    "model.transformer.wte.weight": (12, 8),
    "model.transformer.ln_f.weight": (8,),
    "model.transformer.ff_out.weight": (12, 8),
    **{f"{BLOCK}{name}_norm.weight": (8,) for name in ("attn", "ff")},
    **{f"{BLOCK}{name}.weight": (8, 8) for name in ("q_proj", "attn_out")},
    **{f"{BLOCK}{name}_proj.weight": (4, 8) for name in ("k", "v")},
    **{f"{BLOCK}{name}_proj.weight": (6, 8) for name in ("ff", "up")},
    f"{BLOCK}ff_out.weight": (8, 6),
}


class Arrays:
    def __init__(self, shapes):
        r = np.random.default_rng(3)
        self.arrays = {name: r.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

    def names(self):
        return list(self.arrays)

    def tensor(self, name):
        if name not in self.arrays:
            raise CheckpointError(f"no tensor {name}")
        return from_array(self.arrays[name], name)


def build(config=SMALL, shapes=SHAPES, scheme="f32", registry=None, **more):
    return build_model(config, Arrays(shapes), NumpyBackend(1), scheme, registry, **more)


def test_build_model_builds_llada():
    calls = []
    model = build(progress=lambda done, total: calls.append((done, total)))
    facts = model.facts
    assert (facts.family, facts.layers, facts.width, facts.kv_heads, facts.head_dim) == ("llada", 1, 8, 1, 4)
    assert (facts.vocab_size, facts.mask_id, facts.eos_id, facts.max_length) == (12, 11, 1, 16)
    assert calls == [(1, 2), (2, 2)]


@pytest.mark.parametrize("name", SHAPES)
def test_build_model_names_missing_and_misshapen_tensors(name):
    with pytest.raises(CheckpointError, match=name):
        build(shapes={n: s for n, s in SHAPES.items() if n != name})
    with pytest.raises(CheckpointError, match=name) as caught:
        build(shapes=SHAPES | {name: (*SHAPES[name][:-1], 5)})
    assert str(list(SHAPES[name])) in caught.value.message


def test_build_model_takes_families_of_plugins():
    registry = Registry()
    registry.families["mine"] = lambda config, tensors, backend, scheme: (config["k"], tensors, backend.name, scheme)
    model_type, _, backend, scheme = build({"model_type": "mine", "k": 3}, scheme="qd8-f32-qc8w", registry=registry)
    assert (model_type, backend, scheme) == (3, "numpy", "qd8-f32-qc8w")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mime"}, ["model_type='mime'", "did you mean 'mine'?", "llada, mine"]),
        ({"model_type": "gpt2"}, ["model_type='gpt2'", "known families: Dream, llada, mine"]),
        ({"model_type": ["llada"]}, ["model_type=['llada']"]),
        ({"model_type": 3}, ["model_type=3"]),
        ({}, ["lacks model_type", "llada, mine"]),
    ],
    ids=range(5),
)
def test_build_model_lists_the_known_families(config, words):
    registry = Registry()
    registry.families["mine"] = lambda *a: None
    with pytest.raises(UnsupportedError) as caught:
        build(config, registry=registry)
    for word in words:
        assert word in f"{caught.value.message} -- {caught.value.hint}"


def test_build_model_refuses_a_scheme_that_the_backend_lacks():
    with pytest.raises(DllmError) as caught:
        build(scheme="q4_k_m")
    assert caught.value.exit_code == 6
    assert "'q4_k_m'" in caught.value.message
    assert "qd8-f32-qc8w" in caught.value.hint
