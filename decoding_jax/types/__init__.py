"""Arrays and contracts that every other module speaks.

Axis legend, used in every docstring:

  B  rows of a batch           P  prompt positions
  T  fresh tokens of one call  S  slots of a cache
  N  slots of a block          M  nodes of a tree, the root included
  I  nodes with children       D  depth of a tree
  K  siblings                  W  nodes of one level
  V  vocabulary                H  key/value heads
  C  channels of a head
"""

import math
from typing import Any, Callable, NamedTuple, Optional

import flax.struct
import jax

Array = jax.Array
Params = Any

# What stands after the committed tokens of a row.
PAD = -1
# The parent of a root; also "no node" and "no sibling rank".
NONE = -1


@flax.struct.dataclass
class Block:
  """What one or more `forward` calls have just computed, a slot a token.

  Leading axes, such as a layer axis of scanned layers, may come before `B` in
  keys and values.

  Attributes:
    keys: tuple of `[..., B, H, C, N]`.
    values: tuple of `[..., B, H, N, C]`.
    features: tuple of `[B, N, F]`, what is kept of each token and no token
      attends to: hidden states that a drafter reads, states of a processor.
  """
  keys: tuple[Array, ...]
  values: tuple[Array, ...]
  features: tuple[Array, ...] = ()


@flax.struct.dataclass
class Cache:
  """What is kept of the committed prefix; slot and position are the same.

  Attributes:
    keys: tuple of `[..., B, H, C, S]`.
    values: tuple of `[..., B, H, S, C]`.
    length: `[B]` int32, filled slots a row; later slots hold arbitrary numbers.
    features: tuple of `[B, S, F]`; see `Block`.
  """
  keys: tuple[Array, ...]
  values: tuple[Array, ...]
  length: Array
  features: tuple[Array, ...] = ()


class LanguageModel(NamedTuple):
  """Two pure functions; hashable, so that it can be a static argument.

  Attributes:
    init_cache: `(batch, capacity) -> Cache`, empty.
    forward: `(params, tokens [B, T], positions [B, T], cache, block, slot,
      mask [B, T, N]) -> (logits [B, T, V], block)`. Token `i` attends to its
      row's whole cache and to the block slots where `mask[:, i]` is set; its
      own keys and values go to block slot `slot + i`, which its mask includes.
      The cache is read, never written.
    vocab_size: V.
    max_length: positions the model knows; 0 if there is no limit.
    after_prompt: `(params, cache) -> cache`, what is done to a cache that holds
      all of each prompt but its last token; None for nothing.
    abstract_params: `() -> params`, the parameters that it needs as
      `jax.ShapeDtypeStruct`, `...` in place of any tree; those given to
      `generate` are compared with them. None for no such check.
    early_logits: `(num_layers, params, tokens, positions, cache, mask [B, T,
      T]) -> logits [B, T, V]` that its first layers alone would give, as
      `forward` in all else; None if it has none.
  """
  init_cache: Callable[[int, int], Cache]
  forward: Callable[..., tuple[Array, Block]]
  vocab_size: int
  max_length: int = 0
  after_prompt: Optional[Callable[..., Cache]] = None
  abstract_params: Optional[Callable[[], Params]] = None
  early_logits: Optional[Callable[..., Array]] = None


class MaskedModel(NamedTuple):
  """A masked-diffusion language model, see `canvas.generate`; hashable.

  Attributes:
    language_model: its forward is called with masks that are not causal. The
      logits at a token are those of the token itself.
    mask_id: token of a place that is not filled.
    shifted: whether the logits at a token are those of the next one, as of
      models that were adapted from autoregressive ones, such as Dream.
    block_causal: whether a block sees itself, the blocks before it and the
      prompt, which sees itself alone; else all tokens see each other.
  """
  language_model: LanguageModel
  mask_id: int
  shifted: bool = False
  block_causal: bool = False


