"""Compares grammar engines on JSON schemas with valid and invalid values.

  python -m experiments.grammar --config=configs/grammar.py
  python -m experiments.grammar --config=configs/grammar.py \
      --config.schemas=<file>.jsonl.gz
  python -m experiments.grammar --config=configs/grammar.py:speed

The first command takes the schemas that come along; a file is one of MaskBench
(github.com/guidance-ai/jsonschemabench), or of the same form. `speed` decodes
with the shipped pair, and needs no file. Engines that are not installed are
left out: pip install -e '.[grammar,llguidance,xgrammar]'.

Hardware: two cores of an AMD EPYC, shared.
Minutes: a half for the first and the last command; 20 for 800 schemas.
To expect: docs/results/grammar.md.
"""

import ml_collections

from configs import common

_PRESETS = {"default": {}, "speed": {"target": "python-target",
                                     "draft": "python-draft"}}


def get_config(preset="default"):
  """Returns the configuration of `experiments.grammar`.

  Args:
    preset: "default", which compares engines; or "speed", which decodes.

  Returns:
    A ConfigDict with the fields:
      schemas: file of lines of JSON, `schema` and `tests`; "" for those that
        come along.
      limit: schemas of it, from the first on; 0 for all.
      engines: "automaton", "llguidance", "xgrammar", and "either": an
        automaton, or else llguidance.
      seconds: of compiling an automaton, at most.
      tokenizer: folder or name of the model whose tokens are allowed.
      target, draft: folders or names of models that decode; "" for none.
      rows: texts of each schema that are decoded, together.
      max_new_tokens: of each text.
      seed: of the texts.
  """
  common.check_preset(preset, _PRESETS)
  config = ml_collections.ConfigDict({
      "schemas": "",
      "limit": 0,
      "engines": ("automaton", "either", "llguidance", "xgrammar"),
      "seconds": 10.0,
      "tokenizer": "python-target",
      "target": "",
      "draft": "",
      "rows": 4,
      "max_new_tokens": 96,
      "seed": 0,
  })
  config.update(_PRESETS[preset])
  return config
