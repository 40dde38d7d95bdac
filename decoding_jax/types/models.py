"""Models and what they keep: caches, heads, processors; see `types`."""

from typing import Any, Callable, NamedTuple, Optional

import flax.struct
import jax

Array = jax.Array
Params = Any

# What stands after the committed tokens of a row.
PAD = -1
# The parent of a root; also "no node" and "no sibling rank".
NONE = -1
# Among features: the outputs of layers that a target keeps, a tuple.
HIDDEN_STATES = "hidden_states"
# Among a block's features: how each of its tokens changes recurrent states.
UPDATES = "updates"


@flax.struct.dataclass
class Block:
  """Keys, values and features of recent `forward` calls, a slot a token.

  Leading axes, such as a layer axis of scanned layers, may come before `B` in
  keys and values.

  Attributes:
    keys: tuple of `[..., B, H, C, N]`.
    values: tuple of `[..., B, H, N, C]`.
    features: dict from names to trees of arrays `[B, N, ...]`, which attention
      ignores: `HIDDEN_STATES` for heads, a tuple of `[B, N, F]`; the states of
      a processor; `UPDATES` of a model with `States`. A reader takes what it
      knows by name.
  """
  keys: tuple[Array, ...]
  values: tuple[Array, ...]
  features: dict[str, Any] = flax.struct.field(default_factory=dict)


