"""Several trees in one program: each step drafts the one that fits the text."""

import functools

from decoding_jax.methods import rsd_s, speculative
from decoding_jax.speculation import drafters, verifiers
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import Method, Pair
from decoding_jax.validation import values

# Rules that need to know no more of a layout than its depth.
_RULES = "recursive", "traversal", "shared_gumbel"
_HORIZON = 16
EXAMPLES = (dict(methods=(speculative(1), speculative(2), rsd_s(3, 2))),
            dict(methods=(speculative(2, "block"), rsd_s(2, 2, "block")),
                 costs=(1, 1.05), horizon=2))


def make(methods, costs=None, horizon: int = _HORIZON) -> Method:
  """Makes the choice among several methods at each step of a generation.

  A row's acceptance rate is the share of first siblings that the target has
  accepted in the last steps. Of it follow the tokens that a tree is expected to
  yield; the tree of the most tokens of all rows for its cost is drafted and
  scored. vLLM (#48202) and SGLang (#23705) users ask for that; SpecDec++ (arXiv
  2405.19715) and DISCO (2405.04304) train a classifier that stops a chain.

  Exact: the choice is made before this step's tokens are drawn, from steps that
  are committed, and given these every tree yields samples of the target. A
  choice that saw the drawn tokens would not be: see docs/exactness.md.

  As in `shared_budget`, a row's tree depends on the other rows: above
  temperature 0 it is another sample in another batch, of the same distribution.

  Args:
    methods: two or more of `speculative`, `rsd_s`, `rsd_c`, `sequoia` and
      `specinfer`, all of one verification: recursive, traversal (of chains
      block) or shared_gumbel.
    costs: time of a step of each, in any unit, as `--method=auto` prints them.
      None: a target forward, 2 % for each node, and for each forward of the
      drafter the bytes of its parameters by the target's.
    horizon: steps after which an outcome has lost 63 % of its weight.

  Returns:
    The method; its `stats.extra` has `steps_by_tree [B, len(methods)]`, target
    calls of each tree.

  Raises:
    ValueError: for fewer than two methods, for one that is not a tree of a
      draft model, or for different verifications.
  """
  _check(methods)
  values.check_positive("horizon", horizon)
  if costs is not None and len(costs) != len(methods):
    raise ValueError(f"costs={costs}: one of each of the {len(methods)} "
                     "methods is needed.")
  for cost in costs or ():
    values.check_number("costs", cost, 1e-6)
  name = f"[{', '.join(method.name for method in methods)}]"
  name += f", costs=[{', '.join(map(str, costs))}]" if costs else ""
  name += f", horizon={horizon}" if horizon != _HORIZON else ""
  return Method(f"adaptive({name})", *(
      _pair([getattr(method, form) for method in methods], costs, horizon)
      for form in ("sampled", "greedy")))


def _pair(pairs, costs, horizon) -> Pair:
  trees = tuple(pair.drafter for pair in pairs)
  choose = functools.partial(drafters.by_acceptance, trees, horizon, costs)
  return verifiers.pair(drafters.adaptive(trees, horizon, choose),
                        pairs[0].verifier)


def _check(methods):
  if not isinstance(methods, tuple) or len(methods) < 2:
    raise ValueError(f"methods={methods}: a list of two or more is needed.")
  for method in methods:
    pair = getattr(method, "sampled", None)
    if not isinstance(pair, Pair) or not pair.drafter.calls or (
        pair.drafter.observe is not language_model.observe
        or pair.drafter.draft_calls or pair.verifier not in _verifiers(pair)):
      raise ValueError(
          f"methods: {method}: a tree of one draft model is needed, as of "
          "speculative, rsd_s, rsd_c, sequoia or specinfer, with verification "
          f"{', '.join(_RULES)}.")
    first = methods[0].sampled
    if (pair.verifier, pair.drafter.draws) != (first.verifier,
                                               first.drafter.draws):
      raise ValueError(f"methods: {methods[0]} and {method}: the same "
                       "verification is needed, of siblings drawn alike.")


def _verifiers(pair):
  draws = [pair.drafter.draws]
  return [verifiers.of_name(name, draws)[1]
          for name in verifiers.names(draws) if name in _RULES]
