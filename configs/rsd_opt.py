"""The paper's comparison on OPT: draft length and target budget, by task.

  python -m experiments.rsd --config=configs/rsd_opt.py:13b,wmt18_de_en \\
      --workdir=runs/opt-13b-wmt
  python -m experiments.rsd --config=configs/rsd_opt.py:13b,wmt18_de_en \\
      --config.draft=hub:facebook/opt-350m --workdir=runs/opt-13b-350m-wmt

Presets are a model (13b, 30b, 66b, and 6.7b, which the paper does not have) and
a task: xsum, wmt18_de_en or dolly, or any other of `configs/tasks.py`. Without
`--config.data` the package `datasets` loads it (`pip install -e '.[tasks]'`).
Models are those of the Hugging Face hub, or with `--config.target` and
`--config.draft` others, or folders. The drafters of the paper are opt-125m, the
default, and opt-350m; all OPT share a tokenizer.

Hardware: an accelerator. The weights of the target alone, in float16 as
published, are 13 GB (6.7b), 26 GB (13b), 60 GB (30b) and 131 GB (66b). OPT has
2,048 positions, for prompt and continuation together; longer prompts are left
out and counted, see `too_long`.
Minutes: never run.
To expect: see `configs/rsd_llama2.py`.
"""

from configs import rsd

_MODELS = {size: f"hub:facebook/opt-{size}"
           for size in ("6.7b", "13b", "30b", "66b")}
_DRAFT = "hub:facebook/opt-125m"


def get_config(presets="13b,xsum"):
  """Returns the configuration of `experiments.rsd`, see `rsd.py`.

  Args:
    presets: a model and a task.

  Returns:
    A ConfigDict.
  """
  return rsd.of_published(presets, _MODELS, _DRAFT)
