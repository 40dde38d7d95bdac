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
_LAST = TARGET.num_layers - 1
_ALL = tuple(range(TARGET.num_layers))
# Module, config, and the layers of the target that a head reads.
HEADS = {
    "medusa": (medusa, medusa.Config(heads=3), (_LAST,)),
    "eagle1": (eagle, eagle.Config(LAYER, version=1, bias=True), (_LAST,)),
    "eagle3": (eagle, eagle.Config(LAYER, draft_vocab=3, own_embedding=True),
               (0, 1, 1)),
    "p-eagle": (parallel_eagle, parallel_eagle.Config(
        TARGET, depth=3, mask_token=2, draft_vocab=3, num_features=2), _ALL),
    "mtp": (mtp, mtp.Config(mtp.layer_of(TARGET)), (_LAST,)),
    "dflash": (block, block.Config(dataclasses.replace(TARGET, qk_norm=True),
                                   block_size=4, num_features=2), _ALL),
    "dspark": (block, block.Config(LAYER, block_size=3, num_features=2,
                                   markov_rank=2, from_root=True), _ALL),
    "ubtree": (block, block.Config(LAYER, block_size=4, num_features=2,
                                   markov_rank=2, markov_root=False), _ALL),
    "jetspec": (block, block.Config(LAYER, block_size=4, causal=True),
                (_LAST,)),
    "fspad": (eagle, eagle.Config(LAYER, version=1, bias=True,
                                  sampled_features=True, decoupled=True),
              (_LAST,)),
    "hydra": (hydra, hydra.Config(heads=3, blocks=2), (_LAST,)),
    "hydra++": (hydra, hydra.Config(heads=3, prefix=LAYER), (_LAST,)),
    "clover1": (clover, clover.Config(LAYER, version=1), (_LAST,)),
    "clover2": (clover, clover.Config(TARGET, own_embedding=True), (_LAST,)),
    "chimera": (chimera, chimera.Config(LAYER, heads=3), (_LAST,))}


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


def target(name, dtype="float32"):
  """Returns the target that keeps the features which a head reads."""
  return transformer.with_features(retyped(TARGET, dtype), HEADS[name][2])
