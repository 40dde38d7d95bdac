"""Which drafter and verifier go together, and rules by their names."""

from collections.abc import Iterable
import pkgutil
from typing import NamedTuple

from decoding_jax.speculation import drafters
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.verifiers import recursive_rejection, target_match
from decoding_jax.types import (Drafter, Draws, Expander, Method, Pair, SAMPLED,
                                Verifier)
from decoding_jax.validation import protocols, values


class Rule(NamedTuple):
  """A way to verify that methods offer by its name."""
  # How children may be drawn for it; the first one that a method can draw is
  # taken
  draws: tuple[Draws, ...]
  # Its name in papers on chains, which is accepted as well
  alias: str | None = None
  # Module next to this one, which few runs need, and function that returns the
  # verifier. None for `recursive`.
  maker: str | None = None


# The usual one first.
RULES = {
    # arXiv 2402.14160; with replacement 2305.09781.
    "recursive": Rule((Draws.WITHOUT_REPLACEMENT, Draws.WITH_REPLACEMENT,
                       Draws.PRUNED), "token"),
    # arXiv 2505.12398; on a chain 2403.10444.
    "traversal": Rule((Draws.WITHOUT_REPLACEMENT, Draws.PRUNED), "block",
                      "traversal:verifier"),
    # As traversal, but level by level.
    "layer": Rule((Draws.WITHOUT_REPLACEMENT,), maker="layers:verifier"),
    # After arXiv 2605.04543, by a derivation of this library.
    "conditional_ot": Rule((Draws.ONE_SAMPLED,),
                           maker="conditional_transport:verifier"),
    # After arXiv 2609.21827; of two children 2411.05289.
    "rheo": Rule((Draws.ONE_SAMPLED, Draws.ONE_IN_BEAM),
                 maker="conditional_transport:by_node"),
    # arXiv 2408.07978, 2504.15475; its text does not depend on the drafts.
    "shared_gumbel": Rule((Draws.SHARED_NOISE,),
                          maker="shared_gumbel:verifier"),
    # After arXiv 2602.16961, 2604.25925 and 2511.15898.
    "gbv": Rule((Draws.WITH_REPLACEMENT,), maker="path_blocks:gbv"),
    "spectr_gbv": Rule((Draws.WITH_REPLACEMENT,),
                       maker="path_blocks:spectr_gbv"),
    "global_resolution": Rule((Draws.WITH_REPLACEMENT,),
                              maker="path_blocks:global_resolution"),
}
# Rules that change the distribution; a number may follow, "typical:0.3".
LOSSY = {"typical": Rule((Draws.ARBITRARY,),
                         maker="typical_acceptance:verifier")}
USUAL = next(iter(RULES))
_ALIASES = {rule.alias: name for name, rule in RULES.items() if rule.alias}


def pair(drafter: Drafter | Expander, verifier: Verifier,
         lossy: bool = False) -> Pair:
  """Joins a drafter and a verifier, if that keeps the target's distribution.

  Args:
    drafter: proposes trees; an expander stands for `drafters.of_model` of it.
    verifier: accepts children.
    lossy: whether it may be one that is exact for no drafts.

  Raises:
    ValueError: if the drafter's children are drawn otherwise than the verifier
      takes them to be; if one of them is none.
  """
  if isinstance(drafter, Expander):
    protocols.check("expander", Expander, drafter)
    drafter = drafters.of_model(drafter)
  protocols.check("drafter", Drafter, drafter)
  protocols.check("verifier", Verifier, verifier)
  if not verifier.takes:
    if lossy is not True:
      raise ValueError(f"lossy={lossy!r}: {_name(verifier)} changes the "
                       "distribution of the output, which lossy=True allows.")
    return Pair(drafter, verifier)
  draws = {drafter.draws}
  if tree_lib.max_branching(drafter.layout) < 2 and draws & SAMPLED:
    draws = SAMPLED
  if not draws & verifier.takes:
    takes = [x for x in Draws if x in verifier.takes]
    raise ValueError(
        f"Drafter.draws={drafter.draws.name}, Verifier.takes="
        f"{', '.join(x.name for x in takes)}: {_name(verifier)} is exact for "
        f"children that are {' or '.join(x.value for x in takes)}; these are "
        f"{drafter.draws.value}, which would change the distribution of the "
        "output.")
  return Pair(drafter, verifier)


def matched(name: str, drafter: Drafter | Expander) -> Method:
  """Makes a method that follows the target's own draws, whoever drafts:
  `sample_and_match`, and `match` at temperature 0. Raises ValueError unless
  `drafter` is one."""
  return Method(name, sampled=pair(drafter, target_match.sample_and_match()),
                greedy=pair(drafter, target_match.match()))


def names(draws: Iterable[Draws] = frozenset(Draws), rules=RULES) -> list[str]:
  """Returns the names of rules for children that can be drawn in these ways."""
  return [name for name, rule in rules.items() if set(draws) & {*rule.draws}]


def canonical(verification: str) -> str:
  """Returns the name in `RULES` of a rule that may be given by its alias."""
  return _ALIASES.get(verification, verification)


def of_name(verification: str,
            draws: Iterable[Draws]) -> tuple[str, Verifier, Draws]:
  """Returns (suffix of the method's name, verifier, `Draws`) for
  `verification`, a name in `RULES` or `LOSSY` or an alias, of the `draws` that
  a method has. Raises ValueError naming the option, its value and what is
  allowed."""
  base, *numbers = str(verification).split(":")
  name = base if base in LOSSY else canonical(verification)
  allowed = names(draws) + names(draws, LOSSY)
  if name not in allowed:
    values.check_one_of("verification", verification, dict.fromkeys(allowed))
  rule = LOSSY.get(name) or RULES[name]
  drawn = next(x for x in rule.draws if x in draws)
  if rule.maker:
    verifier = pkgutil.resolve_name(
        f"decoding_jax.speculation.verifiers.{rule.maker}")(*numbers)
  else:
    verifier = recursive_rejection.recursive(drawn == Draws.WITH_REPLACEMENT)
  suffix = f", {verification}, lossy=True" if name in LOSSY else f", {name}"
  return suffix if name != USUAL else "", verifier, drawn


def _name(verifier):
  """Returns the function that made a verifier, for errors."""
  function = verifier.rule or verifier.walk
  function = getattr(function, "func", function)
  module = getattr(function, "__module__", "").rpartition(".")[2]
  name = getattr(function, "__qualname__", repr(function))
  return f"{module}.{name.removesuffix('.<locals>.rule')}"
