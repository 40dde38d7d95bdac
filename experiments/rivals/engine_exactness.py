"""Tests whether other engines keep the target's distribution.

At temperature 1 in float32 an engine continues texts of a table that is built
into a Llama (`write_table`), with another table as its draft. Texts are cut
into windows of a few tokens; given the token before it, the joint distribution
of a window is known exactly, and steps of speculative decoding begin anywhere
in it. Chi-square tells whether the counts could be samples. A control, the same
counts against a flatter table, must fail.

At temperature 0 its texts are compared with ours, by a pair of models with
several layers and a context (`random_pair`).
"""

import json
import pathlib
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

import decoding_jax as dj
from decoding_jax.testing import exactness
from experiments.app import text_tables
from experiments.rivals import engines
from experiments.rivals import gguf_export
from experiments.rivals import random_pair
from experiments.rivals import subprocess_server
from models import checkpoints
from models import transformer
from models.huggingface import convert

# Tokens of the tables, and of a window.
_VOCAB, _WINDOW = 6, 3
_FLATTER = 0.8
_PROMPT, _PROMPTS, _GREEDY = 8, 4, 48
# Drafted tokens a step, of settings that draft.
_LENGTH = 3
# Models of the greedy texts.
_PAIR = ml_collections.ConfigDict({
    "seed": 0, "overlap": 0.7, "perplexity": 12.0, "core": 8, "vocab_size": 96,
    "max_length": 256, "dtype": "bfloat16",
    "target": {"dim": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1,
               "head_dim": 32, "hidden_dim": 128},
    "draft": {"dim": 32, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1,
              "head_dim": 32, "hidden_dim": 64}})
# Tokens and channels of the model: sizes that kernels are written for. Tokens
# that the table lacks have this logit, as have its zeros.
SIZE = 64
_NEVER = -80.0
# Of an embedding: its mean square is far above the epsilon of the norm.
_LARGE = 16.0


class Finding(NamedTuple):
  """A line of the table."""
  name: str  # Of the setting.
  # At temperature 0, tokens up to the first that differs from ours, and all.
  same: tuple[int, int] = (0, 0)
  p_value: float = 0.0  # Of chi-square by the right table.
  control: float = 0.0  # By a wrong one.
  error: str = ""  # Why the engine gave no answer.

  @property
  def is_right(self) -> bool:
    """Returns whether texts are ours, and samples of the table."""
    return (not self.error and self.same[0] == self.same[1]
            and self.p_value >= exactness.MIN_P_VALUE > self.control)


def test(name, texts, length, seed=0):
  """Tests all settings of an engine by `texts` texts of `length` tokens."""
  target, draft = exactness.random_tables(_VOCAB)
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    random_pair.write(folder / "pair", _PAIR)
    for side, table in (("target", target), ("draft", draft)):
      write_table(folder / "tables" / side, table)
    expected = _ours(folder / "pair" / random_pair.TARGET, _PAIR.vocab_size)
    return [_find(name, setting, folder, expected, target,
                  seeds=range(seed, seed + texts), length=length)
            for setting in engines.ENGINES[name].settings]


def table(findings) -> str:
  """Formats findings as a table for the terminal."""
  lines = [["setting", "tokens equal at T=0", "p at T=1", "p of the control",
            "right"]]
  for x in findings:
    figures = ["-"] * 3 if x.error else [
        f"{x.same[0]} of {x.same[1]}", f"{x.p_value:.2g}", f"{x.control:.2g}"]
    lines.append([x.name, *figures, "yes" if x.is_right else "NO"])
  errors = [f"{x.name}: {x.error}" for x in findings if x.error]
  return "\n".join([text_tables.plain_table(lines), *errors])


def p_value(texts, table_, window) -> float:
  """Returns the p-value of windows of texts `[N, T]` by a table `[V, V]`, given
  the token before; the first token of a text is only a condition.
  """
  blocks = np.stack([
      texts[:, start:start + window + 1]
      for start in range(0, texts.shape[1] - window, window)])
  blocks = blocks.reshape(-1, window + 1)
  if blocks.max() >= len(table_):
    return 0.0
  counts = np.zeros((len(table_),) * (window + 1))
  np.add.at(counts, tuple(blocks.T), 1)
  probs = np.stack([
      exactness.joint_distribution(table_, first, window) * counted.sum()
      for first, counted in enumerate(counts)]) / counts.sum()
  return exactness.chi_square(counts, probs)


