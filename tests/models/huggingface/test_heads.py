"""Tests of published heads, against their mathematics in numpy."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import sampling
import decoding_jax as dj
from decoding_jax.kernels import random
from decoding_jax.speculation import expanders
from models import transformer
from models.heads import block
from models.heads import chimera
from models.heads import clover
from models.heads import eagle
from models.heads import hydra
from models.heads import medusa
from models.heads import mtp
from models.heads import prompt_tokens
from models.huggingface import convert
from models.huggingface import heads
from models.huggingface import tensor_files
from models.transformer import quantization
from support import head_reference as reference
from support import regressive_head_reference as regressive
from support import tiny_models as tiny

_TARGET = tiny.LLAMA
_DIM, _VOCAB = _TARGET.dim, _TARGET.vocab_size
_SIZES = {"heads": 4, "kv_heads": 2, "head_dim": 4, "theta": 1e4, "eps": 1e-6}
_TEXT = np.array([3, 7, 1, 9, 4, 4, 11])
_DEPTH = 3
# Logits of random weights are far apart.
_TEMPERATURE = 20
_CODES = {"float32": "F32", "int64": "I64", "bool": "BOOL"}
_FIELDS = {
    "hidden_size": _DIM, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 4, "intermediate_size": 24, "rms_norm_eps": 1e-6,
    "rope_theta": 1e4, "max_position_embeddings": 64, "hidden_act": "silu",
    "vocab_size": _VOCAB, "torch_dtype": "float32", "num_hidden_layers": 1}


def write(folder, fields, tensors):
  """Writes a folder with tensors of several types."""
  folder.mkdir(exist_ok=True)
  (folder / "config.json").write_text(json.dumps(fields))
  header, end = {}, 0
  for name, x in tensors.items():
    header[name] = {"dtype": _CODES[str(x.dtype)], "shape": list(x.shape),
                    "data_offsets": [end, end + x.nbytes]}
    end += x.nbytes
  text = json.dumps(header).encode()
  (folder / "model.safetensors").write_bytes(
      len(text).to_bytes(8, "little") + text + b"".join(
          x.tobytes() for x in tensors.values()))
  return folder


def layer(prefix, inputs=_DIM, qk_norm=False):
  """Shapes of the tensors of a layer of Llama or Qwen3."""
  shapes = {"self_attn.q_proj": (16, inputs), "self_attn.k_proj": (8, inputs),
            "self_attn.v_proj": (8, inputs), "self_attn.o_proj": (_DIM, 16),
            "mlp.gate_proj": (24, _DIM), "mlp.up_proj": (24, _DIM),
            "mlp.down_proj": (_DIM, 24), "post_attention_layernorm": (_DIM,)}
  if qk_norm:
    shapes |= {"self_attn.q_norm": (4,), "self_attn.k_norm": (4,)}
  return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}


def drawn(shapes):
  rng = np.random.default_rng(5)
  return {name: (rng.standard_normal(shape) / (
      np.sqrt(shape[-1]) / 2 if len(shape) > 1 else 3) + (
          len(shape) == 1)).astype(np.float32)
          for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def target():
  return tiny.random_model(_TARGET)


def features(params, kept):
  """`[T - 1, F]` of each of the layers, of all of the text but the root."""
  lm = transformer.with_features(_TARGET, tuple(sorted(set(kept))))
  fresh, size = lm.init_cache(1, len(_TEXT)), len(_TEXT)
  _, block = lm.forward(
      params, _TEXT[None], np.arange(size)[None], lm.init_cache(1, 0),
      dj.Block(fresh.keys, fresh.values, fresh.features), 0,
      np.tril(np.ones((1, size, size), bool)))
  found = dict(zip(sorted(set(kept)), block.features))
  return [np.asarray(found[i][0, :-1], np.float64) for i in kept]


def drafted(loaded, target_params):
  """A greedy chain: its tokens, and the log-probabilities of each level."""
  head, params, kept = loaded
  read = [jnp.asarray(x, jnp.float32)[None] for x in features(target_params,
                                                              kept)]
  # In two parts, the second one padded.
  state = head.init(1, 32)
  pad = lambda x: jnp.pad(x, ((0, 0), (0, 1)) + ((0, 0),) * (x.ndim - 2))
  after = jnp.asarray(_TEXT[None, 1:], jnp.int32)
  for part, count in ((slice(0, 4), 4), (slice(4, None), 2)):
    more = pad if count == 2 else (lambda x: x)
    state = head.read(params, target_params, state,
                      tuple(more(x[:, part]) for x in read),
                      more(after[:, part]), jnp.array([count]))
  root = after[:, -1]
  chain = expanders.top_k((1,) * _DEPTH)
  draft = head.start(params, target_params, state, root, _DEPTH)
  warper = sampling.make_warper(dj.Sampling(temperature=_TEMPERATURE), 1,
                                _VOCAB)
  tree, _ = expanders.grow_by(
      random.split(jax.random.key(0), 1), chain, root,
      lambda tree, level, nodes, draft: head.logits(
          params, target_params, state, draft, tree, level, nodes),
      draft, _VOCAB, warper)
  return np.asarray(tree.tokens[0, 1:]), np.asarray(tree.log_probs[0])


def log_softmax(x):
  x = (x - x.max()) / _TEMPERATURE
  return x - np.log(np.exp(x).sum())


def as_numpy(params):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def check_chain(found, own):
  """Compares each level with `own(tokens drafted so far) -> logits`."""
  tokens, log_probs = found
  for level in range(_DEPTH):
    expected = log_softmax(own(tokens[:level]))
    inside = ~np.isinf(expected)
    np.testing.assert_array_equal(np.isinf(log_probs[level]), ~inside)
    np.testing.assert_allclose(log_probs[level][inside], expected[inside],
                               atol=1e-4)


@pytest.mark.parametrize("flavour", ["midlayer", "layers.0"])
def test_eagle3(tmp_path, target, flavour):
  draft_vocab = 6
  shapes = {"fc.weight": (_DIM, 3 * _DIM), "norm.weight": (_DIM,),
            "lm_head.weight": (draft_vocab, _DIM),
            f"{flavour}.input_layernorm.weight": (_DIM,),
            f"{flavour}.hidden_norm.weight": (_DIM,),
            **layer(flavour, 2 * _DIM)}
  ids = np.array([0, 2, 3, 7, 8, 11])
  w = drawn(shapes) | {"d2t": ids - np.arange(6), "t2d": np.zeros(_VOCAB, bool)}
  fields = {**_FIELDS, "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama", "draft_vocab_size": draft_vocab}
  if flavour == "layers.0":
    w |= drawn({"embed_tokens.weight": (_VOCAB, _DIM)})
    fields = {"speculators_model_type": "eagle3", "draft_vocab_size": 6,
              "transformer_layer_config": {**_FIELDS, "model_type": "llama"},
              "eagle_aux_hidden_state_layer_ids": [1, 1, 2],
              "norm_before_residual": True}
  folder = write(tmp_path / "head", fields, w)
  assert heads.is_head(folder)
  loaded = heads.load(folder, _TARGET)
  assert loaded.kept == ((0, 0, 1) if flavour == "layers.0" else (1, 0, 0))
  w = {name: np.asarray(x, np.float64) for name, x in w.items()}
  table = w.get("embed_tokens.weight",
                as_numpy(target.params)["embedding"])
  read = np.concatenate(features(target.params, loaded.kept), -1) @ w[
      "fc.weight"].T

  def logits(drafts):
    hidden = read
    for count in range(len(drafts) + 1):
      tokens = np.concatenate([_TEXT[1:], drafts[:count]]).astype(int)
      out = reference.eagle3(w, flavour, table[tokens], hidden, _SIZES,
                             flavour == "layers.0")
      hidden = np.concatenate([hidden, out[-1:]])
    found = reference.rms(out[-1], w["norm.weight"], 1e-6) @ w[
        "lm_head.weight"].T
    spread = np.full(_VOCAB, -np.inf)
    spread[ids] = found
    return spread

  check_chain(drafted(loaded, target.params), logits)


def test_eagle1(tmp_path, target):
  shapes = {"fc.weight": (_DIM, 2 * _DIM), "fc.bias": (_DIM,),
            "embed_tokens.weight": (_VOCAB, _DIM), **layer("layers.0")}
  w = drawn(shapes)
  folder = write(tmp_path / "head", {**_FIELDS, "model_type": "llama",
                                     "architectures": ["LlamaForCausalLM"]}, w)
  assert heads.is_head(folder)
  loaded = heads.load(folder, _TARGET)
  w, own = as_numpy(w), as_numpy(target.params)
  read = reference.rms(features(target.params, loaded.kept)[0],
                       own["norm"]["scale"][:, 0], _TARGET.norm_eps)

  def logits(drafts):
    hidden = read
    for count in range(len(drafts) + 1):
      tokens = np.concatenate([_TEXT[1:], drafts[:count]]).astype(int)
      out = reference.eagle1(w, w["embed_tokens.weight"][tokens], hidden,
                             _SIZES)
      hidden = np.concatenate([hidden, out[-1:]])
    return out[-1] @ own["head"].T

  check_chain(drafted(loaded, target.params), logits)


def test_medusa(tmp_path, target):
  shapes = {}
  for i in range(_DEPTH):
    shapes |= {f"{i}.0.linear.weight": (_DIM, _DIM),
               f"{i}.0.linear.bias": (_DIM,), f"{i}.1.weight": (_VOCAB, _DIM)}
  w = drawn(shapes)
  folder = write(tmp_path / "head", {"medusa_num_heads": 3,
                                     "medusa_num_layers": 1}, w)
  (folder / "model.safetensors").rename(folder / "medusa_lm_head.safetensors")
  loaded = heads.load(folder, _TARGET)
  w, own = as_numpy(w), as_numpy(target.params)
  x = reference.rms(features(target.params, loaded.kept)[0][-1],
                    own["norm"]["scale"][:, 0], _TARGET.norm_eps)

  def logits(drafts):
    i = len(drafts)
    y = x + reference.silu(x @ w[f"{i}.0.linear.weight"].T + w[
        f"{i}.0.linear.bias"])
    return y @ w[f"{i}.1.weight"].T

  check_chain(drafted(loaded, target.params), logits)


@pytest.mark.parametrize("name", ["dflash", "jetspec", "dspark"])
def test_blocks(tmp_path, target, name):
  kept, rank, size = (0, 1), 3, 4
  shapes = {"fc.weight": (_DIM, 2 * _DIM), "hidden_norm.weight": (_DIM,),
            "norm.weight": (_DIM,)}
  for i in range(2):
    shapes |= {f"layers.{i}.input_layernorm.weight": (_DIM,),
               **layer(f"layers.{i}", qk_norm=True)}
  fields = {**_FIELDS, "model_type": "qwen3", "num_hidden_layers": 2,
            "block_size": size, "architectures": ["DFlashDraftModel"],
            "dflash_config": {"mask_token_id": 5, "target_layer_ids": kept}}
  if name == "jetspec":
    fields["dflash_config"]["causal_head"] = True
  if name == "dspark":
    shapes |= {"markov_head.markov_w1.weight": (_VOCAB, rank),
               "markov_head.markov_w2.weight": (_VOCAB, rank),
               "lm_head.weight": (_VOCAB, _DIM),
               "confidence_head.proj.weight": (1, _DIM)}
    fields |= {"architectures": ["Qwen3DSparkModel"], "markov_rank": rank,
               "markov_head_type": "vanilla", "mask_token_id": 5,
               "target_layer_ids": kept}
  w = drawn(shapes)
  loaded = heads.load(write(tmp_path / "head", fields, w), _TARGET)
  assert loaded.head.depth == (4 if name == "dspark" else 3)
  w, own = as_numpy(w), as_numpy(target.params)
  tokens = np.array([_TEXT[-1], 5, 5, 5])
  out = reference.block(
      w, 2, own["embedding"][tokens],
      np.concatenate(features(target.params, kept), -1), _SIZES,
      name == "jetspec")

  def logits(drafts):
    i = len(drafts)
    if name != "dspark":
      return out[i + 1] @ own["head"].T
    before = (drafts[-1:] if i else _TEXT[-1:])[0]
    return out[i] @ own["head"].T + w["markov_head.markov_w1.weight"][
        before] @ w["markov_head.markov_w2.weight"].T

  check_chain(drafted(loaded, target.params), logits)


def text_before(loaded, target_params):
  """Normed hidden states, and the embedding and output tables of the target."""
  own = as_numpy(target_params)
  hidden = reference.rms(features(target_params, loaded.kept)[0],
                         own["norm"]["scale"][:, 0], _TARGET.norm_eps)
  return hidden, own["embedding"], own["head"]


def after(drafts):
  """Tokens after the first one of all, and drafted ones."""
  return np.concatenate([_TEXT[1:], drafts]).astype(int)


def test_fspad(tmp_path, target):
  shapes = {"fc.fc.weight": (_DIM, 2 * _DIM), "fc.fc.bias": (_DIM,),
            "fc.post_attention_layernorm.weight": (_DIM,),
            "fc.mlp.gate_proj.weight": (24, _DIM),
            "fc.mlp.up_proj.weight": (24, _DIM),
            "fc.mlp.down_proj.weight": (_DIM, 24), **layer("layers.0"),
            "layers.0.mlp.down_proj.weight": (2 * _DIM, 24)}
  w = drawn(shapes)
  folder = write(tmp_path / "head", {**_FIELDS, "model_type": "llama",
                                     "architectures": ["LlamaForCausalLM"]}, w)
  assert heads.is_head(folder)
  loaded = heads.load(folder, _TARGET)
  w, (read, table, output) = as_numpy(w), text_before(loaded, target.params)

  def logits(drafts):
    hidden = read
    for count in range(len(drafts) + 1):
      out, made = regressive.fspad(w, table[after(drafts[:count])], hidden,
                                   _SIZES)
      hidden = np.concatenate([hidden, made[-1:]])
    return out[-1] @ output.T

  check_chain(drafted(loaded, target.params), logits)


_MTP = {
    "deepseek": ("model.layers.2.enorm", "model.layers.2.hnorm",
                 "model.layers.2.eh_proj", "model.layers.2.shared_head.norm",
                 "model.layers.2"),
    "qwen": ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc",
             "mtp.norm", "mtp.layers.0"),
    "mimo": ("model.mtp_layers.0.token_layernorm",
             "model.mtp_layers.0.hidden_layernorm",
             "model.mtp_layers.0.input_proj",
             "model.mtp_layers.0.final_layernorm", "model.mtp_layers.0")}


def module(name):
  """Tensors of a next-token module."""
  *norms, projection, last, prefix = _MTP[name]
  shapes = {f"{x}.weight": (_DIM,) for x in (*norms, last)} | {
      f"{projection}.weight": (_DIM, 2 * _DIM),
      f"{prefix}.input_layernorm.weight": (_DIM,), **layer(prefix)}
  if name == "deepseek":
    shapes |= {f"{prefix}.shared_head.head.weight": (_VOCAB, _DIM),
               f"{prefix}.embed_tokens.weight": (_VOCAB, _DIM)}
  return drawn(shapes)


@pytest.mark.parametrize("name", _MTP)
def test_mtp(tmp_path, target, name):
  """In the target's own folder, which is no head and loads as before."""
  convert.to_hf(tmp_path / "own", _TARGET, target.params)
  own = {key: x.read() for key, x in tensor_files.tensors(
      tmp_path / "own").items()}
  fields = json.loads((tmp_path / "own" / "config.json").read_text())
  folder = write(tmp_path / "target", {**fields, "num_nextn_predict_layers": 1},
                 own | module(name))
  assert not heads.is_head(folder)
  jax.tree.map(np.testing.assert_array_equal, convert.from_hf(folder)[1],
               target.params)
  loaded = heads.load(folder, _TARGET)
  w, own = as_numpy(module(name)), as_numpy(target.params)
  read = reference.rms(features(target.params, loaded.kept)[0],
                       own["norm"]["scale"][:, 0], _TARGET.norm_eps)
  sizes = {**_SIZES, "eps": _TARGET.norm_eps}

  def logits(drafts):
    hidden = read
    for count in range(len(drafts) + 1):
      tokens = np.concatenate([_TEXT[1:], drafts[:count]]).astype(int)
      embeddings = own["embedding"][tokens]
      if name == "mimo":
        embeddings[0] = 0
      out = reference.mtp(w, _MTP[name], embeddings, hidden, sizes,
                          name == "mimo")
      hidden = np.concatenate([hidden, out[-1:]])
    return out[-1] @ own["head"].T

  check_chain(drafted(loaded, target.params), logits)


