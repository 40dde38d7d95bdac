"""The paper's two experiments on Qwen2.5-Coder: 1.5B, and 0.5B as its draft.

  python -m experiments.rsd --config=configs/rsd_qwen_coder.py:humaneval \\
      --config.data=HumanEval.jsonl.gz --workdir=runs/qwen-humaneval
"""

from configs import common
from configs import rsd

_MODEL = "hub:Qwen/Qwen2.5-Coder-{}-Instruct"
# Tasks, and how the paper samples those that it has.
_TASKS = {
    "humaneval": {}, "mbpp": {}, "gsm8k": {},
    "wmt18_de_en": {"temperatures": (0.3,)},
    "dolly": {"temperatures": (1.0,), "top_p": 0.95}}


def get_config(task="humaneval"):
  """Returns the configuration of `experiments.rsd`, see `configs/rsd.py`."""
  common.check_preset(task, _TASKS)
  config = rsd.get_config("full")
  config.update(
      target=_MODEL.format("1.5B"), draft=_MODEL.format("0.5B"),
      dtype="bfloat16", task=task, longest_prompt=128, buckets=1,
      temperatures=(1.0, 0.3), prompts=64, max_new_tokens=128, batch=32,
      # Rows share their steps, so that seconds would say little.
      references=0)
  config.update(_TASKS[task])
  return config
