"""Runs one pair on meshes of eight devices, and counts what these exchange.

Run by `test_mesh` with a folder for the models, and "more" for other ones;
prints JSON, a dict from names of runs to what was found.
"""

import collections
import dataclasses
import functools
import json
import pathlib
import re
import sys

from absl.testing import flagsaver
import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import tree as tree_lib, verifiers
from experiments.devices import (
    mesh as mesh_lib, mesh_shapes, model_pair, shared_prefix, start_tables)
from models import checkpoints, prompt_lookup, transformer
from models.heads import block, eagle
from models.huggingface import heads
from models.text import tokenizers
from models.transformer import sharding
from support import on_shards, tiny_models as tiny

TARGET = transformer.Config(
    vocab_size=264, dim=16, num_layers=1, num_heads=8, num_kv_heads=8,
    head_dim=4, hidden_dim=16, max_length=32, num_experts=3,
    experts_per_token=2, shared_dim=16)
# Its key/value heads do not divide by 4, nor does it divide by 8 at all; and a
# scan goes over layers with and without a window.
DRAFT = dataclasses.replace(
    TARGET, num_experts=0, shared_dim=0, num_layers=2, num_heads=4,
    num_kv_heads=2, qkv_bias=True, scan_layers=True, norm="rms_plus_one",
    sandwich_norm=True, qk_norm=True, feed_forward="geglu", embedding_scale=4.0,
    attention_softcap=3.0, logit_softcap=8.0, window=3, full_every=2,
    rope_local_theta=10.0)
METHOD = dj.methods.rsd_s(2, 2)
_COLLECTIVE = re.compile(
    r" (all-gather|all-reduce|all-to-all|collective-\w+|reduce-scatter)"
    r"(?:-start)?\(.*op_name=\"(.*?)\"")


# Of as many experts as each mesh has devices, they have some whole.
EXPERTS = dataclasses.replace(TARGET, num_experts=8)


# A layer with a state, whose key heads divide by 2 and 4, and one of attention.
STATES = dataclasses.replace(
    TARGET, num_layers=2, full_every=2, linear_key_heads=4,
    linear_value_heads=8, linear_key_dim=4, linear_value_dim=4, linear_conv=3,
    attention_gate=True)
# As of Granite 4.0 H: one group of keys, so that every device has all heads.
MAMBA = dataclasses.replace(
    STATES, linear_layer="mamba2", linear_key_heads=1, full_every=0,
    attention_layers=(1,), positions="none", attention_gate=False)


def save(folder):
  """Writes all models."""
  tokenizer = tokenizers.train(["a b c"], TARGET.vocab_size)
  for name, config in (("target", TARGET), ("draft", DRAFT),
                       ("experts", EXPERTS), ("states", STATES),
                       ("mamba", MAMBA)):
    checkpoints.save(folder / name, config, tiny.random_model(config).params,
                     tokenizer)


_LAYER = dataclasses.replace(TARGET, num_experts=0, shared_dim=0,
                             num_kv_heads=4)
# Heads on the target's features, and layers that they read.
HEADS = {
    "eagle": (eagle, eagle.Config(_LAYER, version=1), (0,)),
    "dspark": (block, block.Config(
        dataclasses.replace(_LAYER, qk_norm=True), block_size=3, markov_rank=2,
        from_root=True), (0,))}


def save_heads(folder):
  """Writes heads of random parameters."""
  for name, (module, config, kept) in HEADS.items():
    heads.save(folder / name, module, config,
               module.init(jax.random.key(5), config, TARGET), kept)


def processed(pair):
  """The pair, each text of which alternates between halves of the tokens."""
  half = np.arange(TARGET.vocab_size) < TARGET.vocab_size // 2
  params = mesh_lib.on_all(pair.mesh, dj.processors.table(
      np.stack([np.where(half, 1, -1), np.where(half, -1, 0)])))
  apply = functools.partial(dj.processors.apply, dj.processors.automaton(),
                            params)
  target, target_params = apply(pair.target, pair.target_params)
  pair = pair._replace(target=target, target_params=target_params)
  if isinstance(pair.draft, dj.Head):
    return pair
  draft, draft_params = apply(pair.draft, pair.draft_params)
  return pair._replace(draft=draft, draft_params=draft_params)


