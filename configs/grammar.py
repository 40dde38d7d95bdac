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
  """Returns the configuration of `experiments.grammar`."""
  common.check_preset(preset, _PRESETS)
  c = ml_collections.ConfigDict()
  # File of lines of JSON, `schema` and `tests` ("": those that come along), and
  # how many of it, from the first on (0: all).
  c.schemas, c.limit = "", 0
  # "either" is an automaton, or else llguidance.
  c.engines = ("automaton", "either", "llguidance", "xgrammar")
  c.seconds = 10.0  # Of compiling an automaton, at most.
  c.tokenizer = "python-target"  # Folder or name.
  c.target, c.draft = "", ""  # Models that decode; "" to compare engines.
  c.rows, c.max_new_tokens = 4, 96  # Texts of each schema, and their tokens.
  c.seed = 0
  c.update(_PRESETS[preset])
  return c
