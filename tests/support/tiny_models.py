"""Tiny models that are not flat, one that follows a script, and runs."""

import dataclasses
import functools
import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types
import decoding_jax as dj
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.speculation import tree as tree_lib, tree_decoder
from decoding_jax.testing import exactness
from models import transformer

# The package has a function of this name as well.
generate_lib = importlib.import_module("decoding_jax.generate")
# Ragged prompts; what is after them must not matter, so it is no padding.
PROMPTS = np.array([[5, 1, 12, 7, 3], [2, 9, 4, 11, 11], [8, 6, 6, 6, 6]],
                   np.int32)
LENGTHS = np.array([5, 3, 1], np.int32)
NEW = 9

LLAMA = transformer.Config(
    vocab_size=13, dim=16, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=4, hidden_dim=24, max_length=64, tie_embeddings=False)
# Just as long as the runs: their trees reach beyond the last position.
OPT = dataclasses.replace(
    LLAMA, norm="layer", positions="learned", feed_forward="relu", bias=True,
    tie_embeddings=True, max_length=PROMPTS.shape[1] + NEW, family="opt")
# All that Gemma 2 and 3 add; the window is shorter than the trees are deep.
GEMMA = dataclasses.replace(
    LLAMA, norm="rms_plus_one", feed_forward="geglu", sandwich_norm=True,
    tie_embeddings=True, embedding_scale=4.0, query_scalar=5, qk_norm=True,
    attention_softcap=3.0, logit_softcap=8.0, window=3, full_every=2,
    rope_theta=100.0, rope_local_theta=10.0, rope_scaling="linear",
    rope_factor=2.0, family="gemma3_text")
NEOX = dataclasses.replace(
    LLAMA, norm="layer", feed_forward="erf_gelu", qkv_bias=True, out_bias=True,
    feed_forward_bias=True, num_kv_heads=4, parallel=True, rope_part=0.5,
    rope_theta=10.0, family="gpt_neox")
MIXTRAL = dataclasses.replace(LLAMA, num_experts=5, experts_per_token=2,
                              family="mixtral")
# Layers of both kinds; of delta layers the first, and one after attention.
DELTA = dataclasses.replace(
    LLAMA, num_layers=3, full_every=2, linear_key_heads=2, linear_value_heads=4,
    linear_key_dim=3, linear_value_dim=5, linear_conv=3, norm="rms_plus_one",
    qk_norm=True, attention_gate=True, head_dim=8, rope_part=0.5,
    family="qwen3_5_text")
# Mamba-2 layers of two groups, and one of attention without positions.
MAMBA = dataclasses.replace(
    LLAMA, num_layers=3, attention_layers=(1,), linear_layer="mamba2",
    linear_key_heads=2, linear_value_heads=4, linear_key_dim=3,
    linear_value_dim=8, linear_conv=3, positions="none", embedding_scale=1.5,
    residual_scale=0.8, query_scalar=5, family="granitemoehybrid")
# Latent attention, with queries of few channels or of all of them.
DEEPSEEK_2 = dataclasses.replace(
    LLAMA, num_kv_heads=1, latent_dim=6, plain_dim=5, value_dim=3,
    rope_interleaved=True, rope_theta=100.0, hidden_dim=8, num_experts=8,
    experts_per_token=3, normalize_experts=False, shared_dim=16,
    shared_gate=False, expert_groups=4, groups_per_token=2, expert_scale=2.5,
    family="deepseek_v2")
DEEPSEEK_3 = dataclasses.replace(
    DEEPSEEK_2, query_rank=10, query_scalar=6.0, rope_interleaved=False,
    normalize_experts=True, router="sigmoid", dense_layers=1, dense_dim=24,
    family="deepseek_v3")
GPT_2 = dataclasses.replace(OPT, feed_forward="gelu", num_kv_heads=4,
                            family="gpt2")


class Model(NamedTuple):
  """A language model and its parameters."""
  lm: types.LanguageModel
  params: Any


class Models(NamedTuple):
  """A target and a drafter."""
  target: Model
  draft: Model


@functools.lru_cache(maxsize=None)
def random_model(config, seed=3):
  """A transformer of random parameters, none of them 0 or 1."""
  shapes = transformer.abstract_params(config)
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    noise = rng.standard_normal(leaf.shape)
    scaled = {"kernel": 2.5 * noise / np.sqrt(leaf.shape[-1]),
              "scale": 1 + noise / 4, "bias": noise / 4,
              "correction": noise / 4,
              "embedding": noise / 2, "head": noise / 2, "positions": 3 * noise,
              "A_log": noise / 2, "dt_bias": noise / 2,
              "norm_scale": 1 + noise / 4}
    return jnp.asarray(scaled.get(path[-1].key, noise), leaf.dtype)

  params = jax.tree_util.tree_map_with_path(draw, shapes)
  return Model(transformer.language_model(config), params)


