"""The paper's two experiments on Qwen2.5-Coder: 1.5B, and 0.5B as its draft.

  python -m experiments.rsd --config=configs/rsd_qwen_coder.py:humaneval \\
      --config.data=HumanEval.jsonl.gz --config.lengths="(3,)" \\
      --config.budgets="(14,)" --workdir=runs/qwen-humaneval

Presets are tasks of `configs/tasks.py`: humaneval, mbpp, gsm8k, wmt18_de_en and
dolly; --config.data is the task's file, or "" for the package `datasets`. The
models are of the hub, or `--config.target=` and `--config.draft=` name GGUF
files, or the packages that hold their pieces, package:a+b+c. A point that is
measured is kept in the workdir: the next start may have other `lengths` and
`budgets`. --config.draft=layers:8 drafts with the target's first layers.

Counts alone, of rows that are decoded together.

Hardware: an accelerator, or 8 GB of memory and patience.
Hours: a cell of 64 prompts and 64 tokens took 2 to 3 minutes of two cores with
AMX; a task has some 150 cells.
"""

from configs import common
from configs import rsd

_MODEL = "hub:Qwen/Qwen2.5-Coder-{}-Instruct"
_TASKS = {
    "humaneval": {"longest_prompt": 128}, "mbpp": {}, "gsm8k": {},
    **{task: common.PAPER[task] for task in ("wmt18_de_en", "dolly")}}
# Trees of `tree_planning.best_trees` for siblings that are accepted in 80, 35
# and 20 % of the cases.
_SEQUOIA = {
    "length": {
        "2": "((3,), (3, 3, 3))",
        "3": "((3,), (3, 3, 2), (3, 2, 1, 2, 1, 0, 1, 0))",
        "4": "((3,), (3, 2, 1), (3, 2, 1, 2, 1, 1), "
             "(3, 1, 1, 1, 0, 1, 1, 0, 0, 1))",
        "5": "((3,), (3, 1, 1), (3, 1, 1, 1, 1), (3, 1, 1, 1, 1, 1, 1), "
             "(2, 1, 0, 1, 0, 1, 0, 1, 0))"},
    "budget": {
        "6": "((2,), (1, 1), (1, 0), (1,))",
        "10": "((2,), (2, 1), (1, 1, 0), (1, 0), (1,), (1,))",
        "14": "((2,), (2, 1), (2, 1, 1), (1, 0, 0, 1), (1, 0), (1,), (1,))",
        "21": "((2,), (2, 1), (2, 1, 1), (2, 1, 1, 1), (1, 1, 1, 1, 0), "
              "(1, 0, 0, 0), (1,), (1,))",
        "30": "((3,), (2, 1, 0), (2, 1, 1), (2, 1, 1, 1), (2, 1, 1, 1, 1), "
              "(2, 1, 1, 1, 1, 0), (1, 0, 0, 0, 0, 0), (1,), (1,))"}}


def get_config(task="humaneval"):
  config = rsd.get_config("full")
  config.update(
      target=_MODEL.format("1.5B"), draft=_MODEL.format("0.5B"),
      dtype="bfloat16", task=task, longest_prompt=256, buckets=1,
      temperatures=(1.0, 0.3), prompts=64, max_new_tokens=128, batch=32,
      references=0)
  for experiment, trees in _SEQUOIA.items():
    for point, tree in trees.items():
      methods = config.trees[experiment][point]
      config.trees[experiment][point] = (
          *methods, *(f"{x[:-1]}, traversal)" for x in methods
                      if x.startswith("rsd_s")), f"sequoia({tree})")
  return common.with_presets(config, _TASKS, task)
