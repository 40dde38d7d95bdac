"""Bytes that a step reads on a device, from the shapes of two models.

Reading bounds the time of a step with few rows from below: no device computes
faster than it reads the weights.
"""

import decoding_jax as dj
from experiments.app import text_tables
from experiments.timing import roofline


def table(pair, program, need, ways, tokens, bandwidth=None) -> str:
  """Returns what a step reads, and the least seconds of plain decoding.

  `need` is of `memory_estimate.estimate`, `ways` as there; `bandwidth` is in
  bytes a second, None if unknown; a text has `tokens`.
  """
  target = roofline.sizes(pair.source.architecture(),
                          pair.target_params).weights // ways.layers
  parts = {"target, once": target, "caches, at most": need.caches}
  config, levels = pair.drafts.architecture(pair.source), 0
  if config is not None and isinstance(program, dj.Pair):
    levels = program.drafter.calls
  if levels:
    draft = roofline.sizes(config, pair.draft_params).weights
    parts[f"draft, {text_tables.count(levels, 'time')}"] = (
        levels * draft // (ways.drafts or ways.layers))
  lines = [["a step of a device reads", "MB", "ms of its bandwidth"]]
  for name, size in (*parts.items(), ("together", sum(parts.values()))):
    lines.append([name, f"{size / 1e6:,.1f}", f"{1e3 * size / bandwidth:.2f}"
                  if bandwidth else text_tables.EMPTY])
  plain = (f"\n{tokens} tokens of plain decoding: at least "
           f"{tokens * target / bandwidth:.2f} s" if bandwidth else "")
  return f"{text_tables.plain_table(lines)}{plain}"
