"""Folders of small random heads, and what is drafted by them."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import sampling
import decoding_jax as dj
from decoding_jax.kernels import random
from decoding_jax.speculation import expanders
from models import transformer
from models.huggingface import heads
from support import head_reference as reference, tiny_models as tiny

TARGET = tiny.LLAMA
DIM, VOCAB = TARGET.dim, TARGET.vocab_size
SIZES = {"heads": 4, "kv_heads": 2, "head_dim": 4, "theta": 1e4, "eps": 1e-6}
TEXT = np.array([3, 7, 1, 9, 4, 4, 11])
DEPTH = 3
# Logits of random weights are far apart.
_TEMPERATURE = 20
_CODES = {"float32": "F32", "int64": "I64", "bool": "BOOL"}
FIELDS = {
    "hidden_size": DIM, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 4, "intermediate_size": 24, "rms_norm_eps": 1e-6,
    "rope_theta": 1e4, "max_position_embeddings": 64, "hidden_act": "silu",
    "vocab_size": VOCAB, "torch_dtype": "float32", "num_hidden_layers": 1}


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


def loaded(folder, fields, tensors, file="model.safetensors"):
  """Writes a head; returns it as it is loaded, its tensors in float64."""
  write(folder, fields, tensors)
  (folder / "model.safetensors").rename(folder / file)
  assert heads.is_head(folder)
  return heads.load(folder, TARGET), as_numpy(tensors)


def layer(prefix, inputs=DIM, qk_norm=False):
  """Shapes of the tensors of a layer of Llama or Qwen3."""
  shapes = {"self_attn.q_proj": (16, inputs), "self_attn.k_proj": (8, inputs),
            "self_attn.v_proj": (8, inputs), "self_attn.o_proj": (DIM, 16),
            "mlp.gate_proj": (24, DIM), "mlp.up_proj": (24, DIM),
            "mlp.down_proj": (DIM, 24), "post_attention_layernorm": (DIM,)}
  if qk_norm:
    shapes |= {"self_attn.q_norm": (4,), "self_attn.k_norm": (4,)}
  return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}


def drawn(shapes):
  rng = np.random.default_rng(5)
  return {name: (rng.standard_normal(shape) / (
      np.sqrt(shape[-1]) / 2 if len(shape) > 1 else 3) + (
          len(shape) == 1)).astype(np.float32)
          for name, shape in shapes.items()}


def features(params, kept):
  """`[T - 1, F]` of each of the layers, of all of the text but the root."""
  layers = tuple(sorted(set(kept)))
  _, block = tiny.causal(tiny.Model(
      transformer.with_features(TARGET, layers), params), TEXT[None])
  results = dict(zip(layers, block.features[dj.HIDDEN_STATES]))
  return [np.asarray(results[i][0, :-1], np.float64) for i in kept]


def drafted(loaded, target_params):
  """A greedy chain: its tokens, and the log-probabilities of each level."""
  tree = grown(loaded, target_params, expanders.top_k((1,) * DEPTH))
  return np.asarray(tree.tokens[0, 1:]), np.asarray(tree.log_probs[0])


def grown(loaded, target_params, expander):
  """The tree that an expander grows after the text."""
  head, params, kept = loaded
  return _tree(head, params, target_params, tuple(
      jnp.asarray(x, jnp.float32)[None] for x in features(
          target_params, kept)), expander)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _tree(head, params, target_params, read, expander):
  """The tree that is drafted after the text, read in parts of one size."""
  state, after = head.init(1, 32), jnp.asarray(TEXT[None, 1:], jnp.int32)
  pad = lambda x: jnp.pad(x, ((0, 0), (0, 2)) + ((0, 0),) * (x.ndim - 2))
  for start, count in ((0, 4), (4, 2)):
    part = lambda x, start=start: pad(x)[:, start:start + 4]
    state = head.read(params, target_params, state, tuple(map(part, read)),
                      part(after), jnp.array([count]))
  root = after[:, -1]
  draft = head.start(params, target_params, state, root,
                     expanders.inner_nodes(expander.layout))
  warper = sampling.make_warper(dj.Sampling(temperature=_TEMPERATURE), 1, VOCAB)
  return expanders.grow_by(
      random.split(jax.random.key(0), 1), expander, root,
      lambda tree, level, nodes, draft: head.logits(
          params, target_params, state, draft, tree, level, nodes),
      draft, VOCAB, warper)[0]


def log_softmax(x):
  x = (x - x.max()) / _TEMPERATURE
  return x - np.log(np.exp(x).sum())


def as_numpy(params):
  return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


def check_chain(actual, own):
  """Compares each level with `own(tokens drafted so far) -> logits`."""
  tokens, log_probs = actual
  for level in range(DEPTH):
    expected = log_softmax(own(tokens[:level]))
    inside = ~np.isinf(expected)
    np.testing.assert_array_equal(np.isinf(log_probs[level]), ~inside)
    np.testing.assert_allclose(log_probs[level][inside], expected[inside],
                               atol=1e-4)


def check_beam(loaded, target_params, own):
  """Compares each inner node of a beam with `own(its path) -> logits`."""
  tree = jax.tree.map(lambda x: np.asarray(x[0]), grown(
      loaded, target_params, expanders.beam_tree(
          3, DEPTH, dj.Draws.WITHOUT_REPLACEMENT)))
  paths = {0: []}
  for node in range(1, 1 + 3 * (DEPTH - 1)):
    paths[node] = [*paths[tree.parents[node]], tree.tokens[node]]
  for node, path in paths.items():
    expected = log_softmax(own(path))
    np.testing.assert_allclose(np.exp(tree.log_probs[node]), np.exp(expected),
                               atol=1e-5)


def check_recurrent(loaded_head, target_params, read, layers, output):
  """Checks the chain of a head that goes on from its own outputs.

  Args:
    loaded_head: a head.
    target_params: of the target.
    read: `[T - 1, F]`, what it reads of the text.
    layers: `(tokens, read) -> [T, F]`, its outputs.
    output: `[F] -> [V]`, the logits of an output.
  """
  def logits(drafts):
    hidden = read
    for count in range(len(drafts) + 1):
      out = layers(after(drafts[:count]), hidden)
      hidden = np.concatenate([hidden, out[-1:]])
    return output(out[-1])

  check_chain(drafted(loaded_head, target_params), logits)


def text_before(loaded, target_params):
  """Normed hidden states, and the embedding and output tables of the target."""
  own = as_numpy(target_params)
  hidden = reference.rms(features(target_params, loaded.kept)[0],
                         own["norm"]["scale"], TARGET.norm_eps)
  return hidden, own["embedding"], own["head"]


def after(drafts):
  """Tokens after the first one of all, and drafted ones."""
  return np.concatenate([TEXT[1:], drafts]).astype(int)