@pytest.mark.parametrize("arch", ["mlp", "prefix-mlp"])
def test_hydra(tmp_path, target, arch):
  step, last, shapes = 1, "", {}
  if arch == "prefix-mlp":
    prefix, step, last = "prefix_embeding_layer", 2, ".1"
    shapes = {f"{prefix}.norm.weight": (_DIM,),
              f"{prefix}.embed_tokens.weight": (_VOCAB, _DIM),
              f"{prefix}.layers.0.input_layernorm.weight": (_DIM,),
              **layer(f"{prefix}.layers.0")}
  for i in range(_DEPTH):
    for j, inputs in ((0, (i + 2) * _DIM), (1, _DIM)):
      name = f"hydra_mlp.{i}.{step - 1 + step * j}"
      parts = ["linear"] if j else ["linear", "res_connection"]
      for part in parts:
        shapes |= {f"{name}.{part}.weight": (_DIM, inputs),
                   f"{name}.{part}.bias": (_DIM,)}
    shapes |= {f"hydra_lm_head.{i}{last}.weight": (_VOCAB, _DIM),
               f"hydra_lm_head.{i}{last}.bias": (_VOCAB,)}
  w = drawn(shapes)
  fields = {"hydra_num_heads": _DEPTH, "hydra_num_layers": 2,
            "hydra_head_arch": arch, "grounded_heads": True}
  folder = write(tmp_path / "head", fields, w)
  (folder / "model.safetensors").rename(folder / "hydra_lm_head.safetensors")
  assert heads.is_head(folder)
  loaded = heads.load(folder, _TARGET)
  w, (read, table, _) = as_numpy(w), text_before(loaded, target.params)
  if arch == "prefix-mlp":
    read = regressive.layers(
        w, (f"{prefix}.layers.0",), f"{prefix}.norm.weight", read,
        _SIZES | {"eps": _TARGET.norm_eps})

  def logits(drafts):
    return regressive.hydra(w, len(drafts), read[-1],
                            table[after(drafts)][len(read) - 1:], step, last)

  check_chain(drafted(loaded, target.params), logits)
  write(folder, {**fields, "grounded_heads": False}, {})
  with pytest.raises(ValueError, match="grounded_heads=False is not supported"):
    heads.load(folder, _TARGET)