def noisy(model, amount, seed=1):
  """The model with noise on its parameters."""
  rng = np.random.default_rng(seed)

  def shake(x):
    return x + amount * jnp.std(x) * rng.standard_normal(x.shape).astype(
        np.float32)

  return Model(model.lm, jax.tree.map(shake, model.params))


@functools.lru_cache(maxsize=None)
def llama_models():
  """Llama family; the drafter has the target's shape, and is like it."""
  target = random_model(dataclasses.replace(LLAMA, scan_layers=True))
  return Models(target, noisy(target, 0.1))


@functools.lru_cache(maxsize=None)
def opt_models():
  """OPT family; the drafter is the target without its last layer."""
  target = random_model(OPT)
  layers = {"layer_0": target.params["layers"]["layer_0"]}
  lm = transformer.language_model(dataclasses.replace(OPT, num_layers=1))
  return Models(target, Model(lm, {**target.params, "layers": layers}))


def tables(*distributions):
  """Models of a target's and a drafter's `[V, V]` distributions, or of one."""
  models = [Model(*exactness.table_model(x)) for x in distributions]
  return Models(models[0], models[-1])


def arguments(models):
  """What `dj.generate` calls the two models; the draft may be None."""
  draft = models.draft or (None, None)
  return dict(target=models.target.lm, target_params=models.target.params,
              draft=draft[0], draft_params=draft[1])


def long_models(config, **draft):
  """Arguments of `dj.generate`: a target of 64 positions, and a noisy draft
  with these fields of its language model."""
  target = random_model(dataclasses.replace(config, max_length=64))
  other = noisy(target, 0.3)
  return arguments(Models(target, other._replace(
      lm=other.lm._replace(**draft))))


def counting_processor(reads_prompt):
  """A processor that favours tokens by the number and the sum of those before.
  """
  size = LLAMA.vocab_size
  return dj.LogitsProcessor(
      init=lambda params: jnp.zeros(2, jnp.int32),
      advance=lambda params, state, token: jnp.stack(
          [state[0] + 1, (state[1] + token) % size]),
      process=lambda params, state, logits: logits.at[state[1]].add(4).at[
          state[0] % size].add(4), reads_prompt=reads_prompt)


class Script(NamedTuple):
  """Parameters of `scripted`: `tokens [B, S]`."""
  tokens: types.Array


def scripted(script, vocab_size):
  """A model whose row b has token `script[b, p]` at position p, for certain."""
  return Model(_script_reader(vocab_size),
               Script(jnp.asarray(script, jnp.int32)))


@functools.lru_cache(maxsize=None)
def _script_reader(vocab_size):
  def init_cache(batch, capacity):
    del capacity
    return types.Cache((), (), jnp.zeros(batch, jnp.int32))

  def forward(params, tokens, positions, cache, block, slot, mask):
    del tokens, cache, slot, mask
    following = jnp.minimum(positions + 1, params.tokens.shape[1] - 1)
    token = jnp.take_along_axis(params.tokens, following, axis=1)
    hit = jnp.arange(vocab_size)[None, None] == token[..., None]
    return jnp.where(hit, 0.0, -jnp.inf), block

  return types.LanguageModel(init_cache, forward, vocab_size)


# What the reward of `table_reward` remembers of a text is one of so many.
STATES = 97


@functools.lru_cache(maxsize=None)
def table_reward(maximum=np.inf):
  """A reward without sense: any token at any place changes it."""
  def init(params, constraint, prompt, length):
    return advance(params, constraint, jnp.int32(0), prompt,
                   jnp.arange(len(prompt)) < length)

  def advance(params, constraint, state, tokens, valid):
    del params, constraint
    step = lambda state, x: (
        jnp.where(x[1], (7 * state + x[0] + 1) % STATES, state), None)
    return jax.lax.scan(step, state, (tokens, valid))[0]

  def value(params, constraint, state):
    return params * constraint[state]

  return dj.Reward(init, advance, value, maximum)


def table_value(table, tokens):
  """The reward of a text, prompt included, by `table_reward`."""
  state = 0
  for token in tokens:
    state = (7 * state + int(token) + 1) % STATES
  return table[state]


