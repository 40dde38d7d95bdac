"""What a new device does, in one page: correct, exact, how fast.

  python -m experiments.device_check --workdir=runs/device_check
  python -m experiments.device_check --config=configs/device_check.py:smoke \
      --workdir=runs/device_check_smoke

Results are kept as they come: a second start goes on. `smoke` takes tiny models
and few texts, which shows that everything works.

Hardware: one GPU or TPU with 24 GB or more; `smoke`: any machine.
Minutes: planned for 25 on one GPU, where it has not run yet; smoke: 2.
To expect: a `summary.md` whose first lines say what is wrong, if anything.
"""

import ml_collections

from configs import common

# A Llama 2 7B and the drafter of the paper, with random parameters.
_TARGET = {"dim": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32,
           "head_dim": 128, "hidden_dim": 11008}
_DRAFT = {"dim": 1024, "num_layers": 4, "num_heads": 8, "num_kv_heads": 8,
          "head_dim": 128, "hidden_dim": 2816}
_TINY = {"dim": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2,
         "head_dim": 32, "hidden_dim": 128}
_METHODS = ("autoregressive", "speculative(4, traversal)", "rsd_s(3, 4)",
            {"name": "sequoia", "children": ((2,), (2, 0), (1, 1))})
_PRESETS = {
    "default": {},
    "smoke": {
        "target": _TINY, "draft": _TINY, "vocab_size": 256, "tokens": (1, 4),
        "rows": (1, 2), "prompt_length": 8, "max_new_tokens": 8,
        "exactness_methods": ("rsd_s(2, 2)",), "exactness_rows": 20_000,
    },
}


def get_config(preset="default"):
  """Returns the settings of a preset, "default" or "smoke"."""
  common.check_preset(preset, _PRESETS)
  config = ml_collections.ConfigDict({
      # Sizes of two models with random parameters, made on the device.
      "target": _TARGET,
      "draft": _DRAFT,
      "vocab_size": 32000,
      "dtype": "bfloat16",  # of parameters
      "overlap": 0.7,  # E sum min(t, d) of their distributions, roughly
      "methods": _METHODS,  # whose rates are measured
      "rows": (1, 16, 64),  # decoded together
      "prompt_length": 128,
      "max_new_tokens": 128,
      # Of forwards of the target.
      "tokens": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
      # Whose distribution is tested, () for all examples, and texts of a test.
      "exactness_methods": (),
      "exactness_rows": 100_000,
      "seed": 0,
  })
  with config.ignore_type():
    config.update(_PRESETS[preset])
  return config