def test_clover2(tmp_path, target):
  shapes = {f"clover_{name}.weight": (_DIM,) for name in ("norm", "head_norm")}
  shapes |= {"clover_embed_tokens.weight": (_VOCAB, _DIM),
             "lm_head.weight": (_VOCAB, _DIM)}
  parts = [(f"rnn{end}.{part}", _DIM) for end in ("", "2") for part in "qkv"]
  for name, inputs in (("", _DIM), ("2", 2 * _DIM), *parts):
    name = f"clover_head_mlp{f'_{name}' if '.' in name else name}"
    shapes |= {f"{name}.weight": (_DIM, inputs), f"{name}.bias": (_DIM,)}
  for end in ("", "2"):
    shapes[f"clover_head_mlp_rnn{end}.input_layernorm.weight"] = (_DIM,)
  for i in range(2):
    shapes |= {f"layers.{i}.input_layernorm.weight": (_DIM,),
               **layer(f"layers.{i}")}
  w = drawn(shapes)
  # The base of the rotation is not that of the config.
  folder = write(tmp_path / "head", {
      **_FIELDS, "model_type": "llama", "architectures": ["LlamaForCausalLM"],
      "rope_theta": 5e5, "clover": {"num_heads": 5, "num_layers": 2}}, w)
  assert heads.is_head(folder)
  loaded = heads.load(folder, _TARGET)
  w, (_, _, output) = as_numpy(w), text_before(loaded, target.params)
  read = features(target.params, loaded.kept)[0]
  table = w["clover_embed_tokens.weight"]

  def logits(drafts):
    return regressive.clover2(w, read, table[after(drafts)], len(drafts),
                              _SIZES) @ output.T

  check_chain(drafted(loaded, target.params), logits)