# Tokens that prompts begin with; a row's own take positions after them.
_SHARED = 10


def sharing(pair):
  """The pair, with as many tokens kept once as prompts begin with."""
  shared_prefix._LEAST = shared_prefix._PART = 1
  return pair._replace(share=_SHARED)


def with_features_and_start(pair):
  """The pair, whose target keeps its layer's outputs, with a start table."""
  target, size = transformer.with_features(TARGET, (0,)), TARGET.vocab_size
  if pair.mesh is not None:
    target = sharding.language_model(target)
  text = np.random.default_rng(1).permutation(size).astype(np.int32)
  return pair._replace(target=target, start=start_tables.make(
      "token_recycling", [text], size, 1))


def by_features():
  """Drafts what a start table says, by the sign of a token's features."""
  def propose(keys, context, state):
    del keys
    cache = state.target_cache
    last = jax.vmap(lambda x, at: x[at])(
        cache.features[dj.HIDDEN_STATES][0], jnp.maximum(cache.length - 1, 0))
    root = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, axis=1)
    child = jnp.asarray(context.draft_params)[:, 0][root]
    return tree_lib.from_parents(
        jnp.concatenate([root, jnp.maximum(child, 0)], axis=1),
        jnp.broadcast_to(jnp.array([[-1, 0]], jnp.int32), (len(root), 2)),
        jnp.concatenate([root >= 0, (last[:, :1] > 0) & (child >= 0)],
                        axis=1)), None

  drafter = dj.Drafter(
      tree_lib.free_layout(1, 1, 1), lambda context, state: state, propose,
      lambda context, before, after, seen: after, calls=0)
  return dj.Method("token_recycling(by features)", verifiers.pair(
      drafter, verifiers.sample_and_match()), None)


# Drafters without a model, and what else their pair has.
NO_MODEL = {
    "lookahead": (dj.methods.lookahead(3, 2, 2), lambda pair: pair),
    "features": (by_features(), with_features_and_start)}


def run(folder, mesh, of_pair=lambda pair: pair, draft=None, weights="dtype",
        method=METHOD, target="target", drafts=None, rows=None, shared=0):
  """A generation, and what devices exchange in a step of its loop."""
  names = folder / target, draft or folder / "draft"
  pair = model_pair.open_pair(*names, weights=weights)
  pair = (model_pair.with_params(pair) if mesh is None
          else mesh_lib.with_params(pair, mesh, drafts=drafts or (
              mesh_shapes.SPLIT if mesh.shape[sharding.MODEL] in
              sharding.partition(DRAFT) else mesh_shapes.REPLICATED)))
  pair = of_pair(pair)
  rng = np.random.default_rng(0)
  prompts = rng.integers(0, TARGET.vocab_size, (8, 4)).astype(np.int32)
  lengths = shared + rng.integers(1, 5, 8)
  prefix = rng.integers(0, TARGET.vocab_size, (1, shared)).astype(np.int32)
  prompts = np.concatenate([np.repeat(prefix, 8, axis=0), prompts], axis=1)
  programs = []
  compiled = mesh_lib._generate

  def spy(static, *args):
    program = compiled.lower(static, *args).compile()
    programs.append(program.as_text())
    return program(*args)

  mesh_lib._generate = spy
  out = mesh_lib.generate(
      pair, jax.random.split(jax.random.key(1), 8), prompts, lengths,
      method=method, max_new_tokens=8, rows=rows,
      sampling=dj.Sampling(1.2), draft_sampling=dj.Sampling(0.8))
  mesh_lib._generate = compiled
  exchanged = collections.Counter(
      f"{kind} an expert" if "/feed_forward/while/" in name else kind
      for program in programs
      for kind, name in _COLLECTIVE.findall(program)
      # The prefill has loops as well, over layers that are scanned.
      if "/while/" in name and "/Decoder/" in name and not any(
          x in name for x in ("(prefill)", "(share)")))
  shards = mesh.shape[sharding.MODEL] if mesh else 1
  exchanged["bytes of rules"] = sum(map(on_shards.exchanged, programs))
  exchanged["whole"] = (shards > 1) * sum(
      on_shards.whole_arrays(x, TARGET.vocab_size, shards) for x in programs)
  return out, exchanged


