"""Draft trees, and the contracts of what draws and verifies them."""

import enum
from typing import Any, Callable, NamedTuple, Optional

import flax.struct

from decoding_jax.types.models import Array, Block


class Draws(enum.Enum):
  """The way children of a node are drawn, which decides what can verify them.

  The value says it in words, for errors.

  Attributes:
    ARBITRARY: in no way that a verifier may count on: the most probable tokens,
      tables, copies of the text.
    WITHOUT_REPLACEMENT: samples of `DraftTree.log_probs`, in their order, each
      of what the ones before it leave.
    WITH_REPLACEMENT: independent samples of it.
    PRUNED: as WITHOUT_REPLACEMENT, but the tree does not grow level by level:
      whether a node is there may depend on all tokens drawn but its own, its
      descendants' and its later siblings'. Trees with a budget are such.
    ONE_SAMPLED: just the first one is drawn, of what the others leave: tokens
      that `log_probs` alone decides. How many there are depends on no token
      that was drawn.
    OF_SEVERAL: independent samples, each of a distribution of its own, which
      `DraftTree.sources` names, as several draft models give them.
    ONE_IN_BEAM: the same in a beam: how many children a node has depends on
      tokens that were drawn above it or elsewhere, but on none of its own.
    SHARED_NOISE: ranked by log-probability plus the Gumbel vectors of
      `DraftTree.noise_keys`, which the target shares: no fresh samples.
  """
  ARBITRARY = "chosen in any way"
  WITHOUT_REPLACEMENT = "samples without replacement"
  WITH_REPLACEMENT = "independent samples"
  PRUNED = "samples without replacement of a pruned tree"
  ONE_SAMPLED = "one sample and the most probable tokens"
  OF_SEVERAL = "independent samples of several distributions"
  ONE_IN_BEAM = "one sample and the most probable tokens, in a beam"
  SHARED_NOISE = "ranked by noise that the target shares"

  def __repr__(self):
    return f"dj.Draws.{self.name}"


# Where each child is a fresh sample. Of a single one these are the same.
SAMPLED = frozenset({Draws.WITHOUT_REPLACEMENT, Draws.WITH_REPLACEMENT,
                     Draws.PRUNED})


class Layout(NamedTuple):
  """The static shape of a tree of levels; level l = 1..D has index l - 1.

  Attributes:
    widths: nodes of each level.
    branching: the most children that a node of the level above can have.
    children: of each node of the level above, its children, in a tree whose
      nodes have fixed and unequal numbers of them; else nothing.
  """
  widths: tuple[int, ...]
  branching: tuple[int, ...]
  children: tuple[tuple[int, ...], ...] = ()


class FreeLayout(NamedTuple):
  """Bounds of a tree whose nodes may have any parents of a lower index.

  Attributes:
    nodes: M - 1, drafted nodes, those included that are never tested.
    depth: D, the deepest level of a node that is tested.
    branching: K, the most children of a node that are tested.
  """
  nodes: int
  depth: int
  branching: int


@flax.struct.dataclass
class DraftTree:
  """A tree of drafted tokens, the root at index 0, parents before children.

  Siblings are in the order in which they were drawn: recursive rejection
  depends on it. A node's position in the text is the root's plus its
  number of ancestors, whatever the layout.

  Attributes:
    tokens: `[B, M]` int32.
    parents: `[B, M]` int32, index of the parent; `NONE` for the root.
    valid: `[B, M]` bool; False where the draft distribution had no mass left,
      and for all descendants of such a node. A node that is not valid is scored
      but never tested by a verifier: so a drafter may have passengers scored,
      whose logits it reads afterwards.
    mask: `[B, M, M]` bool; `mask[:, i, j]`: j is i or an ancestor of i.
    log_probs: `[B, I, V]` float32, log of the distribution from which the
      children of the first I nodes (all but the last level) were drawn; None of
      children that are no samples.
    sources: `[B, M]` int32, the row of `log_probs` that each node was drawn
      from, of which there may then be more than I; None for its parent's. The
      root's is not read.
    noise_keys: `[B, D + 1]` random keys, of the Gumbel vectors by which the
      children of nodes of level 0, 1, ..., D are ranked and the target's token
      is drawn; None unless they share it.
  """
  tokens: Array
  parents: Array
  valid: Array
  mask: Array
  log_probs: Optional[Array] = None
  sources: Optional[Array] = None
  noise_keys: Optional[Array] = None


@flax.struct.dataclass
class Verdict:
  """The path that a verifier accepts and the token that follows it.

  Attributes:
    path: `[B, D + 1]` int32, node indices from the root on; after the last
      accepted node it is repeated.
    num_accepted: `[B]` int32, accepted nodes, 0..D, the root not counted.
    token: `[B]` int32, the token after the path.
    ranks: `[B, D]` int32, sibling rank of each accepted node; `NONE` after it.
    num_children: `[B, D]` int32, valid children of each path node that was
      visited; 0 after it.
  """
  path: Array
  num_accepted: Array
  token: Array
  ranks: Array
  num_children: Array


