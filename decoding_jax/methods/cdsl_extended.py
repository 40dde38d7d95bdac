"""CDSL with variants of this repository, which are not in its paper."""

import functools

from decoding_jax.search.lookahead import (candidates, cdsl_decoder, cdsl_rules,
                                           draft_lookahead)
from decoding_jax.speculation import expanders
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (
    dict(lookahead=4, num_candidates=3, commit="rise", commit_rollout=True),
    dict(lookahead=4, num_candidates=3, width=2, slack=0.5),
)


def make(lookahead: int, num_candidates: int, weight: int = 1,
         reward_weight: float = 1.0, acceptance_threshold: float = 0.5,
         reward_threshold: float | None = None, rollout: str = "target",
         commit: str = "prefix", commit_rollout: bool = False,
         low_acceptance: str = "continue", width: int = 1, tree: str = "rsd_s",
         slack: float = 0.0) -> Method:
  """Makes CDSL with other drafts and other commits; the defaults are `cdsl`.

  The first seven arguments are as in `cdsl`.

  Args:
    commit: "prefix", as `cdsl`; "rise": where the reward rises, no more tokens
      than it takes for that; "full": in S1 all drafted tokens, verified or not,
      so that the text is no longer the target's.
    commit_rollout: whether S2 and S4 commit the roll-out after their token too,
      where the reward of both passes. The target must roll out.
    low_acceptance: S3, other readings of the abstract: "continue", as `cdsl`;
      "search": there is none, low acceptance is S4. Or it commits V and the
      target's next token: "prefix", where the reward of all n drafted tokens
      passes; "confirm", where that of V and the target's n + 1 - m tokens is
      no lower either; "regenerate", where the draft's does not pass, so that
      only promising drafts are replaced by a search.
    width: 1 drafts a chain; more, a tree of `width` tokens a level. V is then
      the verified path of the greatest reward, of equal ones the longest, then
      the most probable.
    tree: of width > 1: "rsd_s", by beam search; "rsd_c", the `width` most
      probable first tokens and a chain after each, which include the chain of
      width 1.
    slack: the target accepts a drafted token that is its most probable one or
      less than `slack` nats below it. Without slack it verifies one path.

  Returns:
    The method; `stats.extra` as in `cdsl`.
  """
  options = candidates.make_options(num_candidates, lookahead, weight,
                                    reward_weight, rollout)
  shape, draft = _draft(options.steps, width, tree, slack)
  commits_draft, only_if_gain = values.check_one_of("commit", commit, _COMMITS)
  if width > 1:
    # A tree has no single drafted chain that could be committed in full.
    values.check_one_of("commit of width > 1", commit,
                        {"prefix": None, "rise": None})
    values.check_one_of("low_acceptance of width > 1", low_acceptance,
                        {"continue": None, "search": None})
  values.check_one_of("commit_rollout", commit_rollout, _FLAGS)
  values.check_one_of("low_acceptance", low_acceptance,
                      cdsl_rules.LOW_ACCEPTANCE)
  if commit_rollout:
    # A roll-out of the draft is not what the target would say.
    values.check_one_of("rollout where commit_rollout=True: rollout", rollout,
                        {"target": None})
  rules = cdsl_rules.make(
      draft, acceptance_threshold, reward_threshold,
      commits_draft=commits_draft, only_if_gain=only_if_gain,
      commits_rollout=bool(commit_rollout),
      low_acceptance=low_acceptance, max_samples_per_node=width)
  thresholds = cdsl_rules.describe(acceptance_threshold, reward_threshold)
  return Method(
      f"cdsl_extended({candidates.describe(options)}, {shape}, "
      f"slack={slack:g}, {thresholds}, commit={commit}, "
      f"commit_rollout={commit_rollout}, low_acceptance={low_acceptance})",
      sampled=None, greedy=cdsl_decoder.decoder(options, rules))


def _draft(steps, width, tree, slack):
  """Returns the shape of the drafts, for the name, and what drafts them."""
  values.check_positive("width", width)
  values.check_number("slack", slack, 0)
  expander = values.check_one_of("tree", tree, _TREES)
  if width > 1:
    return f"{tree}({width}x{steps})", functools.partial(
        draft_lookahead.tree, expander=expander(width, steps), slack=slack)
  return "chain", functools.partial(draft_lookahead.chain, steps=steps,
                                    slack=slack)


# Whether all drafted tokens are committed; whether a commit ends with a gain.
_COMMITS = {"prefix": (False, False), "rise": (False, True),
            "full": (True, False)}
_FLAGS = {False: None, True: None}
_TREES = {"rsd_s": expanders.top_beam, "rsd_c": lambda width, depth: (
    expanders.top_k((width,) + (1,) * (depth - 1)))}
