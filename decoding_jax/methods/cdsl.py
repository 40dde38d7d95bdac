"""CDSL: constrained decoding with speculative lookaheads (arXiv 2412.10418).

A reconstruction: details that we could not read in the paper are choices of
this repository. `cdsl_extended` has further variants.
"""

import functools

from decoding_jax.search.lookahead import (candidates, cdsl_decoder, cdsl_rules,
                                           draft_lookahead)
from decoding_jax.types import Method

EXAMPLES = (dict(lookahead=4, num_candidates=3),)


def make(lookahead: int, num_candidates: int, weight: int = 1,
         reward_weight: float = 1.0, acceptance_threshold: float = 0.5,
         reward_threshold: float | None = None,
         rollout: str = "target") -> Method:
  """Makes CDSL: drafted lookaheads, tested by target and reward.

  For temperature 0 only. An iteration drafts n tokens, fewer at the end of a
  text. Let V be the first m of them, which are the target's most probable
  tokens, and a = m / n the acceptance. The iteration ends in one of

    S1  a is high and the reward of V passes: commits V and the target's next
        token
    S2  a is high, the reward does not pass: commits one token by a step of CDLH
    S3  a is low and the reward of V and the n + 1 - m tokens with which the
        target continues it passes: commits these tokens
    S4  a is low, the reward does not pass: commits one token by a step of CDLH

  Args:
    lookahead: n; also the tokens of a roll-out of CDLH.
    num_candidates: of CDLH, as `weight`, `reward_weight` and `rollout`; see
      `cdlh`.
    weight: 1 or 0.
    reward_weight: lambda.
    acceptance_threshold: a is high from here on; 0 to 1.
    reward_threshold: a reward passes from here on; None: a reward passes that
      is higher than the committed text's, or at its maximum.
    rollout: "target" or "draft", the model that rolls out in CDLH.

  Returns:
    The method; its `stats.extra` has `states [B, 4]`, iterations that ended in
    S1 to S4, and `reward_calls [B]`, rewards of texts that were computed.
  """
  options = candidates.make_options(num_candidates, lookahead, weight,
                                    reward_weight, rollout)
  draft = functools.partial(draft_lookahead.chain, steps=options.steps)
  rules = cdsl_rules.make(draft, acceptance_threshold, reward_threshold)
  thresholds = cdsl_rules.describe(acceptance_threshold, reward_threshold)
  return Method(f"cdsl({candidates.describe(options)}, {thresholds})",
                sampled=None, greedy=cdsl_decoder.decoder(options, rules))