def test_chimera(tmp_path, target):
  torch = pytest.importorskip("torch")
  name = "fast_layer1.0"
  shapes = {"trimlp.0.linear.weight": (3 * _DIM, 3 * _DIM),
            "trimlp.0.linear.bias": (3 * _DIM,),
            "trimlp.1.weight": (_DIM, 3 * _DIM),
            f"{name}.input_layernorm.weight": (_DIM,), **layer(name),
            **{f"chimera_head.{i}.0.weight": (_VOCAB, 2 * _DIM)
               for i in range(_DEPTH)}}
  w = drawn(shapes)
  (tmp_path / "config.json").write_text(json.dumps(
      {"chimera_num_heads": _DEPTH, "chimera_num_layers": 1}))
  for part in ("trimlp", "fast_layer1", "chimera_head"):
    torch.save({key.removeprefix(f"{part}."): torch.tensor(x)
                for key, x in w.items() if key.startswith(part)},
               tmp_path / f"{part}.pt")
  assert heads.is_head(tmp_path)
  loaded = heads.load(tmp_path, _TARGET)
  w, (read, table, _) = as_numpy(w), text_before(loaded, target.params)
  sizes = _SIZES | {"eps": _TARGET.norm_eps}
  check_chain(drafted(loaded, target.params), lambda drafts: regressive.chimera(
      w, read, table[after(drafts)], len(drafts), sizes))