class Head(NamedTuple):
  """A network that drafts from features of the target; hashable.

  It may be given wherever a draft model is, to a target that keeps such
  features. A head reads the committed text as pairs: the features of a token,
  and the token after it. Its functions see all rows; their first two arguments
  are the parameters of the head and of the target.

  Attributes:
    init: `(batch, slots) -> state` before any pair: arrays with rows first, and
      `Cache`s with room for so many pairs.
    read: `(params, target_params, state, features, tokens [B, T], count [B]) ->
      state` after the first `count` of T more pairs; features are those that
      the target keeps, a tuple of `[B, T, F]`.
    start: `(params, target_params, state, root [B], nodes) -> draft`, anything
      that a draft needs, of a tree with so many inner nodes; `root` is the
      token of the last pair.
    logits: `(params, target_params, state, draft, tree, level, nodes) ->
      (logits [B, W, V], draft)` of what follows each of the W nodes of a
      level, which are filled in; `nodes` has their `start` and `width`, see
      `expanders.Nodes`.
    vocab_size: V, that of the target.
    widths: F of each of the features that it reads.
    forwards: `(depth) -> number` of forwards of the head that a draft of so
      many levels costs.
    depth: levels that it can draft; 0 if there is no limit.
    max_length: positions it knows; 0 if there is no limit.
    abstract_params: as of `LanguageModel`.
  """
  init: Callable[[int, int], Any]
  read: Callable[..., Any]
  start: Callable[..., Any]
  logits: Callable[..., tuple[Array, Any]]
  vocab_size: int
  widths: tuple[int, ...]
  forwards: Callable[[int], int]
  depth: int = 0
  max_length: int = 0
  abstract_params: Optional[Callable[[], Params]] = None


class AppliedParams(NamedTuple):
  """Parameters of a model with a processor around it; see `processors.apply`.

  Attributes:
    model: of the model.
    processor: of the processor.
  """
  model: Params
  processor: Params


