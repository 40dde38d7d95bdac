"""Verification: the walk down a tree, and the rules that accept a child."""

import functools
import pkgutil

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random
from decoding_jax.speculation import drafters
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (Array, Drafter, DraftTree, Expander, Layout,
                                Method, NONE, Pair, Verdict, Verifier)
from decoding_jax.validation import protocols, values

# What can verify any tree of siblings drawn without replacement, by node, path
# and level, and by noise that the target shares; and, with greedy drafts, one
# whose nodes have fixed numbers of children.
OF_TREES = ("recursive", "traversal", "layer", "shared_gumbel")
OF_FIXED_TREES = (*OF_TREES, "conditional_ot")
OF_CHAINS = ("token", "block", "conditional_ot", "shared_gumbel")
# Where a verifier is that has a walk of its own, which few runs need.
_MODULES = {"traversal": "traversal", "block": "traversal", "layer": "layers",
            "conditional_ot": "conditional_transport",
            "shared_gumbel": "shared_gumbel"}
# Halvings of the interval that K-SEQ's rho lies in.
_BISECTIONS = 30


def pair(drafter: Drafter | Expander, verifier: Verifier) -> Pair:
  """Joins a drafter and a verifier, if that keeps the target's distribution.

  Args:
    drafter: proposes trees; an expander stands for `drafters.of_model` of it.
    verifier: accepts children.

  Returns:
    The pair.

  Raises:
    ValueError: if the verifier divides by the probability of a sample, but
      the drafter's children are no samples, or are drawn otherwise than the
      verifier takes them to be; if it is one of greedy drafts, and they are
      others; if one of them is none.
  """
  if isinstance(drafter, Expander):
    protocols.check("expander", Expander, drafter)
    drafter = drafters.of_model(drafter)
  protocols.check("drafter", Drafter, drafter)
  protocols.check("verifier", Verifier, verifier)
  if verifier.sampled and not drafter.sampled:
    raise ValueError(
        "Drafter.sampled=False, Verifier.sampled=True: children that are not "
        "fresh samples of the draft distribution (top-k, beams, shared noise) "
        "under a rule that divides by it would change the distribution of the "
        "output.")
  if verifier.shared_noise and not drafter.shared_noise:
    raise ValueError(
        "Drafter.shared_noise=False, Verifier.shared_noise=True: the target "
        "draws by the noise that the children were ranked by; expanders."
        "gumbel_top_k(..., shared_noise=True) and its like keep the keys.")
  if verifier.one_sampled and not drafter.one_sampled:
    raise ValueError(
        "Drafter.one_sampled=False, Verifier.one_sampled=True: conditional "
        "optimal transport is exact only for the drafts of expanders."
        "greedy_and_sample, a sample and the most probable tokens.")
  alone = tree_lib.max_branching(drafter.layout) < 2
  if verifier.replacement not in (None, drafter.replacement) and not alone:
    raise ValueError(
        f"Drafter.replacement={drafter.replacement}, Verifier.replacement="
        f"{verifier.replacement}: siblings must be verified as they are drawn, "
        "else the distribution of the output changes.")
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
  root, levels = jnp.int32(0), jnp.zeros(depth, jnp.int32)
  probs = _distribution(warper, logits, root)
  descent = _Descent(root, root, jnp.bool_(depth > 0), probs, probs,
                     levels, levels + NONE, levels)
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
  draft = None if tree.log_probs is None else jnp.exp(tree.log_probs[at.node])
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
      hit = valid[rank] & (uniforms[rank] * draft[token] < target[token])
      missed = valid[rank] & ~hit
      rest = sampling.residual(target, draft)
      if not replacement:
        draft = jnp.where(missed, _without(draft, token), draft)
      return (jnp.where(missed, rest, target), draft, rank + 1,
              jnp.where(hit, rank, accepted))

    rest, _, _, rank = jax.lax.while_loop(
        untested, test, (target, draft, jnp.int32(0), jnp.int32(NONE)))
    return rank, rest

  return Verifier(rule, sampled=True, replacement=replacement)


@functools.lru_cache(maxsize=None)
def k_seq() -> Verifier:
  """Sequential selection, K-SEQ, of SpecTr (arXiv 2310.15141).

  Returns:
    The verifier, for siblings drawn independently.
  """
  def rule(uniforms, target, draft, tokens, valid):
    count = valid.sum()
    rho, beta = k_seq_rho(target, draft, count)
    hits = valid & (uniforms * rho * draft[tokens] < target[tokens])
    some = (count > 0) & (beta > 0)
    scale = jnp.where(some, _any_of(beta, count) / jnp.where(some, beta, 1), 0)
    return _first(hits), sampling.residual(
        target, scale * jnp.minimum(target / rho, draft))

  return Verifier(rule, sampled=True, replacement=True)


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

  return Verifier(rule, sampled=False, replacement=None)


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
    chances = jnp.where(valid & ~twins.any(axis=1), target[tokens], 0)
    rest = target.at[jnp.where(valid, tokens, len(target))].set(0, mode="drop")
    # Sums of what is left: 1 less what was tested would cancel.
    left = rest.sum() + jnp.cumsum(chances[::-1])[::-1]
    # A rest of no mass is of use only where rounding has spared all children.
    rest = jnp.where(rest.sum() > 0, rest, target)
    return _first(uniforms * left < chances), rest / rest.sum()

  return Verifier(rule, sampled=False, replacement=None)


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


def of_name(verification: str, names: tuple[str, ...] = OF_TREES) -> (
    tuple[str, Verifier]):
  """The verifier of siblings without replacement that a method is to have.

  Args:
    verification: one of the names.
    names: what the method allows, the usual one first. With "conditional_ot"
      it has greedy drafts, as `Verifier.one_sampled` says; with
      "shared_gumbel" such as `Verifier.shared_noise` says.

  Returns:
    The suffix of the method's name, and the verifier.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  suffix = values.check_one_of("verification", verification, {
      name: "" if name == names[0] else f", {name}" for name in names})
  if verification not in _MODULES:
    return suffix, recursive(replacement=False)
  return suffix, pkgutil.resolve_name(
      f"decoding_jax.speculation.{_MODULES[verification]}:verifier")()


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
  rest = draft.at[token].set(0)
  mass = jnp.sum(rest)
  return rest / jnp.where(mass > 0, mass, 1)