def test_mtp_that_does_not_fit(tmp_path):
  folder = write(tmp_path / "head", {"architectures": ["Qwen3NextMTP"]},
                 module("qwen"))
  assert heads.is_head(folder)
  with pytest.raises(ValueError, match="target, num_experts=5, is not support"):
    heads.load(folder, tiny.MIXTRAL)
  with pytest.raises(ValueError, match="_proj.bias is missing"):
    heads.load(folder, dataclasses.replace(_TARGET, qkv_bias=True))


@pytest.mark.parametrize("fields, tensors, message", [
    ({"norm_before_fc": True}, {}, "norm_before_fc=True is not supported"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, {},
     r"layers \(0, 1, 8\): the target has the layers 0 to 1"),
    ({}, {"fc.weight": (_DIM, 2 * _DIM)}, r"fc.weight has shape .*\(16, 48\)"),
    ({}, {"extra.weight": (2,)}, "extra.weight is not one of a head"),
    ({}, {"norm.weight": None}, "norm.weight is missing"),
])
def test_heads_that_do_not_fit(tmp_path, fields, tensors, message):
  shapes = {"fc.weight": (_DIM, 3 * _DIM), "norm.weight": (_DIM,),
            "lm_head.weight": (_VOCAB, _DIM),
            "midlayer.input_layernorm.weight": (_DIM,),
            "midlayer.hidden_norm.weight": (_DIM,),
            **layer("midlayer", 2 * _DIM), **tensors}
  folder = write(tmp_path / "head", {
      **_FIELDS, "architectures": ["LlamaForCausalLMEagle3"],
      "model_type": "llama", **fields},
                 drawn({k: v for k, v in shapes.items() if v}))
  with pytest.raises(ValueError, match=message):
    heads.load(folder, _TARGET)