def flatter(table_):
  """Returns distributions near a table's, but different."""
  changed = table_**_FLATTER
  return changed / changed.sum(axis=-1, keepdims=True)


def write_table(folder, table_) -> None:
  """Writes a Llama with the distributions of a table `[V, V]`, V <= `SIZE`."""
  # The embedding of a token is a channel of its own, and no layer writes to the
  # residual stream; the final norm makes that channel the root of the width,
  # and the head reads from it the logarithms of the token's row of the table.
  config = transformer.Config(
      vocab_size=SIZE, max_length=2048, dim=SIZE, num_layers=1, num_heads=1,
      num_kv_heads=1, head_dim=SIZE, hidden_dim=SIZE, tie_embeddings=False,
      dtype="float32")
  with np.errstate(divide="ignore"):
    logs = np.maximum(np.log(table_), _NEVER)
  head = np.full((SIZE, SIZE), _NEVER)
  head[:len(table_), :len(table_)] = logs.T
  given = {"embedding": _LARGE * np.eye(SIZE), "head": head / SIZE**0.5,
           "norm/scale": np.ones(SIZE)}

  def leaf(path, shape):
    x = given.get(transformer.param_name(path))
    return (jnp.zeros(shape.shape, jnp.float32) if x is None else
            jnp.asarray(x, jnp.float32).reshape(shape.shape))

  convert.to_hf(folder, config, jax.tree_util.tree_map_with_path(
      leaf, transformer.abstract_params(config)))


def _find(name, setting, folder, expected, target, *, seeds, length):
  prompts, ours = expected
  try:
    texts = _texts(name, setting, folder / "pair",
                   [(row, 0) for row in prompts.tolist()], ours.shape[1], 0.0)
    equal = (np.cumprod(texts == ours, axis=1)).sum()
    drawn = _texts(name, setting, folder / "tables",
                   [([0], seed) for seed in seeds], length, 1.0)
  except (subprocess_server.Failure, OSError, ValueError) as e:
    return Finding(f"{name} {setting}", error=str(e))
  drawn = np.concatenate([np.zeros_like(drawn[:, :1]), drawn], axis=1)
  return Finding(f"{name} {setting}", (int(equal), ours.size),
                 p_value(drawn, target, _WINDOW),
                 p_value(drawn, flatter(target), _WINDOW))


def _texts(name, setting, folder, requests, length, temperature):
  """Returns `[N, length]`, an engine's continuations of N prompts."""
  engine, files = engines.ENGINES[name], {}
  for side in (random_pair.TARGET, random_pair.DRAFT):
    files[side] = folder / side
    if engine.format == engines.GGUF:
      files[side] = folder / f"{side}.gguf"
      if not files[side].exists():
        gguf_export.write(folder / side, files[side], "float32")
  shape = {"setting": setting, "length": _LENGTH, "ngram": 2}
  rival = subprocess_server.start(name, {
      **{side: str(path) for side, path in files.items()}, **shape,
      **dict.fromkeys(("dtype", "weights", "draft_dtype", "draft_weights"),
                      "float32"), "threads": 1, "memory_share": 0.1,
      "max_length": length + _PROMPT, "folder": str(folder)})
  try:
    answers = [subprocess_server.generate(rival, {
        **shape, "prompts": [prompt], "seed": seed, "max_new_tokens": length,
        "temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0})
               for prompt, seed in requests]
  finally:
    subprocess_server.stop(rival)
  tokens = [x["tokens"][0] for x in answers]
  if {len(x) for x in tokens} != {length}:
    raise ValueError(f"texts of {json.dumps(sorted({*map(len, tokens)}))} "
                     f"tokens: {length} were asked for.")
  return np.array(tokens)


def _ours(folder, vocab_size):
  """Returns prompts `[N, P]`, and our greedy continuations `[N, T]`."""
  prompts = np.random.default_rng(0).integers(
      vocab_size, size=(_PROMPTS, _PROMPT), dtype=np.int32)
  lm, params = checkpoints.load(folder, dtype="float32")
  out = dj.generate(
      jax.random.key(0), prompts, np.full(_PROMPTS, _PROMPT, np.int32),
      method=dj.methods.autoregressive(), target=lm, target_params=params,
      max_new_tokens=_GREEDY, sampling=dj.Sampling(temperature=0))
  return prompts, np.asarray(out.tokens)[:, _PROMPT:_PROMPT + _GREEDY]
