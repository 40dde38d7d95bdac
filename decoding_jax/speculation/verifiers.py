"""Verification: the walk down a tree, and the rules that accept a child."""

from collections.abc import Iterable
import functools
import pkgutil
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random, vocabulary
from decoding_jax.speculation import drafters
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (Array, Drafter, Draws, DraftTree, Expander,
                                Layout, Method, NONE, Pair,
                                SAMPLED, Verdict, Verifier)
from decoding_jax.validation import protocols, values

# Halvings of the interval that K-SEQ's rho lies in.
_BISECTIONS = 30


class Rule(NamedTuple):
  """A way to verify that methods offer by its name.

  Attributes:
    draws: how children may be drawn for it; the first one that a method can
      draw is taken.
    alias: its name in papers on chains, which is accepted as well.
    maker: module next to this one, which few runs need, and function that
      returns the verifier. None for `recursive`.
  """
  draws: tuple[Draws, ...]
  alias: str | None = None
  maker: str | None = None


# The usual one first.
RULES = {
    # arXiv 2402.14160; with replacement 2305.09781.
    "recursive": Rule((Draws.WITHOUT_REPLACEMENT, Draws.WITH_REPLACEMENT),
                      "token"),
    # arXiv 2505.12398; on a chain 2403.10444.
    "traversal": Rule((Draws.WITHOUT_REPLACEMENT,), "block",
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
USUAL = next(iter(RULES))
_ALIASES = {rule.alias: name for name, rule in RULES.items() if rule.alias}


def pair(drafter: Drafter | Expander, verifier: Verifier) -> Pair:
  """Joins a drafter and a verifier, if that keeps the target's distribution.

  Args:
    drafter: proposes trees; an expander stands for `drafters.of_model` of it.
    verifier: accepts children.

  Returns:
    The pair.

  Raises:
    ValueError: if the drafter's children are drawn otherwise than the verifier
      takes them to be; if one of them is none.
  """
  if isinstance(drafter, Expander):
    protocols.check("expander", Expander, drafter)
    drafter = drafters.of_model(drafter)
  protocols.check("drafter", Drafter, drafter)
  protocols.check("verifier", Verifier, verifier)
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


def walk(key, verifier: Verifier, layout: Layout, tree: DraftTree, logits,
         warper: sampling.LogitsWarper) -> Verdict:
  """Accepts a path, in one row.

  Args:
    key: a random key.
    verifier: the rule at each node, or what walks in its place.
    layout: of the tree.
    tree: a tree without its batch axis.
    logits: `[M, V]`, the target's at each node.
    warper: from logits to the target's distribution, without its batch axis.

  Returns:
    A verdict without its batch axis. If the drafts are samples that fit the
    verifier, the accepted tokens and the one after them have the distribution
    of the target.
  """
  depth = tree_lib.depth(layout)
  if verifier.walk is not None and depth:
    return verifier.walk(key, layout, tree, logits, warper)
  keys = random.split(key, 1 + depth)
  root, none = jnp.int32(0), jnp.zeros(depth, jnp.int32)
  probs = _distribution(warper, logits, root)
  descent = _Descent(root, root, jnp.bool_(depth > 0), probs, probs,
                     none, none + NONE, none)
  if depth:
    # Most walks end before the last level.
    descent = jax.lax.while_loop(
        lambda at: at.alive & (at.level < depth),
        functools.partial(_descend, keys, verifier, tree_lib.max_branching(
            layout), tree, lambda node: _distribution(warper, logits, node)),
        descent)
  # A walk that has come to the last level ends in a leaf.
  leaf = descent.alive | (depth == 0)
  token = sampling.draw(keys[-1], jnp.log(jnp.where(leaf, descent.probs,
                                                    descent.rest)))
  path = jnp.where(jnp.arange(depth) < descent.level, descent.path,
                   descent.node)
  return Verdict(jnp.concatenate([root[None], path]),
                 jnp.sum(descent.ranks != NONE).astype(jnp.int32), token,
                 descent.ranks, descent.counts)


@flax.struct.dataclass
class _Descent:
  """A walk on its way down.

  Attributes:
    level: `[]` int32, levels of children that have been tested.
    node: `[]` int32, the last node that was accepted.
    alive: `[]` bool, whether the last test has accepted a child.
    probs: `[V]`, the target's distribution at `node`.
    rest: `[V]`, the residual there.
    path: `[D]` int32, the node after each level that was tested.
    ranks: `[D]` int32, see `Verdict`.
    counts: `[D]` int32, valid children at each level that was tested.
  """
  level: Array
  node: Array
  alive: Array
  probs: Array
  rest: Array
  path: Array
  ranks: Array
  counts: Array


def _descend(keys, verifier, size, tree, distribution, at: _Descent):
  """Tests the children of a node, and goes to the one that is accepted."""
  indices, valid = tree_lib.children(tree, size, at.node)
  tokens = tree.tokens[indices]
  draft = None if tree.log_probs is None else jnp.exp(tree.log_probs[
      at.node if tree.sources is None else tree.sources[indices]])
  rank, rest = verifier.rule(random.uniform(keys[at.level], tokens.shape),
                             at.probs, draft, tokens, valid)
  _check(rank, rest, at.probs)
  accepted = rank != NONE
  # Of children with the same token, the first one has the subtree.
  twin = jnp.argmax(valid & (tokens == tokens[rank]))
  node = jnp.where(accepted, indices[twin], at.node).astype(jnp.int32)
  return _Descent(
      at.level + 1, node, accepted, distribution(node), rest,
      at.path.at[at.level].set(node), at.ranks.at[at.level].set(rank),
      at.counts.at[at.level].set(valid.sum().astype(jnp.int32)))


@functools.lru_cache(maxsize=None)
def recursive(replacement: bool) -> Verifier:
  """Recursive rejection sampling (arXiv 2402.14160, section 3.1).

  Without replacement a rejected sibling leaves the draft distribution; with it
  the distribution stays, which is multi-round rejection (SpecInfer, arXiv
  2305.09781).

  Args:
    replacement: how the siblings are drawn.

  Returns:
    The verifier. For t = (.5, .3, .2), d = (.2, .5, .3), siblings 1 and 0 and
    uniforms .9, .9: .9 * .5 < .3 fails, and the residual is (1, 0, 0); then
    sibling 0 has draft probability .2 / (1 - .5), and .9 * .4 < 1 holds.
  """
  def rule(uniforms, target, draft, tokens, valid):
    ranks = jnp.arange(len(tokens), dtype=jnp.int32)

    def untested(state):
      _, _, rank, accepted = state
      return (accepted == NONE) & jnp.any(valid & (ranks >= rank))

    def test(state):
      target, draft, rank, accepted = state
      token = tokens[rank]
      hit = valid[rank] & (uniforms[rank] * vocabulary.take(
          draft, token) < vocabulary.take(target, token))
      missed = valid[rank] & ~hit
      rest = sampling.residual(target, draft)
      if not replacement:
        draft = jnp.where(missed, _without(draft, token), draft)
      return (jnp.where(missed, rest, target), draft, rank + 1,
              jnp.where(hit, rank, accepted))

    rest, _, _, rank = jax.lax.while_loop(
        untested, test, (target, draft, jnp.int32(0), jnp.int32(NONE)))
    return rank, rest

  return Verifier(rule, frozenset({
      Draws.WITH_REPLACEMENT if replacement else Draws.WITHOUT_REPLACEMENT}))


@functools.lru_cache(maxsize=None)
def multi_step() -> Verifier:
  """Multi-step speculative sampling (arXiv 2305.09781, algorithm 2).

  Each child is tested against the distribution that it was drawn from, and what
  that leaves of the target's is the target of the next. The paper takes the
  children in random order; here it is that of their models.

  Returns:
    The verifier, for samples of several distributions. For t = (.5, .3, .2),
    child 1 of d = (.2, .5, .3), child 0 of (.6, .2, .2) and uniforms .9, .9:
    .9 * .5 < .3 fails, and the residual is (1, 0, 0); .9 * .6 < 1 holds.
  """
  def rule(uniforms, target, draft, tokens, valid):
    def test(carry, child):
      target, accepted = carry
      uniform, draft, token, valid, rank = child
      tested = valid & (accepted == NONE)
      hit = tested & (uniform * vocabulary.take(draft, token) <
                      vocabulary.take(target, token))
      rest = sampling.residual(target, draft)
      return (jnp.where(tested & ~hit, rest, target),
              jnp.where(hit, rank, accepted)), None

    ranks = jnp.arange(len(tokens), dtype=jnp.int32)
    (rest, rank), _ = jax.lax.scan(test, (target, jnp.int32(NONE)), (
        uniforms, draft, tokens, valid, ranks))
    return rank, rest

  return Verifier(rule, frozenset({Draws.OF_SEVERAL}))


@functools.lru_cache(maxsize=None)
def k_seq() -> Verifier:
  """Sequential selection, K-SEQ, of SpecTr (arXiv 2310.15141).

  Returns:
    The verifier, for siblings drawn independently.
  """
  def rule(uniforms, target, draft, tokens, valid):
    count = valid.sum()
    rho, beta = k_seq_rho(target, draft, count)
    hits = valid & (uniforms * rho * vocabulary.take(
        draft, tokens) < vocabulary.take(target, tokens))
    some = (count > 0) & (beta > 0)
    scale = jnp.where(some, _any_of(beta, count) / jnp.where(some, beta, 1), 0)
    return _first(hits), sampling.residual(
        target, scale * jnp.minimum(target / rho, draft))

  return Verifier(rule, frozenset({Draws.WITH_REPLACEMENT}))


def k_seq_rho(target, draft, count):
  """The division factor of K-SEQ.

  Args:
    target: `[V]`, a distribution.
    draft: `[V]`, a distribution.
    count: `[]` int32, siblings.

  Returns:
    rho `[]` in [1, max(count, 1)] and beta `[]`, the mass of
    min(target / rho, draft). Every rho at or above the root of
    1 - (1 - beta)^count = rho beta is exact; this is the upper end of the
    last interval, so never below the root.
  """
  def mass(rho):
    return jnp.sum(jnp.minimum(target / rho, draft))

  def halve(_, bounds):
    low, high = bounds
    rho = (low + high) / 2
    beta = mass(rho)
    above = _any_of(beta, count) <= rho * beta
    return jnp.where(above, low, rho), jnp.where(above, rho, high)

  one = jnp.ones((), target.dtype)
  _, rho = jax.lax.fori_loop(0, _BISECTIONS, halve,
                             (one, jnp.maximum(count, 1).astype(one.dtype)))
  return rho, mass(rho)


@functools.lru_cache(maxsize=None)
def match() -> Verifier:
  """Follows the child that is the target's most probable token.

  Returns:
    The verifier of temperature 0, for children of any kind.
  """
  def rule(uniforms, target, draft, tokens, valid):
    del uniforms, draft
    hits = valid & (tokens == sampling.most_probable(target))
    return _first(hits), target

  return Verifier(rule, frozenset(Draws))


@functools.lru_cache(maxsize=None)
def sample_and_match() -> Verifier:
  """Draws the target's token, and follows the child that it is, if any.

  The target's distribution is kept whatever the children are: tables, n-grams,
  beams, top-k trees, at any temperature. Instead of drawing the token at once,
  children are tested one after the other, child k accepted with probability
  t(x_k) over the mass of t that was not tested before: the same distribution,
  and at a node without children nothing is drawn in vain. Of children with the
  same token the first one is tested.

  Returns:
    The verifier. For t = (.5, .3, .2) and children 1, 0: child 1 is accepted
    with probability .3, else child 0 with .5 / .7, else token 2 is emitted.
  """
  def rule(uniforms, target, draft, tokens, valid):
    del draft
    ranks = jnp.arange(len(tokens))
    twins = (tokens[:, None] == tokens[None]) & valid[None] & (
        ranks[None] < ranks[:, None])
    chances = jnp.where(valid & ~twins.any(axis=1),
                        vocabulary.take(target, tokens), 0)
    rest = vocabulary.put(target, jnp.where(valid, tokens, len(target)), 0)
    # Sums of what is left: 1 less what was tested would cancel.
    left = rest.sum() + jnp.cumsum(chances[::-1])[::-1]
    # A rest of no mass is of use only where rounding has spared all children.
    rest = jnp.where(rest.sum() > 0, rest, target)
    return _first(uniforms * left < chances), rest / rest.sum()

  return Verifier(rule, frozenset(Draws))


def matched(name: str, drafter: Drafter | Expander) -> Method:
  """Makes a method that follows what the target draws, whoever drafts it.

  Args:
    name: of the method.
    drafter: proposes trees of any kind.

  Returns:
    The method: `sample_and_match`, and `match` at temperature 0.

  Raises:
    ValueError: for something that is no drafter.
  """
  return Method(name, sampled=pair(drafter, sample_and_match()),
                greedy=pair(drafter, match()))


def names(draws: Iterable[Draws] = frozenset(Draws)) -> list[str]:
  """Returns the names of rules for children that can be drawn in these ways."""
  return [name for name, rule in RULES.items() if set(draws) & {*rule.draws}]


def canonical(verification: str) -> str:
  """Returns the name in `RULES` of a rule that may be given by its alias."""
  return _ALIASES.get(verification, verification)


def of_name(verification: str,
            draws: Iterable[Draws]) -> tuple[str, Verifier, Draws]:
  """Returns the verifier that a method is to have.

  Args:
    verification: a name in `RULES`, or an alias.
    draws: how the method can draw children.

  Returns:
    (suffix of the method's name, verifier, how children must be drawn).

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  name, allowed = canonical(verification), names(draws)
  if name not in allowed:
    values.check_one_of("verification", verification, dict.fromkeys(allowed))
  rule = RULES[name]
  drawn = next(x for x in rule.draws if x in draws)
  verifier = recursive(drawn == Draws.WITH_REPLACEMENT) if not rule.maker else (
      pkgutil.resolve_name(f"decoding_jax.speculation.{rule.maker}")())
  return "" if name == USUAL else f", {name}", verifier, drawn


def _name(verifier):
  """Returns the function that made a verifier, for errors."""
  function = verifier.rule or verifier.walk
  function = getattr(function, "func", function)
  module = getattr(function, "__module__", "").rpartition(".")[2]
  name = getattr(function, "__qualname__", repr(function))
  return f"{module}.{name.removesuffix('.<locals>.rule')}"


def _check(rank, residual, probs):
  """Raises ValueError, while it is traced, for wrong results of a rule."""
  shape, dtype = values.form(rank)
  if shape or not jnp.issubdtype(dtype, jnp.integer):
    raise ValueError(f"Verifier.rule returned a rank of shape {shape} and type "
                     f"{dtype}: a single integer is needed.")
  if values.form(residual) != values.form(probs):
    shape, dtype = values.form(residual)
    raise ValueError(
        f"Verifier.rule returned a residual of shape {shape} and "
        f"type {dtype}: {probs.dtype} of [V]={probs.shape} is needed.")


def _distribution(warper, logits, node):
  return jnp.exp(sampling.log_probs(warper, logits[node]))


def _first(hits):
  """Rank of the first hit, or `NONE`."""
  return jnp.where(hits.any(), jnp.argmax(hits), NONE).astype(jnp.int32)


def _any_of(beta, count):
  """1 - (1 - beta)^count, without cancellation; for no siblings as for one."""
  exponent = jnp.maximum(count, 1).astype(jnp.result_type(beta))
  return -jnp.expm1(exponent * jnp.log1p(-jnp.minimum(beta, 1)))


def _without(draft, token):
  """The distribution of what is left when a token has been drawn."""
  rest = vocabulary.put(draft, token, 0)
  mass = jnp.sum(rest)
  return rest / jnp.where(mass > 0, mass, 1)