def test_a_block_of_some_tokens(tmp_path, target):
  """It drafts as one of all tokens does, if these are not considered."""
  ids = jnp.array([1, 2, 5, 7, 10])
  config = block.Config(dataclasses.replace(_TARGET, qk_norm=True), 4, 5, 2, 3,
                        from_root=True, draft_vocab=5)
  params = block.init(jax.random.key(2), config, _TARGET) | {"tokens": ids}
  heads.save(tmp_path / "head", block, config, params, (0, 1))
  found = heads.load(tmp_path / "head", _TARGET, target_params=target.params)
  out = jnp.zeros((_VOCAB, 3)).at[ids].set(params["markov_out"])
  whole = {"network": params["network"], "markov_in": params["markov_in"],
           "markov_out": out}
  full = dataclasses.replace(config, draft_vocab=0)
  expected = drafted((block.head(full, _TARGET), whole, found.kept),
                     target.params)[1][0][ids]
  at_hand = drafted(found, target.params)[1][0]
  assert set(np.flatnonzero(np.isfinite(at_hand))) == set(np.asarray(ids))
  np.testing.assert_allclose(
      at_hand[ids], expected - np.logaddexp.reduce(expected), atol=1e-5)


def test_rows_of_the_targets_output_layer(tmp_path, target):
  """A head with `d2t` and no output layer has the logits of the target's."""
  config = eagle.Config(dataclasses.replace(_TARGET, num_layers=1),
                        draft_vocab=5, shared_output=True)
  params = eagle.init(jax.random.key(2), config, _TARGET)
  ids = jnp.array([1, 2, 5, 7, 10])
  params["tokens"] = ids
  heads.save(tmp_path / "head", eagle, config, params, (0, 0, 1))
  found = heads.load(tmp_path / "head", _TARGET, target_params=target.params)
  own = target.params["head"]
  np.testing.assert_array_equal(found.params["tokens"], ids)
  np.testing.assert_array_equal(found.params["output"], own[ids])
  full = eagle.Config(config.layer)
  whole = {"layer": {**found.params["layer"], "output": own}}
  expected = drafted((eagle.head(full, _TARGET), whole, found.kept),
                     target.params)[1][0]
  at_hand = drafted(found, target.params)[1][0]
  assert set(np.flatnonzero(np.isfinite(at_hand))) == set(np.asarray(ids))
  np.testing.assert_allclose(
      at_hand[ids], expected[ids] - np.logaddexp.reduce(expected[ids]),
      atol=1e-5)