@flax.struct.dataclass
class States:
  """Recurrent layers' states of a committed prefix, which has no slots.

  A forward leaves in the block, as the feature `UPDATES`, by what each token
  changes the state of its parent; a node's state follows from the cache's and
  its ancestors' updates. A commit applies the path's updates. A row of length 0
  begins with zeros, whatever `arrays` holds.

  Attributes:
    arrays: tree of `[B, ...]`.
    empty: tree of `[B, 0, ...]`, the updates of a block of no slots.
    advance: `(arrays, updates [B, K, ...], count [B]) -> arrays` after the
      first tokens of K; static.
  """
  arrays: Any
  empty: Any
  advance: Callable[..., Any] = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class Cache:
  """KV cache of the committed prefix; slot and position are the same.

  With `shared`, of L slots, slot i is for position L + i.

  Attributes:
    keys: tuple of `[..., B, H, C, S]`.
    values: tuple of `[..., B, H, S, C]`.
    length: `[B]` int32, committed tokens a row, shared ones included; later
      slots hold arbitrary numbers.
    features: dict of trees of `[B, S, ...]`; see `Block`.
    shared: what all rows begin with, a block of one row and of no other tokens;
      None for nothing.
    states: of recurrent layers; None without any.
  """
  keys: tuple[Array, ...]
  values: tuple[Array, ...]
  length: Array
  features: dict[str, Any] = flax.struct.field(default_factory=dict)
  shared: Optional[Block] = None
  states: Optional[States] = None


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
      `jax.ShapeDtypeStruct`, `...` instead of any tree; those given to
      `generate` are compared with them. None for no such check.
    halves: a `Halves`, its forward in two parts; None if it has none.
    reads_shared: whether `forward` attends to `Cache.shared` too; else its
      cache never has any.
    packs: whether `forward` takes one more argument, `packed [P]` int32: which
      of the `[B * T]` tokens count, from B * T on none. It computes these
      alone; logits of the others, and their slots, are arbitrary.
    target_view: `(target's cache) -> cache`, what a draft model that has no
      cache of its own reads of the target's; None for one that has its own.
    forward_each: as `forward`, but with the logits of each of the models that
      this one consists of, a tuple; None of a single model.
    models: these.
    extra_ids: N, how many ids from `vocab_size` on a prompt may have as well:
      they name rows of a table among the parameters, vectors that are read
      instead of embeddings. No such token is ever written.
  """
  init_cache: Callable[[int, int], Cache]
  forward: Callable[..., tuple[Array, Block]]
  vocab_size: int
  max_length: int = 0
  after_prompt: Optional[Callable[..., Cache]] = None
  abstract_params: Optional[Callable[[], Params]] = None
  halves: Optional["Halves"] = None
  reads_shared: bool = False
  target_view: Optional[Callable[[Cache], Cache]] = None
  packs: bool = False
  forward_each: Optional[Callable[..., tuple[tuple[Array, ...], Block]]] = None
  models: tuple["LanguageModel", ...] = ()
  extra_ids: int = 0


class Halves(NamedTuple):
  """A forward whose first layers run alone, and whose others may go on.

  Attributes:
    early: `(num_layers, params, tokens, positions, cache, mask [B, T, T]) ->
      (logits [B, T, V], block)` that the first layers alone would give, as
      `forward` in all else. If there are no more layers they are all.
    late: `(num_layers, params, block, positions [B, T], cache, mask [B, T, T])
      -> (logits, block)` of the whole model, from a block of `early`, or from
      some of its slots.
    forward: that of the model that they are halves of. A model with another one
      has the first half alone.
    num_layers: of the whole model; `late` goes on after fewer.
  """
  early: Callable[..., tuple[Array, Block]]
  late: Callable[..., tuple[Array, Block]]
  forward: Callable[..., tuple[Array, Block]]
  num_layers: int


def with_forward(model: LanguageModel, change, **fields) -> LanguageModel:
  """Returns a model with `change(forward)` for its forwards, and other fields.

  Args:
    model: any model.
    change: of a forward that returns logits, or a tuple of them.
    **fields: of the model that is returned.
  """
  return model._replace(
      forward=change(model.forward), forward_each=(
          model.forward_each and change(model.forward_each)), **fields)


class MaskedModel(NamedTuple):
  """A masked-diffusion language model, see `canvas.generate`; hashable.

  Attributes:
    language_model: its forward is called with masks that are not causal. The
      logits at a token predict the token itself.
    mask_id: token of a position that is not filled.
    shifted: whether the logits at a token predict the next one, as in models
      that were adapted from autoregressive ones, such as Dream.
    block_causal: whether a block sees itself, the blocks before it and the
      prompt, which sees itself alone; else all tokens see each other.
    causal_prompt: whether the prompt is made of such blocks too (SDAR,
      Fast-dLLM v2). They end where the canvas begins, so that of a prompt that
      is no multiple of blocks the first one is short.
  """
  language_model: LanguageModel
  mask_id: int
  shifted: bool = False
  block_causal: bool = False
  causal_prompt: bool = False


class Head(NamedTuple):
  """A network that drafts from features of the target; hashable.

  It may be given wherever a draft model is, to a target whose features have
  such `HIDDEN_STATES`. A head reads the committed text as pairs: the features
  of a token, and the token after it. Its functions see all rows; their first
  two arguments are the parameters of the head and of the target.

  Attributes:
    init: `(batch, slots) -> state` before any pair: arrays with rows first, and
      `Cache`s with room for `slots` pairs.
    read: `(params, target_params, state, features, tokens [B, T], count [B]) ->
      state` after the first `count` of T more pairs; features are the hidden
      states that the target keeps, a tuple of `[B, T, F]`.
    start: `(params, target_params, state, root [B], nodes) -> draft`, anything
      that a draft needs, of a tree with `nodes` inner nodes; `root` is the
      token of the last pair.
    logits: `(params, target_params, state, draft, tree, level, nodes) ->
      (logits [B, W, V], draft)` of what follows each of the W nodes of a
      level, which are filled in; `nodes` has their `start` and `width`, see
      `expanders.Nodes`.
    vocab_size: V, the target's.
    widths: F of each of the features that it reads.
    forwards: `(depth) -> number` of forwards of the head that a draft of so
      many levels costs.
    depth: levels that it can draft; 0 if there is no limit.
    max_length: positions it knows; 0 if there is no limit.
    abstract_params: see `LanguageModel`.
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


def has_cache(draft: LanguageModel | Head) -> bool:
  """Returns whether a draft model or head has a `DecodeState.draft_cache`."""
  return not isinstance(draft, Head) and draft.target_view is None


def num_models(draft: LanguageModel | Head | None) -> int:
  """Returns of how many models a draft model consists."""
  return max(len(getattr(draft, "models", ())), 1)


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

  The functions see one token of one row. What else they need is in `params`, a
  tree of arrays.

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
