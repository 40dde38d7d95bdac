"""This library against what a user would pick instead, on the same weights.

  python -m experiments.benchmark --config=configs/benchmark.py
  python -m experiments.benchmark --config=configs/benchmark.py:full
  python -m experiments.benchmark --config=configs/benchmark.py:shipped
  python -m experiments.benchmark --config=configs/benchmark.py:smoke
  python -m experiments.benchmark --config=configs/benchmark.py \\
      --config.target=<folder> --config.draft=<folder>

The default builds a pair that agrees by 0.7 (`experiments.correlated`).
"""

import ml_collections

# A target that reads 110 M parameters a token, and a draft of a tenth of that:
# without the embedding, of which a token reads a row (134 M and 18 M with it).
_PAIR = {
    "seed": 0, "overlap": 0.7, "perplexity": 20.0, "core": 64,
    "vocab_size": 32000, "max_length": 2048,
    "target": {"dim": 768, "num_layers": 12, "num_heads": 12,
               "num_kv_heads": 12, "head_dim": 64, "hidden_dim": 2048},
    "draft": {"dim": 256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4,
              "head_dim": 64, "hidden_dim": 512},
}
_TINY = {
    "core": 8, "vocab_size": 96, "perplexity": 12.0, "max_length": 256,
    "target": {"dim": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2,
               "head_dim": 16, "hidden_dim": 64},
    "draft": {"dim": 16, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1,
              "head_dim": 16, "hidden_dim": 32},
}


def get_config(preset="default"):
  """The configuration of `experiments.benchmark`.

  Args:
    preset: one of `_PRESETS`.

  Returns:
    A ConfigDict.
  """
  config = ml_collections.ConfigDict({"target": "", "draft": "", "pair": _PAIR})
  config.update(_PRESETS[preset])
  return config


_PRESETS = {
    "default": {},
    "smoke": {"pair": _TINY},
}