def test_prompt_tokens(tmp_path):
  config = prompt_tokens.Config(2)
  params = prompt_tokens.init(jax.random.key(2), config, _TARGET)
  folder = tmp_path / "prompts"
  heads.save(folder, prompt_tokens, config, params, (1,))
  assert heads.is_prompts(folder) and not heads.is_head(folder)
  lm, found = heads.load_prompts(folder, _TARGET)
  assert lm is prompt_tokens.target(config, _TARGET)
  np.testing.assert_array_equal(found, params["prompts"])
  with pytest.raises(ValueError, match=r"prompt_embeddings has shape \(2, 16"):
    heads.load_prompts(folder, dataclasses.replace(_TARGET, dim=8))


_LAYER = dataclasses.replace(_TARGET, num_layers=1)
_WRITTEN = {
    "medusa": (medusa, medusa.Config(_DEPTH), (1,)),
    "eagle1": (eagle, eagle.Config(_LAYER, version=1), (1,)),
    "eagle3": (eagle, eagle.Config(_LAYER), (0, 0, 1)),
    "dspark": (block, block.Config(
        dataclasses.replace(_TARGET, qk_norm=True), num_features=2,
        markov_rank=3, from_root=True), (0, 1)),
    "mtp": (mtp, mtp.Config(mtp.layer_of(_TARGET)), (1,)),
    "fspad": (eagle, eagle.Config(_LAYER, version=1, bias=True,
                                  sampled_features=True, decoupled=True), (1,)),
    "hydra": (hydra, hydra.Config(_DEPTH, 2), (1,)),
    "hydra++": (hydra, hydra.Config(_DEPTH, prefix=_LAYER), (1,)),
    "clover1": (clover, clover.Config(_LAYER, version=1), (1,)),
    "clover2": (clover, clover.Config(_TARGET, own_embedding=True), (1,)),
    "chimera": (chimera, chimera.Config(_LAYER, _DEPTH), (1,))}


