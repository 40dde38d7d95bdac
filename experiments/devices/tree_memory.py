"""Choice of a tree by the memory that its run needs (SpecMemo, 2506.01986)."""

import numpy as np

from decoding_jax.speculation import tree
from decoding_jax.speculation import tree_planning
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import memory_estimate


def bytes_of(pair, batch, prompt_length, max_new_tokens, greedy,
             ways=memory_estimate.Ways()):
  """Returns `(tree_planning.Plan) -> bytes` of a device.

  Trees of equally many nodes need nearly the same, and are estimated once.
  """
  sizes = {}

  def of_plan(plan):
    method = method_specs.read(plan.spec)
    kind = method.greedy if greedy else method.sampled
    # A table of successors is all that a drafter without a model may carry.
    key = (plan.spec["name"] == "token_recycling", kind.drafter.calls > 0,
           tree.num_nodes(kind.drafter.layout))
    if key not in sizes:
      sizes[key] = sum(memory_estimate.estimate(
          pair, [kind], batch, prompt_length, max_new_tokens, ways))
    return sizes[key]

  return of_plan


def plans(name, acceptance, parameter_ratio) -> list[tree_planning.Plan]:
  """Returns plans of a method's trees where reading weights is all that costs.

  By falling rate. `acceptance` are the probabilities, numbers or texts, to
  accept a sibling of rank 0, 1, ..., those before it rejected. Raises a
  `UserError` for other numbers, or a method whose trees are not planned.
  """
  try:
    chances = np.array([float(x) for x in acceptance])
  except ValueError:
    chances = np.zeros(1)
  if not len(chances) or not ((chances > 0) & (chances < 1)).all():
    raise launch.UserError(
        f"--acceptance={','.join(map(str, acceptance))}: probabilities between "
        "0 and 1 are needed.")
  accept = tree_planning.Acceptance(chances, np.ones(1), np.ones(1))
  found = tree_planning.plans({"recursive": accept, "match": accept},
                              tree_planning.Costs(
                                  lambda tokens: 1.0,
                                  lambda tokens: parameter_ratio,
                                  lambda levels, nodes: 0.0))
  named = [plan for plan in found if plan.spec["name"] == name]
  if not named:
    names = sorted({plan.spec["name"] for plan in found})
    raise launch.UserError(f"--memory_budget and --method={name}: the trees of "
                           f"{', '.join(names)} are planned.")
  return named


def smallest(found, size_of, budget) -> tree_planning.Plan:
  """Returns the plan of the smallest tree that fits and keeps the speed.

  `found` are plans of one method by falling rate. Raises a `UserError` if none
  fits.
  """
  chosen = tree_planning.within_budget(found, size_of, budget)
  if not chosen:
    least = min(map(size_of, found))
    raise launch.UserError(
        f"--memory_budget: {found[0].spec['name']} needs about {least:,} bytes "
        f"at least, and there are {budget:,}.")
  return chosen[0]
