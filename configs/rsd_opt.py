"""The paper's comparison on OPT: draft length and target budget, by task.

  python -m experiments.rsd --config=configs/rsd_opt.py:13b,wmt18_de_en \\
      --workdir=runs/opt-13b-wmt
  python -m experiments.rsd --config=configs/rsd_opt.py:13b,wmt18_de_en \\
      --config.draft=hub:facebook/opt-350m --workdir=runs/opt-13b-350m-wmt

Presets are a model (13b, 30b, 66b, and 6.7b, which the paper does not have) and
a task, as in `configs/rsd_llama2.py`. The drafters of the paper are opt-125m,
the default, and opt-350m; all OPT share a tokenizer.

Hardware: an accelerator. Weights of the target in float16: 13 GB (6.7b), 26 GB
(13b), 60 GB (30b), 131 GB (66b). OPT has 2,048 positions; longer prompts are
left out and counted, see `too_long`.
Minutes: never run.
"""

from configs import rsd_llama2

_MODELS = {size: f"hub:facebook/opt-{size}"
           for size in ("6.7b", "13b", "30b", "66b")}


def get_config(presets="13b,xsum"):
  """Returns the configuration of `experiments.rsd`, see `configs/rsd.py`."""
  return rsd_llama2.published(presets, _MODELS, "hub:facebook/opt-125m")