def written(folder, kind):
  """Writes a head of random parameters, which are returned."""
  module, config, kept = _WRITTEN[kind]
  params = module.init(jax.random.key(2), config, _TARGET)
  heads.save(folder, module, config, params, kept, {"loss": 1})
  return params


@pytest.mark.parametrize("kind", _WRITTEN)
def test_what_is_saved_is_read_back(tmp_path, kind):
  params = written(tmp_path / "head", kind)
  assert heads.is_head(tmp_path / "head")
  found = heads.load(tmp_path / "head", _TARGET)
  assert found.kept == _WRITTEN[kind][2]
  jax.tree.map(np.testing.assert_array_equal, found.params, params)


@pytest.mark.parametrize("kind", _WRITTEN)
@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_matrices_of_fewer_bits(tmp_path, kind, weights):
  """All products and tables are narrow, no norm and no bias is."""
  params = written(tmp_path / "head", kind)
  found = heads.load(tmp_path / "head", _TARGET, weights=weights)
  opened = heads.open_folder(tmp_path / "head", _TARGET, weights=weights)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), found.params) == (
      jax.tree.map(lambda x: (x.shape, x.dtype), opened.params))

  def check(x, whole):
    if whole.shape[-1] == 1:
      assert x.dtype == whole.dtype
      np.testing.assert_array_equal(x, whole)
    elif weights == "int8":
      assert x.values.dtype == jnp.int8
      assert (abs(quantization.dequantize(x, jnp.float32) - whole) <=
              x.scales * .5001).all()
    else:
      assert x.dtype == jnp.bfloat16
      np.testing.assert_array_equal(x, whole.astype(jnp.bfloat16))

  jax.tree.map(check, found.params, params, is_leaf=quantization.is_matrix)
  module, config, kept = _WRITTEN[kind]
  with pytest.raises(ValueError, match="float32.*: a head of one type can be"):
    heads.save(tmp_path / "again", module, config, found.params, kept)


@pytest.mark.parametrize("kind", _WRITTEN)
@pytest.mark.parametrize("narrow", [
    {"weights": "int8"}, {"weights": "bfloat16"}, {"dtype": "bfloat16"}],
    ids=["int8", "bfloat16", "dtype"])
def test_narrow_heads_draft_almost_alike(tmp_path, kind, narrow, target):
  written(tmp_path / "head", kind)
  whole, found = (drafted(heads.load(tmp_path / "head", _TARGET, **more),
                          target.params)[1] for more in ({}, narrow))
  np.testing.assert_allclose(found[0], whole[0], atol=.01)
  assert np.isfinite(found).all()
