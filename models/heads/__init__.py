"""Heads on the target's features: drafters instead of a draft model.

A file is a head: its architecture, what it predicts in training, and how it is
saved. The folder lists it, and it is imported when it is asked for. It has

    Config                     frozen dataclass of its sizes
    head(config, target)       the `Head`, with the parameters of `init`
    init(key, config, target)  random parameters
    KINDS                      dict of `parts.training.Kind`, by the names that
                               `experiments.train` knows; none if it is absent
    FORMAT                     a `parts.formats.Format`, of published heads; if
                               it is absent, fields and parameters are saved
                               by their own names

`target` is the `transformer.Config` of the target, which keeps the output of
its last layer unless another one is named, as
`transformer.with_features(target, (target.num_layers - 1,))` does; `head`
raises ValueError for one that does not fit. Prompt tokens are no head: instead
of `head` they have `target(config, target)`, the target that knows them.
"""

import importlib
import pkgutil


def names() -> list[str]:
  """Returns the names of all heads, sorted."""
  return sorted(x.name for x in pkgutil.iter_modules(__path__) if not x.ispkg)


def modules() -> dict:
  """Returns the files of all heads, by name."""
  return {name: importlib.import_module(f"{__name__}.{name}")
          for name in names()}
