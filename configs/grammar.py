"""Compares grammar engines on JSON schemas with valid and invalid values.

  python -m experiments.grammar --config=configs/grammar.py
  python -m experiments.grammar --config=configs/grammar.py \
      --config.schemas=<file>.jsonl.gz

The first command takes the schemas that come along; a file is one of MaskBench
(github.com/guidance-ai/jsonschemabench), or of the same form. Engines that are
not installed are left out: pip install -e '.[grammar,llguidance,xgrammar]'.

Hardware: two cores of an AMD EPYC, shared.
Minutes: a half for the first command; 20 for 800 schemas.
To expect: docs/results/grammar.md.
"""

import ml_collections

from configs import common


def get_config(preset="default"):
  c = ml_collections.ConfigDict()
  # File of lines of JSON, `schema` and `tests` ("": those that come along), and
  # how many of it, from the first on (0: all).
  c.schemas, c.limit = "", 0
  # "either" is an automaton, or else llguidance.
  c.engines = ("automaton", "either", "llguidance", "xgrammar")
  c.seconds = 10.0  # Of compiling an automaton, at most.
  c.tokenizer = "python-target"  # Folder or name.
  return common.with_presets(c, {"default": {}}, preset)