class Expander(NamedTuple):
  """Grows a tree of a language model's tokens, one level a forward.

  `drafters.of_model` makes a drafter of it. All functions see one row.

  Attributes:
    layout: the static shape of the tree.
    init: `() -> state`, whatever the expander carries from level to level.
    expand: `(key, level, log_probs [W, V], valid [W], state) -> (tokens [W'],
      parents [W'], valid [W'], state)`; `parents` count within the level. Of
      several models the root has a distribution of each.
    draws: how the children of a node are drawn. With `Draws.SHARED_NOISE` the
      `key` is the level's entry in `DraftTree.noise_keys`.
    num_models: draft models, each of which has an equal share of the nodes of a
      level, in their order.
    goes_on: `(level, tree) -> [B]` bool of all rows, whether the children of
      level 1, 2, ... are drafted; once they are not, never again. None: always.
  """
  layout: Layout
  init: Callable[[], Any]
  expand: Callable[..., tuple[Array, Array, Array, Any]]
  draws: Draws = Draws.ARBITRARY
  num_models: int = 1
  goes_on: Callable[..., Array] | None = None


class Drafter(NamedTuple):
  """Proposes a whole tree a step, and learns from what the target said of it.

  It may keep a state per row in `DecodeState.carry`, a tree of arrays whose
  first axis is B, and of `Cache`s, which grow as the text does. What outlives
  a prompt is an input, such as `draft_params`, that `init` copies. The
  functions see all rows.

  Attributes:
    layout: the static shape of the tree, or its bounds.
    init: `(context, state) -> state`, after the prefill; sets `carry`, which
      is None, or leaves it.
    propose: `(keys [B], context, state) -> (tree, pending)`; `pending` is
      anything that `observe` needs, such as the draft model's block.
    observe: `(context, before, after, seen) -> state`: `after`, its `carry`
      and draft cache brought up to date. `before` is the state of `propose`;
      `seen` is a `Seen`. Only `seen.count` tokens of the path were committed.
    calls: forwards of the draft model a step; 0 if there is no draft model.
    draws: how the children of a node are drawn; with `Draws.SHARED_NOISE`,
      `propose` sets `DraftTree.noise_keys`.
    score: `(context, state, tree, pending) -> (logits [B, M, V], block)`, the
      target's one forward of a step, of M slots; logits of nodes that are not
      valid may be anything. None: `scoring.all_nodes`.
    draft_calls: `(draft) -> int`, the forwards a step of a draft model or a
      head; raises a ValueError for one that it cannot draft by. None: `calls`
      of any model, and `head.forwards(D)` of a head.
  """
  layout: Layout | FreeLayout
  init: Callable[..., Any]
  propose: Callable[..., tuple[DraftTree, Any]]
  observe: Callable[..., Any]
  calls: int
  draws: Draws = Draws.ARBITRARY
  score: Optional[Callable[..., tuple[Array, Block]]] = None
  draft_calls: Optional[Callable[..., int]] = None


@flax.struct.dataclass
class Seen:
  """The step's outcome, from which a drafter learns.

  Attributes:
    tree: that it has proposed.
    logits: `[B, M, V]`, the target's at each node, before any warping.
    block: of the target, M slots: keys, values and features of the nodes.
    verdict: the accepted path and the token after it.
    tokens: `[B, D + 1]` int32, the accepted tokens and the one after them.
    count: `[B]` int32, how many of `tokens` were committed; 0 in a row that
      was done.
    pending: of `Drafter.propose`.
  """
  tree: DraftTree
  logits: Array
  block: Block
  verdict: Verdict
  tokens: Array
  count: Array
  pending: Any


class Verifier(NamedTuple):
  """Chooses a path: child by child by a rule, or in a way of its own.

  The functions see one row.

  Attributes:
    rule: `(uniforms [K], target [V], draft [V], children [K], valid [K]) ->
      (rank [], residual [V])`; rank of the accepted child of one node or
      `NONE`, and the distribution of the token to emit if none is. All
      randomness comes from `uniforms`. With `Draws.OF_SEVERAL`, `draft [K, V]`
      has the distribution of each child. None where there is a walk.
    takes: how children may be drawn for it to be exact; `frozenset(Draws)`
      if it is exact for any, `frozenset()` if it is lossy.
    walk: `(key, layout, tree, logits [M, V], warper) -> Verdict`, instead of
      going down from the root by the rule; None where there is a rule.
  """
  rule: Optional[Callable[..., tuple[Array, Array]]]
  takes: frozenset[Draws]
  walk: Optional[Callable[..., Verdict]] = None


class Pair(NamedTuple):
  """A drafter and a verifier that fit each other; see `verifiers.pair`."""
  drafter: Drafter
  verifier: Verifier
