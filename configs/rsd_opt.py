"""The paper's comparison on OPT: draft length and target budget, by task.

  python -m experiments.rsd --config=configs/rsd_opt.py:one_gpu \\
      --config.data=xsum.jsonl --workdir=runs/opt-one-gpu
  python -m experiments.rsd --config=configs/rsd_opt.py:13b,wmt18_de_en \\
      --workdir=runs/opt-13b-wmt
  python -m experiments.rsd --config=configs/rsd_opt.py:13b,wmt18_de_en \\
      --config.draft=hub:facebook/opt-350m --workdir=runs/opt-13b-350m-wmt

Presets are a model (13b, 30b, 66b, and 6.7b, which the paper does not have) and
a task, as in `configs/rsd_llama2.py`. The drafters of the paper are opt-125m,
the default, and opt-350m; all OPT share a tokenizer.

`one_gpu` is 13b with both drafters on XSum, for an evening without a token of
the hub: 64 prompts of at most 512 tokens, padded to one width, batch 8.

Hardware: an accelerator. Weights of the target in float16: 13 GB (6.7b), 26 GB
(13b), 60 GB (30b), 131 GB (66b). OPT has 2,048 positions; longer prompts are
left out and counted, see `too_long`. `one_gpu` needs 33 GiB.
Hours: never run. `one_gpu` has 114 cells of 8 batches and 2 of plain decoding.
By

    python -m experiments.estimate --devices=a100:1 --batch=8 \\
        --prompt_length=512 --method="rsd_s(6, 5)" \\
        --target=<folder of opt-13b> --draft=<folder of opt-350m>

a batch of 128 plain tokens takes at least 1.6 s, and 128 steps of a tree 2.1 s:
0.7 hours in all if no tree gained anything, and 114 programs to compile; how
long these take is said after the first.
"""

from configs import rsd_llama2

_MODELS = {size: f"hub:facebook/opt-{size}"
           for size in ("6.7b", "13b", "30b", "66b")}


def get_config(presets="13b,xsum"):
  draft = "hub:facebook/opt-125m"
  if presets != "one_gpu":
    return rsd_llama2.published(presets, _MODELS, draft)
  config = rsd_llama2.published("13b,xsum", _MODELS, draft)
  config.update(rsd_llama2.ONE_GPU, drafts={
      "opt-125m": draft, "opt-350m": "hub:facebook/opt-350m"})
  return config