@functools.lru_cache(maxsize=None)
def toll_reward():
  """Minus the toll that is paid on the way: it never rises.

  The toll of a token, be it of the prompt, is that of the state of
  `table_reward` which it leads to. Where all are 0, the reward is at its
  maximum.
  """
  hashed = table_reward()

  def init(params, constraint, prompt, length):
    return advance(params, constraint, (jnp.int32(0), jnp.float32(0)), prompt,
                   jnp.arange(len(prompt)) < length)

  def advance(params, constraint, states, tokens, valid):
    def step(states, x):
      state = hashed.advance(params, constraint, states[0], x[0][None],
                             x[1][None])
      return (state, states[1] - jnp.where(x[1], constraint[state], 0)), None

    return jax.lax.scan(step, states, (tokens, valid))[0]

  return dj.Reward(init, advance, lambda params, constraint, states: states[1],
                   maximum=0.0)


@functools.lru_cache(maxsize=None)
def sum_reward():
  """The sum of all tokens, modulo 5; of fewer steps where none is compiled."""
  total = lambda tokens, valid: jnp.where(valid, tokens, 0).sum()
  return dj.Reward(
      lambda params, _, prompt, n: total(prompt, jnp.arange(len(prompt)) < n),
      lambda params, _, state, tokens, valid: state + total(tokens, valid),
      lambda params, _, state: (state % 5).astype(jnp.float32))


def causal(model, tokens):
  """Logits `[B, T, V]` and block of one forward without a cache."""
  return _causal(model.lm, model.params, jnp.asarray(tokens))


def log_probs(model, tokens):
  """`[B, T, V]` float64 after each token of texts, by a plain forward."""
  logits = np.asarray(causal(model, jnp.maximum(tokens, 0))[0], np.float64)
  return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


@functools.partial(jax.jit, static_argnums=0)
def _causal(lm, params, tokens):
  batch, size = tokens.shape
  order = jnp.broadcast_to(jnp.arange(size), (batch, size))
  cache = lm.init_cache(batch, 0)
  return lm.forward(params, tokens, order, cache,
                    cache_lib.init_block(cache, size), 0,
                    order[:, :, None] >= order[:, None])


def committed(model, tokens, lengths, capacity):
  """A cache of the first tokens of each row; junk stands after them."""
  _, block = causal(model, tokens)
  cache = model.lm.init_cache(len(tokens), capacity)
  junk = lambda x: jnp.full_like(x, 7)
  cache = jax.tree.map(junk, cache).replace(length=cache.length)
  slots = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  return cache_lib.commit(cache, block, slots, jnp.asarray(lengths))


def greedy(model, prompts, lengths, new, eos_id=None, allowed=None):
  """Greedy continuations without caches: a list of lists of token ids."""
  rows = np.arange(len(prompts))
  tokens = np.zeros((len(prompts), prompts.shape[1] + new), np.int32)
  tokens[:, :prompts.shape[1]] = prompts
  for at in range(new):
    logits = np.asarray(causal(model, tokens)[0])[rows, lengths + at - 1]
    if allowed is not None:
      logits = np.where(allowed, logits, -np.inf)
    tokens[rows, lengths + at] = logits.argmax(axis=-1)
  texts = [row[n:n + new].tolist() for row, n in zip(tokens, lengths)]
  return [x[:x.index(eos_id) + 1] if eos_id in x else x for x in texts]


# A tree of 6 nodes under the newest token, which is the first one.
PARENTS = [-1, 0, 0, 1, 1, 2, 4]
DEPTHS = np.array([0, 1, 1, 2, 2, 2, 3])


def path_to(node):
  return [] if node < 0 else path_to(PARENTS[node]) + [node]


def tree_mask(batch):
  """Each node of the tree sees those on its path: `[B, 7, 7]`."""
  mask = np.zeros((7, 7), bool)
  for node in range(7):
    mask[node, path_to(node)] = True
  return np.broadcast_to(mask, (batch, 7, 7))


@functools.partial(jax.jit, static_argnums=0)
def forward(lm, params, *args):
  """`lm.forward`, compiled once a model and shape."""
  return lm.forward(params, *args)


def scored(model, cache, tokens):
  """Logits and block of the tree of these tokens `[B, 7]` after a cache."""
  return forward(*model, jnp.asarray(tokens),
                 cache.length[:, None] + DEPTHS[None], cache,
                 cache_lib.init_block(cache, 7), 0,
                 jnp.asarray(tree_mask(len(tokens))))