class LogitsProcessor(NamedTuple):
  """Changes logits by the tokens that stand before them; hashable.

  The functions see one token of one row. What they need beside is in `params`,
  a tree of arrays.

  Attributes:
    init: `(params) -> state`, a tree of arrays of fixed shapes.
    advance: `(params, state, token []) -> state` after that token.
    process: `(params, state, logits [V]) -> logits [V]`; -inf forbids a token.
    reads_prompt: whether `init` is the state before the first token of the
      prompt; else it is the one after its last token.
    advance_block: `(params, states [B, T, ...], tokens [B, T], parents [B, T])
      -> states [B, T, ...]`, `advance` for all tokens of a block at once; None
      to call that once for each level of a tree. Token `i` follows token
      `parents[:, i] < i` of the block or, where that is `NONE`, the state
      `states[:, i]`; a token `NONE` leaves that state unchanged.
  """
  init: Callable[..., Any]
  advance: Callable[..., Any]
  process: Callable[..., Array]
  reads_prompt: bool = False
  advance_block: Optional[Callable[..., Any]] = None


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
  depends on it. A node's position in the text is that of the root plus its
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
    noise_keys: `[B, D + 1]` random keys, of the Gumbel vectors by which the
      children of nodes of level 0, 1, ..., D are ranked and the target's token
      is drawn; None unless they share it.
  """
  tokens: Array
  parents: Array
  valid: Array
  mask: Array
  log_probs: Optional[Array] = None
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
      parents [W'], valid [W'], state)`; `parents` count within the level.
    sampled: whether the children of a node are samples of `log_probs`.
    replacement: whether siblings are drawn with replacement.
    one_sampled: whether of the children of a node just the first one is drawn,
      of what the others leave: tokens that `log_probs` alone decides. How many
      there are depends on no token that was drawn.
    shared_noise: whether `key` is that of the level's entry in
      `DraftTree.noise_keys`, and children are ranked by log-probability plus
      its Gumbel vector. Such children are no fresh samples.
  """
  layout: Layout
  init: Callable[[], Any]
  expand: Callable[..., tuple[Array, Array, Array, Any]]
  sampled: bool
  replacement: bool
  one_sampled: bool = False
  shared_noise: bool = False


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
    sampled: whether the children of a node are samples of `tree.log_probs`.
    replacement: whether siblings are drawn with replacement.
    skips: whether to score the root alone in a step in which no row drafted
      anything. False for drafters whose invalid nodes must be scored.
    one_sampled: whether just the first one of them is; see `Expander`.
    shared_noise: whether `propose` sets `DraftTree.noise_keys`.
    head_calls: `(head) -> number`, the calls where a head drafts; None for
      `head.forwards(D)`.
    takes_head: whether what drafts may be a `Head`.
    max_samples_per_node: tokens that it takes of one distribution, if these are
      more than a node has children.
  """
  layout: Layout | FreeLayout
  init: Callable[..., "DecodeState"]
  propose: Callable[..., tuple[DraftTree, Any]]
  observe: Callable[..., "DecodeState"]
  calls: int
  sampled: bool
  replacement: bool
  skips: bool = False
  one_sampled: bool = False
  shared_noise: bool = False
  head_calls: Optional[Callable[[Head], int]] = None
  takes_head: bool = True
  max_samples_per_node: int = 0


@flax.struct.dataclass
class Seen:
  """What a drafter learns from after a step.

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
      `NONE`, and the distribution of the token to emit if none is. All its
      chance is in `uniforms`. None where there is a walk.
    sampled: whether it is exact only for children that are samples.
    replacement: how such children must be drawn; None if it does not matter.
    walk: `(key, layout, tree, logits [M, V], warper) -> Verdict`, in place of
      going down from the root by the rule; None where there is a rule.
    one_sampled: whether it is exact only for children of which just the first
      one is drawn; see `Expander`.
    shared_noise: whether it draws by `DraftTree.noise_keys`.
  """
  rule: Optional[Callable[..., tuple[Array, Array]]]
  sampled: bool
  replacement: Optional[bool]
  walk: Optional[Callable[..., Verdict]] = None
  one_sampled: bool = False
  shared_noise: bool = False


class Pair(NamedTuple):
  """A drafter and a verifier that fit each other; see `verifiers.pair`."""
  drafter: Drafter
  verifier: Verifier


class Reward(NamedTuple):
  """What a text is worth, read token after token; hashable.

  The functions see one row. What all rows share is in `params`; what is a
  row's own in `constraint`, a tree of arrays, or None.

  Attributes:
    init: `(params, constraint, prompt [P] int32, length []) -> state`; the
      prompt is right-padded, the state a tree of fixed shapes.
    advance: `(params, constraint, state, tokens [T] int32, valid [T] bool) ->
      state`. Tokens that are not valid change nothing.
    value: `(params, constraint, state) -> [] float32`.
    maximum: a value that cannot be exceeded; inf if there is none.
  """
  init: Callable[..., Any]
  advance: Callable[..., Any]
  value: Callable[..., Array]
  maximum: float = math.inf


@flax.struct.dataclass
class Context:
  """What does not change from step to step; models and reward are static.

  Attributes:
    target: the model whose distribution is kept, or searched.
    target_params: its parameters.
    draft: the model or the head that drafts, or None.
    draft_params: its parameters, or those of a drafter without a model.
    warper: a `sampling.LogitsWarper`, from logits to the distribution of the
      target.
    draft_warper: the same of the drafter; at temperature 0 its distribution is
      that of temperature 1, of which only the token mask is left.
    eos_id: `[E]` int32, each of which ends a text; `[NONE]` for none.
    prompts: `[B, P]` int32, 0 after a prompt.
    prompt_lengths: `[B]` int32.
    reward: a `Reward`, or None.
    reward_params: its parameters.
    constraints: tree of `[B, ...]`, a row's own part of the reward, or None.
  """
  target: LanguageModel = flax.struct.field(pytree_node=False)
  target_params: Params
  draft: Optional[LanguageModel | Head] = flax.struct.field(pytree_node=False)
  draft_params: Params
  warper: Any
  draft_warper: Any
  eos_id: Array
  prompts: Array
  prompt_lengths: Array
  reward: Optional[Reward] = flax.struct.field(pytree_node=False)
  reward_params: Params
  constraints: Any


class Decoder(NamedTuple):
  """A step of decoding, and how to begin; hashable.

  `generate` prefills the caches with all of each prompt but its last token,
  and repeats the step until all rows are done.

  Attributes:
    init: `(context, state) -> state`; sets `stats` and `carry`, which are
      None, and may change the caches.
    step: `(context, state) -> state`; every row that is not done gets at least
      one token, and a row that is done gets none.
    max_slots_ahead: slots that a step may write after `length` of a row,
      counted or not, at most.
    max_samples_per_node: tokens that it takes of one distribution, at most; V
      must not be less.
    needs_draft: whether it needs a draft model.
    takes_head: whether that may be a `Head`.
    needs_reward: whether it needs a reward.
    needs_features: whether the target must keep features, see `Cache`.
    step_with_tree: `(context, state) -> (state, Seen)`, the same step and what
      it has drafted, scored and accepted; None for a step without a tree.
  """
  init: Callable[..., "DecodeState"]
  step: Callable[..., "DecodeState"]
  max_slots_ahead: int
  max_samples_per_node: int = 1
  needs_draft: bool = False
  takes_head: bool = False
  needs_reward: bool = False
  needs_features: bool = False
  step_with_tree: Optional[Callable[..., tuple["DecodeState", Seen]]] = None


class Method(NamedTuple):
  """A way to decode. A pair stands for the decoder that drafts and verifies.

  Attributes:
    name: as in a table, with its sizes.
    sampled: for temperatures above 0; None if it has no such form.
    greedy: for temperature 0; None if it has no such form. Pairs of a method
      have the same depth.
  """
  name: str
  sampled: Pair | Decoder | None
  greedy: Pair | Decoder | None


@flax.struct.dataclass
class Stats:
  """Counts per row, taken only while that row runs.

  Attributes:
    target_calls: `[B]` int32, target forwards after the prefill.
    draft_calls: `[B]` int32, draft forwards after the prefill.
    emitted: `[B]` int32, committed tokens after the prompt.
    nodes: `[B]` int32, nodes of the trees: of a tree method as many each step,
      whether all of them are filled in or not.
    accepted_by_depth: `[B, D + 1]` int32, target calls that accepted exactly
      0, 1, ..., D drafted tokens.
    extra: dict of a method's own counts. Tree methods have
      `tested_by_rank [B, K]` and `accepted_by_rank [B, K]`, int32, of the
      children of sibling rank 0, 1, ... on the path. Where a reward is given,
      any method has `reward [B]` float32, that of the whole text.
  """
  target_calls: Array
  draft_calls: Array
  emitted: Array
  nodes: Array
  accepted_by_depth: Array
  extra: dict[str, Array]


@flax.struct.dataclass
class DecodeState:
  """What the loop of a generation carries.

  In tree methods the newest token of a row is the root of its next tree and not
  yet in any cache. The draft cache may be one token shorter still: no drafter
  runs its last level, and some read what was committed when they draft next.

  Attributes:
    keys: `[B]` one random key a row, folded by `step`, or for noise that
      drafter and target share by position, and used for nothing else.
    step: `[B]` int32, steps since the row began.
    tokens: `[B, P + max_new_tokens]` int32, `PAD` after the length.
    log_probs: float32 of the same shape; see `Generation`.
    length: `[B]` int32, committed tokens.
    limit: `[B]` int32, what the length may not pass.
    done: `[B]` bool.
    target_cache: length is the row's less one.
    draft_cache: length is the row's less one, or more; None without a drafter.
    stats: counts so far.
    carry: what else the decoder or drafter carries, a tree of arrays with rows
      first, and of `Cache`s; None for nothing.
  """
  keys: Array
  step: Array
  tokens: Array
  log_probs: Array
  length: Array
  limit: Array
  done: Array
  target_cache: Cache
  draft_cache: Optional[Cache]
  stats: Optional[Stats] = None
  carry: Any = None


@flax.struct.dataclass
class Generation:
  """What `generate` returns.

  Attributes:
    tokens: `[B, P + max_new_tokens]` int32: prompt, what was generated, PAD.
    lengths: `[B]` int32, committed length, the prompt included.
    log_probs: `[B, P + max_new_tokens]` float32, natural log of the target's
      own probability (temperature 1, nothing cut off) of each generated token;
      0 at the prompt and after the length.
    stats: counts per row.
    steps: `[]` int32, steps of the loop.
  """
  tokens: Array
  lengths: Array
  log_probs: Array
  stats: Stats
  steps: Optional[Array] = None
