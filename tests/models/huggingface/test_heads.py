"""Tests of published heads, against their mathematics in numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.heads import block, eagle, mtp, prompt_tokens
from models.huggingface import heads
from support import head_reference as reference, published_heads as hf

_TARGET, _DIM, _VOCAB = hf.TARGET, hf.DIM, hf.VOCAB


@pytest.mark.cases(1)
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("flavour", ["midlayer", "layers.0"])
def test_eagle3(tmp_path, target, flavour, qk_norm):
  draft_vocab = 6
  shapes = {"fc.weight": (_DIM, 3 * _DIM), "norm.weight": (_DIM,),
            "lm_head.weight": (draft_vocab, _DIM),
            f"{flavour}.input_layernorm.weight": (_DIM,),
            f"{flavour}.hidden_norm.weight": (_DIM,),
            **hf.layer(flavour, 2 * _DIM, qk_norm)}
  ids = np.array([0, 2, 3, 7, 8, 11])
  w = hf.drawn(shapes) | {"d2t": ids - np.arange(6),
                          "t2d": np.zeros(_VOCAB, bool)}
  fields = {**hf.FIELDS, "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama", "draft_vocab_size": draft_vocab}
  if flavour == "layers.0":
    w |= hf.drawn({"embed_tokens.weight": (_VOCAB, _DIM)})
    fields = {"speculators_model_type": "eagle3", "draft_vocab_size": 6,
              "transformer_layer_config": {**hf.FIELDS, "model_type": "llama"},
              "eagle_aux_hidden_state_layer_ids": [1, 1, 2],
              "norm_before_residual": True}
  loaded, w = hf.loaded(tmp_path / "head", fields, w)
  assert loaded.kept == ((0, 0, 1) if flavour == "layers.0" else (1, 0, 0))
  table = w.get("embed_tokens.weight", hf.as_numpy(target.params)["embedding"])
  read = np.concatenate(hf.features(target.params, loaded.kept), -1) @ w[
      "fc.weight"].T

  def output(x):
    spread = np.full(_VOCAB, -np.inf)
    spread[ids] = reference.rms(x, w["norm.weight"], 1e-6) @ w[
        "lm_head.weight"].T
    return spread

  hf.check_recurrent(
      loaded, target.params, read, lambda tokens, hidden: reference.eagle3(
          w, flavour, table[tokens], hidden, hf.SIZES, flavour == "layers.0"),
      output)


@pytest.mark.parametrize("fields, kept", [
    ({"eagle_aux_hidden_state_layer_ids": [1, 2]}, (0, 1)),
    ({"aux_hidden_state_layer_ids": [1, 2]}, (0, 1)),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}, (0, 1)),
    ({"target_layer_ids": [0, 1]}, (0, 1))])
def test_layers_before_a_feature_and_layers_of_it(tmp_path, fields, kept):
  folder = _eagle3(tmp_path, fields, 2)
  assert heads.is_head(folder)
  assert heads.load(folder, _TARGET).kept == kept


def test_positions_of_the_target(tmp_path):
  for given in (16, None):
    folder = _eagle3(tmp_path, {"max_position_embeddings": given})
    loaded = heads.load(folder, _TARGET)
    assert loaded.head.max_length == _TARGET.max_length > 16


def _eagle3(folder, fields, taps=3, tensors=None, draw=hf.drawn):
  """Writes a head of EAGLE-3; fields and tensors that are None are left out."""
  shapes = {"fc.weight": (_DIM, taps * _DIM), "norm.weight": (_DIM,),
            "lm_head.weight": (_VOCAB, _DIM),
            "midlayer.input_layernorm.weight": (_DIM,),
            "midlayer.hidden_norm.weight": (_DIM,),
            **hf.layer("midlayer", 2 * _DIM), **(tensors or {})}
  fields = {**hf.FIELDS, "architectures": ["LlamaForCausalLMEagle3"], **fields}
  return hf.write(folder / "head", {
      k: v for k, v in fields.items() if v is not None},
                  draw({k: v for k, v in shapes.items() if v}))


@pytest.mark.parametrize("biases", [(), ("q_proj", "k_proj", "v_proj")])
def test_eagle1(tmp_path, target, biases):
  shapes = {"fc.weight": (_DIM, 2 * _DIM), "fc.bias": (_DIM,),
            "embed_tokens.weight": (_VOCAB, _DIM), **hf.layer("layers.0")}
  shapes |= {f"layers.0.self_attn.{name}.bias": shapes[
      f"layers.0.self_attn.{name}.weight"][:1] for name in biases}
  loaded, w = hf.loaded(tmp_path / "head", {
      **hf.FIELDS, "model_type": "llama",
      "architectures": ["LlamaForCausalLM"]}, hf.drawn(shapes))
  read, _, output = hf.text_before(loaded, target.params)
  hf.check_recurrent(
      loaded, target.params, read, lambda tokens, hidden: reference.eagle1(
          w, w["embed_tokens.weight"][tokens], hidden, hf.SIZES),
      lambda x: x @ output.T)


def test_medusa(tmp_path, target):
  shapes = {}
  for i in range(hf.DEPTH):
    shapes |= {f"{i}.0.linear.weight": (_DIM, _DIM),
               f"{i}.0.linear.bias": (_DIM,), f"{i}.1.weight": (_VOCAB, _DIM)}
  loaded, w = hf.loaded(
      tmp_path / "head", {"medusa_num_heads": 3, "medusa_num_layers": 1},
      hf.drawn(shapes), "medusa_lm_head.safetensors")
  x = hf.text_before(loaded, target.params)[0][-1]

  def logits(drafts):
    i = len(drafts)
    y = x + reference.silu(x @ w[f"{i}.0.linear.weight"].T + w[
        f"{i}.0.linear.bias"])
    return y @ w[f"{i}.1.weight"].T

  hf.check_chain(hf.drafted(loaded, target.params), logits)


_KEPT, _RANK = (0, 1), 3
_DOMINO = {
    "prefix_gru.weight_ih_l0": (9, _DIM), "prefix_gru.weight_hh_l0": (9, 3),
    "embed_proj.0.weight": (5, _DIM + 3), "embed_proj.2.weight": (_VOCAB, 5)}
_DOMINO_FIELDS = {"projector_type": "domino", "gru_hidden_dim": 3, "emb_dim": 5,
                  "pure_draft_prefix_len": 1, "shift_label": False}
_DFLASH_2 = {
    "candidate_selector.predecessor_codebook": (_VOCAB, _RANK),
    "candidate_selector.successor_codebook": (_VOCAB, _RANK),
    "candidate_selector.hidden_projection.weight": (_RANK, _DIM),
    **{f"layers.{i}.{conv}_conv.{name}": shape
       for i in range(2) for conv in ("attention", "mlp")
       for name, shape in (("base_kernel", (2, 2, _DIM)),
                           ("kernel_projection.weight", (16, _DIM)))}}
_DFLASH_2_FIELDS = {"block_size": 4, "selector_rank": _RANK,
                    "conv_group_size": 4, "selector_top_k": 5,
                    "conv_kernel_size": 2}
# Of each kind: tensors, what `dflash_config` has, and what stands beside it.
_BLOCKS = {
    "dflash": ({}, {}, {}),
    "jetspec": ({}, {"causal_head": True}, {}),
    "dspark": (
        {"markov_head.markov_w1.weight": (_VOCAB, _RANK),
         "markov_head.markov_w2.weight": (_VOCAB, _RANK),
         "lm_head.weight": (_VOCAB, _DIM),
         "confidence_head.proj.weight": (1, _DIM)}, {},
        {"architectures": ["Qwen3DSparkModel"], "markov_rank": _RANK,
         "markov_head_type": "vanilla", "mask_token_id": 5,
         "target_layer_ids": _KEPT}),
    # DeepSpec's DFlash: no Markov bias, and each place predicts the next token.
    "from_root": ({}, {}, {"architectures": ["Qwen3DSparkModel"],
                           "markov_rank": 0}),
    "speculators": ({}, {}, {}),
    "domino": (_DOMINO, _DOMINO_FIELDS, {}),
    # As a newer SpecForge names it.
    "domino_shifted": (
        {f"logit_head.{key}": shape for key, shape in _DOMINO.items()},
        _DOMINO_FIELDS | {"shift_label": True},
        {"architectures": ["DominoDraftModel"]}),
    "dflash2": (_DFLASH_2, _DFLASH_2_FIELDS,
                {"architectures": ["DFlash2DraftModel"]}),
    "windows": (_DFLASH_2, _DFLASH_2_FIELDS,
                {"architectures": ["DFlash2DraftModel"], "sliding_window": 3,
                 "layer_types": ["sliding_attention"] * 2,
                 "use_sliding_window": True}),
}


def _block_fields(name):
  layers = {**hf.FIELDS, "model_type": "qwen3", "num_hidden_layers": 2}
  if name == "speculators":
    return {"speculators_model_type": "dflash", "block_size": 4,
            "architectures": ["DFlashDraftModel"], "mask_token_id": 5,
            "aux_hidden_state_layer_ids": [i + 1 for i in _KEPT],
            "transformer_layer_config": layers}
  _, inner, fields = _BLOCKS[name]
  size = {} if "block_size" in inner else {"block_size": 4}
  return {**layers, **size, "architectures": ["DFlashDraftModel"],
          "dflash_config": {"mask_token_id": 5, "target_layer_ids": _KEPT,
                            **inner}, **fields}


@pytest.mark.cases(4)
@pytest.mark.parametrize("name", _BLOCKS)
def test_blocks(tmp_path, target, name):
  fields = _block_fields(name)
  shapes = {"fc.weight": (_DIM, 2 * _DIM), "hidden_norm.weight": (_DIM,),
            "norm.weight": (_DIM,), **_BLOCKS[name][0]}
  for i in range(2):
    shapes |= {f"layers.{i}.input_layernorm.weight": (_DIM,),
               **hf.layer(f"layers.{i}", qk_norm=True)}
  loaded, w = hf.loaded(tmp_path / "head", fields, hf.drawn(shapes))
  w = {key.removeprefix("logit_head."): x for key, x in w.items()}
  from_root = name in ("dspark", "from_root", "domino_shifted")
  assert loaded.head.depth == 3 + from_root
  own = hf.as_numpy(target.params)
  tokens = np.array([hf.TEXT[-1], 5, 5, 5])
  out = reference.block(
      w, 2, own["embedding"][tokens],
      np.concatenate(hf.features(target.params, _KEPT), -1),
      hf.SIZES | {"window": fields.get("sliding_window", 99)},
      name == "jetspec" or "sliding_window" in fields)

  def logits(drafts):
    i, path = len(drafts), [hf.TEXT[-1], *drafts]
    output = out[i + (not from_root)]
    logits = output @ own["head"].T
    if name == "dspark":
      logits += w["markov_head.markov_w1.weight"][path[-1]] @ w[
          "markov_head.markov_w2.weight"].T
    if name.startswith("domino") and i:
      logits += reference.domino(w, output, own["embedding"][path])
    if name in ("dflash2", "windows"):
      return reference.selected(w, output, logits, path[-1], 5)
    return logits

  hf.check_chain(hf.drafted(loaded, target.params), logits)
  if name in ("dspark", "domino", "dflash2", "windows"):
    hf.check_beam(loaded, target.params, logits)


@pytest.mark.parametrize("fields, tensors, message", [
    ({"norm_before_fc": True}, {}, "norm_before_fc=True is not supported"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, {},
     r"layers \(0, 1, 8\): the target has the layers 0 to 1"),
    ({}, {"fc.weight": (_DIM, 2 * _DIM)}, r"fc.weight has shape .*\(16, 48\)"),
    ({}, {"extra.weight": (2,)}, "extra.weight is not one of a head"),
    ({}, {"norm.weight": None}, "norm.weight is missing"),
    ({"layer_types": ["sliding_attention"], "sliding_window": 4}, {},
     r"layer_types=\['sliding_attention'\] is not supported for a head"),
    ({"use_sliding_window": True, "sliding_window": 4}, {},
     "use_sliding_window=True is not supported for a head"),
    ({"eagle_aux_hidden_state_layer_ids": []}, {},
     "config.json': eagle_aux_hidden_state_layer_ids has 0 items"),
    ({"eagle_aux_hidden_state_layer_ids": "abc"}, {},
     "eagle_aux_hidden_state_layer_ids='abc': a value of type list"),
    ({"draft_vocab_size": -1}, {}, "draft_vocab_size=-1: 0 to "),
    ({"draft_vocab_size": 6}, {},
     "draft_vocab_size=6: the tensors are of a head that drafts 13 tokens"),
    ({"medusa_num_heads": 2}, {}, "tensor fc.weight is not one of Medusa"),
    ({"clover": {}}, {}, "no field 'num_layers' of clover"),
])
def test_heads_that_do_not_fit(tmp_path, fields, tensors, message):
  folder = _eagle3(tmp_path, {"model_type": "llama", **fields}, tensors=tensors)
  with pytest.raises(ValueError, match=message):
    heads.load(folder, _TARGET)


def _with_offsets(folder, offsets, **fields):
  return _eagle3(folder, fields, tensors={
      "lm_head.weight": (len(offsets), _DIM)}, draw=lambda shapes: hf.drawn(
          shapes) | {"d2t": np.asarray(offsets)})


@pytest.mark.parametrize("offsets, message", [
    (np.zeros(4, np.float32), "tensor d2t has numbers of the wrong type: int"),
    ([1, 2, 3, -2**63], "d2t leads to tokens from -92"),
    ([1, 2, 3, 2**63 - 1], "d2t leads to tokens from -92"),
    ([1, 2, 3, 2**32], "d2t leads to tokens from 1 to 4294967299"),
    ([1, 2, 3, 20], "d2t leads to tokens from 1 to 23"),
    ([1, 0, 0, 0], "different ones of the target's 0 to 12"),
    ([[1, 2]], r"tensor d2t has shape \(1, 2\): one axis")], ids=str)
def test_draft_vocabularies_that_do_not_fit(tmp_path, offsets, message):
  with pytest.raises(ValueError, match=message):
    heads.load(_with_offsets(tmp_path, offsets), _TARGET)


def test_the_size_of_a_draft_vocabulary(tmp_path):
  for size in (4, None):
    folder = _with_offsets(tmp_path, [1, 2, 3, 4], draft_vocab_size=size)
    assert heads.load(folder, _TARGET).params["tokens"].tolist() == [1, 3, 5, 7]
  for size in (0, 5, _VOCAB):
    folder = _with_offsets(tmp_path, [1, 2, 3, 4], draft_vocab_size=size)
    with pytest.raises(ValueError, match=f"vocab_size={size}: the tensors"):
      heads.load(folder, _TARGET)


def test_a_draft_vocabulary_that_was_never_filled(tmp_path, caplog):
  heads.load(_with_offsets(tmp_path, [0, 0, 0, 1]), _TARGET)
  assert not caplog.records
  heads.load(_with_offsets(tmp_path, [0] * 4), _TARGET)
  [record] = caplog.records
  assert "d2t is all zeros" in record.getMessage()


def test_integers_where_weights_are_needed(tmp_path):
  folder = _eagle3(tmp_path, {}, draw=lambda shapes: {
      name: np.ones(shape, np.int64) for name, shape in shapes.items()})
  with pytest.raises(ValueError, match="has numbers of the wrong type: float"):
    heads.load(folder, _TARGET)


def test_a_block_of_some_tokens(tmp_path, target):
  """It drafts as one of all tokens does, if these are not considered."""
  ids = jnp.array([1, 2, 5, 7, 10])
  config = block.Config(dataclasses.replace(_TARGET, qk_norm=True), 4, 5, 2, 3,
                        from_root=True, draft_vocab=5)
  params = block.init(jax.random.key(2), config, _TARGET) | {"tokens": ids}
  heads.save(tmp_path / "head", block, config, params, (0, 1))
  actual = heads.load(tmp_path / "head", _TARGET, target_params=target.params)
  out = jnp.zeros((_VOCAB, 3)).at[ids].set(params["markov_out"])
  whole = {"network": params["network"], "markov_in": params["markov_in"],
           "markov_out": out}
  full = dataclasses.replace(config, draft_vocab=0)
  check_some_tokens(actual, (block.head(full, _TARGET), whole, actual.kept),
                    target, ids)


def check_some_tokens(actual, whole, target, ids):
  """Compares a head of these tokens with one of all, renormalised."""
  expected = hf.drafted(whole, target.params)[1][0][ids]
  result = hf.drafted(actual, target.params)[1][0]
  assert set(np.flatnonzero(np.isfinite(result))) == set(np.asarray(ids))
  np.testing.assert_allclose(
      result[ids], expected - np.logaddexp.reduce(expected), atol=1e-5)


@pytest.mark.parametrize("module", [eagle, mtp])
def test_rows_of_the_targets_output_layer(tmp_path, target, module):
  """A head with `d2t` and no output layer has the logits of the target's."""
  layer = dataclasses.replace(_TARGET, num_layers=1)
  config = (module.Config(layer, draft_vocab=5) if module is mtp else
            module.Config(layer, draft_vocab=5, shared_output=True))
  params = module.init(jax.random.key(2), config, _TARGET)
  ids = jnp.array([1, 2, 5, 7, 10])
  params["tokens"] = ids
  heads.save(tmp_path / "head", module, config, params,
             (1,) if module is mtp else (0, 0, 1))
  actual = heads.load(tmp_path / "head", _TARGET, target_params=target.params)
  own = target.params["head"]
  np.testing.assert_array_equal(actual.params["tokens"], ids)
  np.testing.assert_array_equal(actual.params["output"], own[ids])
  full = module.Config(layer)
  whole = {"layer": {**actual.params["layer"], "output": own}}
  check_some_tokens(actual, (module.head(full, _TARGET), whole, actual.kept),
                    target, ids)


def test_prompt_tokens(tmp_path):
  config = prompt_tokens.Config(2)
  params = prompt_tokens.init(jax.random.key(2), config, _TARGET)
  folder = tmp_path / "prompts"
  heads.save(folder, prompt_tokens, config, params, (1,))
  assert heads.is_prompts(folder) and not heads.is_head(folder)
  lm, result = heads.load_prompts(folder, _TARGET)
  assert lm is prompt_tokens.target(config, _TARGET)
  np.testing.assert_array_equal(result, params["prompts"])
  with pytest.raises(ValueError, match=r"prompt_embeddings has shape \(2, 16"):
    heads.load_prompts(folder, dataclasses.replace(_TARGET, dim=8))