def beside(one, out, exchanged):
  """What was found on a mesh, beside the texts of one device."""
  return {
      "same": bool((out.tokens == one.tokens).all()),
      "same_counts": all(jax.tree.leaves(jax.tree.map(
          lambda a, b: bool((a == b).all()), out.stats, one.stats))),
      "off": float(np.abs(out.log_probs - one.log_probs).max()),
      **exchanged}


def of_both(folder, shape, more=lambda result: {}, **options):
  """What was found on a mesh, beside the texts of one device."""
  one, out = (run(folder, mesh, **options) for mesh in (
      None, mesh_shapes.make(shape)))
  return {**beside(one[0], *out), **more(one[0])}


def of_roles(folder, method):
  """The same of a drafter that has devices of its own."""
  one, out = (run(folder, mesh, method=method)[0]
              for mesh in (None, mesh_shapes.make_roles((2, 2))))
  return beside(one, out, {})


def on(folder, one, *shapes):
  """The pair on meshes, beside one device's texts."""
  return {f"{data}x{model}": beside(
      one, *run(folder, mesh_shapes.make((data, model))))
          for data, model in shapes}


def main(folder):
  save(folder)
  one, _ = run(folder, None)
  rounded, _ = run(folder, None, weights="int8")
  mesh = mesh_shapes.make((2, 4))
  print(json.dumps({
      "texts": len({tuple(row) for row in np.asarray(one.tokens)}),
      **on(folder, one, (4, 2), (2, 4)),
      # Each index of "data" has two rows, which its four prompts take in turn.
      "queued": beside(one, run(folder, mesh, rows=4)[0], {}),
      "2x4 of 8 bits": beside(rounded, *run(folder, mesh, weights="int8")),
      "other": bool((rounded.tokens != one.tokens).any())}))


def more(folder):
  """The same of other meshes, models and drafters."""
  save(folder)
  save_heads(folder)
  one, _ = run(folder, None)
  rounded, _ = run(folder, None, weights="int8")
  with flagsaver.as_parsed(scan_layers="on"):
    scanned = beside(rounded, *run(folder, mesh_shapes.make((2, 4)),
                                   weights="int8"))
  free, _ = run(folder, None, draft=folder / "dspark")
  print(json.dumps({
      **on(folder, one, (8, 1), (1, 8)),
      "2x4 of a whole draft": beside(one, *run(
          folder, mesh_shapes.make((2, 4)), drafts="replicated")),
      "scanned": scanned,
      "pearl(2)": of_roles(folder, dj.methods.pearl(2)),
      "ssd(2, 2)": of_roles(folder, dj.methods.ssd(2, 2)),
      "experts dtype": of_both(folder, (2, 4), target="experts"),
      "experts int8": of_both(folder, (2, 4), target="experts", weights="int8"),
      "states": of_both(folder, (2, 4), target="states"),
      "mamba": of_both(folder, (2, 4), target="mamba"),
      "processed": of_both(folder, (4, 2), of_pair=processed),
      "looked up": of_both(folder, (4, 2), draft=prompt_lookup.NAME),
      "shared": of_both(folder, (2, 4), of_pair=sharing, shared=_SHARED),
      "processed head": of_both(
          folder, (4, 2), of_pair=processed, draft=folder / "dspark",
          more=lambda one: {"other": bool((one.tokens != free.tokens).any())}),
      **{name: of_both(folder, (4, 2), draft=folder / name) for name in HEADS},
      **{name: of_both(
          folder, (4, 2), of_pair=of_pair, method=method, more=lambda one: {
              "tested": one.stats.extra["tested_by_rank"][:, 0].tolist()})
         for name, (method, of_pair) in NO_MODEL.items()}}))


if __name__ == "__main__":
  (more if sys.argv[2:] else main)(pathlib.Path(sys.argv[1]))
