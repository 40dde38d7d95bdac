"""Heads of every format on one small target, with random parameters."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from models import transformer
from models.heads import block, chimera, clover, eagle, hydra, medusa, mtp
from models.heads import parallel_eagle
from support import tiny_models as tiny

TARGET = dataclasses.replace(tiny.LLAMA, vocab_size=4)
LAYER = dataclasses.replace(TARGET, num_layers=1)


def of_target(target):
  """Returns modules, configs, and the layers of the target that heads read."""
  layer = dataclasses.replace(target, num_layers=1)
  last, every = target.num_layers - 1, tuple(range(target.num_layers))
  return {
      "medusa": (medusa, medusa.Config(heads=3), (last,)),
      "eagle1": (eagle, eagle.Config(layer, version=1, bias=True), (last,)),
      "eagle3": (eagle, eagle.Config(layer, draft_vocab=3, own_embedding=True),
                 (0, 1, 1)),
      "p-eagle": (parallel_eagle, parallel_eagle.Config(
          target, depth=3, mask_token=2, draft_vocab=3, num_features=2), every),
      "mtp": (mtp, mtp.Config(mtp.layer_of(target)), (last,)),
      "dflash": (block, block.Config(dataclasses.replace(target, qk_norm=True),
                                     block_size=4, num_features=2), every),
      "dspark": (block, block.Config(layer, block_size=3, num_features=2,
                                     markov_rank=2, from_root=True), every),
      "domino": (block, block.Config(
          layer, block_size=3, num_features=2, from_root=True, gru_hidden_dim=3,
          emb_dim=5, pure_draft_prefix_len=1), every),
      "dflash2": (block, block.Config(
          layer, block_size=4, num_features=2, selector_rank=2,
          selector_top_k=2, conv_kernel_size=2, conv_group_size=4), every),
      "jetspec": (block, block.Config(layer, block_size=4, causal=True),
                  (last,)),
      "fspad": (eagle, eagle.Config(layer, version=1, bias=True,
                                    sampled_features=True, decoupled=True),
                (last,)),
      "hydra": (hydra, hydra.Config(heads=3, blocks=2), (last,)),
      "hydra++": (hydra, hydra.Config(heads=3, prefix=layer), (last,)),
      "clover1": (clover, clover.Config(layer, version=1), (last,)),
      "clover2": (clover, clover.Config(target, own_embedding=True), (last,)),
      "chimera": (chimera, chimera.Config(layer, heads=3), (last,))}


HEADS = of_target(TARGET)


@functools.lru_cache(maxsize=None)
def head(name, dtype="float32", seed=7):
  """Returns a head and its parameters, which are far from those of `init`."""
  module, config, _ = HEADS[name]
  config, target = retyped(config, dtype), retyped(TARGET, dtype)
  rng = np.random.default_rng(seed)
  # So large that drafts are far from uniform.
  params = jax.tree.map(
      lambda x: x if x.dtype == jnp.int32 else jnp.asarray(
          rng.standard_normal(x.shape) * (.6 if x.ndim > 1 else 1),
          x.dtype), module.init(jax.random.key(0), config, target))
  return module.head(config, target), params


def retyped(config, dtype):
  """Returns a config with this type, in the configs of its layers too."""
  inner = {field.name: retyped(getattr(config, field.name), dtype)
           for field in dataclasses.fields(config)
           if dataclasses.is_dataclass(getattr(config, field.name))}
  own = {"dtype": dtype} if hasattr(config, "dtype") else {}
  return dataclasses.replace(config, **inner, **own)


def models(name):
  """A target that keeps features and a head, as `dj.generate` takes them."""
  own, params = head(name)
  return {"target": target(name),
          "target_params": tiny.random_model(TARGET).params,
          "draft": own, "draft_params": params}


def target(name, dtype="float32"):
  """Returns the target that keeps the features which a head reads."""
  return transformer.with_features(retyped(TARGET, dtype), HEADS[name][2])