@functools.partial(jax.jit, static_argnums=1)
def init(key, config):
  """`transformer.init` as one program, which compiles in half of the time."""
  return transformer.init(key, config)


def generate(method, models, *, key=None, prompts=PROMPTS, lengths=LENGTHS,
             new=NEW, **kwargs):
  """`dj.generate` on ragged prompts, and a check of its contract."""
  if not tree_decoder.decoders(method)[0].needs_draft:
    models = Models(models.target, None)
  out = dj.generate(
      jax.random.key(0) if key is None else key, prompts, lengths,
      method=method, max_new_tokens=new, **arguments(models), **kwargs)
  check_contract(out, prompts, lengths, method, new, kwargs.get("eos_id"))
  return out


def texts(out, lengths):
  """The generated tokens as a list of lists."""
  return [row[start:end].tolist() for row, start, end in zip(
      np.asarray(out.tokens), lengths, np.asarray(out.lengths))]


def check_contract(out, prompts, lengths, method, new, eos_id=None):
  """Asserts what every generation has to fulfil."""
  prompts, lengths = np.asarray(prompts), np.asarray(lengths)
  tokens, ends = np.asarray(out.tokens), np.asarray(out.lengths)
  log_probs = np.asarray(out.log_probs)
  shape = (len(prompts), prompts.shape[1] + new)
  assert tokens.shape == log_probs.shape == shape
  assert tokens.dtype == ends.dtype == np.int32
  order = np.arange(shape[1])
  is_prompt, is_text = order < lengths[:, None], order < ends[:, None]
  width = prompts.shape[1]
  np.testing.assert_array_equal(tokens[:, :width][is_prompt[:, :width]],
                                prompts[is_prompt[:, :width]])
  assert (tokens[is_text] >= 0).all()
  assert (tokens[~is_text] == types.PAD).all()
  assert np.isfinite(log_probs).all() and (log_probs <= 0).all()
  assert (log_probs[is_prompt | ~is_text] == 0).all()
  marks = () if eos_id is None else np.ravel(eos_id)
  for row in texts(out, lengths):
    places = [i for i, token in enumerate(row) if token in marks]
    assert 1 <= len(row) <= new
    assert places == [len(row) - 1] if places else len(row) == new
  np.testing.assert_array_equal(out.stats.emitted, ends - lengths)
  if isinstance(method.sampled, dj.Pair):
    check_stats(out.stats, ends - lengths, method)


def check_stats(stats, emitted, method):
  """Asserts the identities between counts of a tree method."""
  stats = jax.tree.map(np.asarray, stats)
  drafter = method.sampled.drafter
  layout, calls = drafter.layout, stats.target_calls
  depth = tree_lib.depth(layout)
  if method.name.startswith(("shared_budget", "adaptive")):
    assert (stats.nodes <= calls * tree_lib.num_nodes(layout)).all()
  else:
    np.testing.assert_array_equal(stats.nodes,
                                  calls * tree_lib.num_nodes(layout))
  if "threshold" in method.name or method.name.startswith("adaptive"):
    assert (stats.draft_calls <= calls * drafter.calls).all()
  else:
    np.testing.assert_array_equal(stats.draft_calls, calls * drafter.calls)
  by_depth = stats.accepted_by_depth
  assert by_depth.shape == (len(emitted), depth + 1)
  np.testing.assert_array_equal(by_depth.sum(axis=1), calls)
  # Only the last call of a row can accept more than there is room for.
  spare = by_depth @ np.arange(1, depth + 2) - emitted
  assert ((0 <= spare) & (spare <= depth)).all()
  tested = stats.extra["tested_by_rank"]
  accepted = stats.extra["accepted_by_rank"]
  assert tested.shape == (len(emitted), tree_lib.max_branching(layout))
  assert ((0 <= accepted) & (accepted <= tested)).all()
  np.testing.assert_array_equal(accepted.sum(axis=1),
                                by_depth @ np.arange(depth + 1))
  # A sibling is tested only where the one before it was tested and failed.
  assert (tested[:, 1:] <= tested[:, :-1] - accepted[:, :-1]).all()


def context(lm, params, prompts, lengths, warper, **others):
  """A `dj.Context` of one model, which drafts for itself."""
  return dj.Context(**{
      "target": lm, "target_params": params, "draft": lm,
      "draft_params": params, "warper": warper, "draft_warper": warper,
      "eos_id": jnp.zeros(1, jnp.int32), "prompts": prompts,
      "prompt_lengths": lengths, "reward": None, "reward_params": None,
      "constraints": None, **others})
