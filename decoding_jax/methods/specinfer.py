"""SpecInfer (arXiv 2305.09781): independent samples, multi-step rejection."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_paths=2, depth=2), dict(expansion=(2, 2)),
            dict(num_paths=2, depth=2, verification="gbv"),
            dict(num_paths=2, depth=2, verification="spectr_gbv"))
# What an expansion replaces: the sizes that a call without any has.
_SIZES = (3, 4)


def make(num_paths: int = 3, depth: int = 4, expansion=None,
         verification: str = verifiers.USUAL, models: int = 1) -> Method:
  """Makes SpecInfer: samples and recursive rejection with replacement.

  Several draft models each draft such a tree; equal paths of these are one, and
  a child is tested against the distribution of the model that has drawn it. A
  forward of the drafter is one of each model, of the nodes of all.

  Args:
    num_paths: drafted paths, which part at the root.
    depth: tokens of a path.
    expansion: instead of both, in how many ways a path goes on at level
      0, 1, ..., D - 1, the paper's expansion: `(3, 1)` is 3 paths of 2 tokens.
    verification: any of `verifiers.RULES` for independent samples.
    models: draft models; of several, `draft` is a `models.guided.mixture`, and
      multi-step sampling verifies.
  """
  values.check_positive("models", models)
  if models > 1:
    if verification != verifiers.USUAL:
      raise ValueError(f"verification={verification!r}, models={models}: of "
                       f"several models {verifiers.USUAL!r} is needed.")
    return _of_several(num_paths, depth, expansion, models)
  if expansion is None:
    # At temperature 0 independent paths would all be the same one.
    return _method(f"{num_paths}x{depth}", verification, expanders.iid_paths(
        num_paths, depth), expanders.top_beam(num_paths, depth))
  expansion = _expansion(num_paths, depth, expansion)
  samples = expanders.iid_tree(expansion)
  # The same bounds at all temperatures, though here no paths agree.
  best = expanders.top_k(expansion)._replace(layout=samples.layout)
  return _method("-".join(map(str, expansion)), verification, samples, best)


def _expansion(num_paths, depth, expansion):
  if expansion is None:
    values.check_positives(num_paths=num_paths, depth=depth)
    return (num_paths,) + (1,) * (depth - 1)
  if (num_paths, depth) != _SIZES:
    raise ValueError(f"num_paths={num_paths}, depth={depth}, expansion="
                     f"{expansion}: an expansion replaces both.")
  expansion = values.integers("expansion", expansion)
  values.check_positive("expansion", *expansion)
  return expansion


def _of_several(num_paths, depth, expansion, models) -> Method:
  sizes = f"{num_paths}x{depth}" if expansion is None else "-".join(
      map(str, expansion))
  expansion = _expansion(num_paths, depth, expansion)
  return Method(
      f"specinfer({sizes}, models={models})",
      sampled=verifiers.pair(expanders.iid_tree(expansion, models),
                             verifiers.multi_step()),
      greedy=verifiers.pair(expanders.top_paths(expansion, models),
                            verifiers.match()))


def _method(sizes, verification, samples, best) -> Method:
  suffix, verifier, _ = verifiers.of_name(verification, [samples.draws])
  return Method(f"specinfer({sizes}{suffix})",
                sampled=verifiers.pair(samples, verifier),
                greedy=verifiers.pair(best, verifiers.match()))
