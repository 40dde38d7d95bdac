"""The paper's comparison on Llama 2: draft length and target budget, by task.

  python -m experiments.rsd --config=configs/rsd_llama2.py:7b,xsum \\
      --workdir=runs/llama2-7b-xsum
  python -m experiments.rsd --config=configs/rsd_llama2.py:7b-chat,dolly \\
      --config.data=databricks-dolly-15k.jsonl \\
      --workdir=runs/llama2-7b-chat-dolly
  python -m experiments.rsd --config=configs/rsd_llama2.py:one_gpu \\
      --workdir=runs/llama2-one-gpu
  python -m experiments.rsd --config=configs/rsd_llama2.py:spechub \\
      --workdir=runs/spechub

Presets are a model (7b, 13b, 70b, 7b-chat, 13b-chat, 70b-chat) and a task:
the paper's (arXiv 2402.14160), xsum, wmt18_de_en and dolly, or another of
 `configs/tasks.py`. Models come from the Hugging Face hub, where Llama 2's
licence is accepted once (`HF_TOKEN`), tasks from `datasets` or --config.data.
The paper's drafter was not published: JackFram/llama-68m has the tokenizer, and
`configs/train.py:llama2_draft` trains one of the paper's sizes.

Hardware: an accelerator. Weights of the target in 16 bits: 13.5 GB (7b), 26 GB
(13b), 138 GB (70b); a position of the cache is 0.5, 0.8 and 0.3 MiB.
Hours: never run. `one_gpu`, 7b on XSum, needs 18.4 GiB; it has half the cells
of configs/rsd_opt.py:one_gpu, which says how hours are estimated.
To expect: by the paper, RSD above the baselines at each draft length, and in
most cases at a fixed budget.

`spechub` ends with whether it hit `_SPECHUB`: block efficiency of binary trees
without replacement (`rsd_c`) and with it (`specinfer`) of depth 1 to 4 in the
runs of SpecHub (arXiv 2411.05289), other articles of CNN/DailyMail cut to 128
tokens, 128 more at temperature 0.6.
"""

from configs import common
from configs import rsd
from configs import tasks

_MODELS = {f"{size}{tuned}": f"hub:meta-llama/Llama-2-{size}{tuned}-hf"
           for tuned in ("", "-chat") for size in ("7b", "13b", "70b")}
_DRAFT = "hub:JackFram/llama-68m"
ONE_GPU = {"prompts": 64, "batch": 8, "buckets": 1, "longest_prompt": 512,
           "references": 2}
_SPECHUB = {"rsd_c(2)": 1.600, "rsd_c(2-2)": 1.969, "rsd_c(2-2-2)": 2.169,
            "rsd_c(2-2-2-2)": 2.315, "specinfer(2)": 1.554,
            "specinfer(2-2-2-2)": 2.139}


def get_config(presets="7b,xsum"):
  if presets == "one_gpu":
    config = published("7b,xsum", _MODELS, _DRAFT)
    config.update(ONE_GPU)
    return config
  if presets != "spechub":
    return published(presets, _MODELS, _DRAFT)
  config = published("7b-chat,cnn_dailymail", _MODELS, _DRAFT)
  config.update(
      chat=False, temperatures=(0.6,), prompts=200, longest_prompt=128,
      too_long="right", max_new_tokens=128, lengths=(1, 2, 3, 4), budgets=(),
      expected=_SPECHUB, trees={"length": {str(n): (
          f"rsd_c({(2,) * n})", f"specinfer(expansion={(2,) * n})")
                                           for n in (1, 2, 3, 4)}})
  return config


def published(presets, models, draft):
  """Returns the full comparison of "model,task" with a published target."""
  # A model with "chat" in its name gets its prompts by its chat template.
  model, _, task = presets.partition(",")
  for name, known in ((model, models), (task, tasks.get_tasks())):
    if name not in known:
      raise ValueError(
          f"--config: presets {presets!r}: {name!r} is not one of "
          f"{', '.join(known)}; a model and a task are needed.")
  config = rsd.get_config("full")
  config.update(target=models[model], draft=draft, task=task,
                chat="chat" in model, temperatures=(0.3, 1.0))
  config.update(common.PAPER.get(task, {}))
  return config
