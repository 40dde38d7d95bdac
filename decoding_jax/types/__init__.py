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
import jax.numpy as jnp

from decoding_jax.types.drafting import (Draws, DraftTree, Drafter, Expander,
                                         FreeLayout, Layout, Pair, SAMPLED,
                                         Seen, Verdict, Verifier)
from decoding_jax.types.models import (AppliedParams, Array, Block, Cache,
                                       Halves, Head, HIDDEN_STATES,
                                       LanguageModel,
                                       LogitsProcessor, MaskedModel, NONE, PAD,
                                       Params, States, UPDATES, has_cache,
                                       num_models, with_forward)

__all__ = [
    "AppliedParams", "Array", "Block", "Cache", "Context",
    "DecodeState", "Decoder", "DraftTree", "Drafter", "Draws", "Expander",
    "FreeLayout", "Generation", "HIDDEN_STATES", "Halves", "Head",
    "LanguageModel", "Layout", "LogitsProcessor", "MaskedModel", "Method",
    "NONE", "PAD", "Pair", "Params", "Reward", "SAMPLED", "Seen", "States",
    "Stats", "UPDATES", "Verdict", "Verifier", "has_cache", "num_models",
    "with_forward"]


class Reward(NamedTuple):
  """The worth of a text, read token after token; hashable.

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
  """Inputs that stay constant from step to step; models and reward are static.

  Attributes:
    target: the model whose distribution is kept, or searched.
    target_params: its parameters.
    draft: the model or the head that drafts, or None.
    draft_params: parameters of `draft`, or of a drafter without a model.
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
    num_shared: L, tokens at the beginning of all prompts that caches keep once;
      static.
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
  num_shared: int = flax.struct.field(pytree_node=False, default=0)


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
    rounds: the same step in parts for two groups of devices, a
      `speculation.rounds.Rounds`; None for a step without such parts.
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
  rounds: Optional[Any] = None


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

  def __repr__(self):
    return self.name


@flax.struct.dataclass
class Stats:
  """Counts per row, taken only while that row runs.

  Attributes:
    target_calls: `[B]` int32, target forwards after the prefill.
    draft_calls: `[B]` int32, draft forwards after the prefill.
    emitted: `[B]` int32, committed tokens after the prompt.
    nodes: `[B]` int32, nodes of the trees: of a tree method as many each step,
      whether all of them are filled in or not; where rows share a budget, the
      row's own.
    accepted_by_depth: `[B, D + 1]` int32, target calls that accepted exactly
      0, 1, ..., D drafted tokens.
    extra: dict of a method's own counts. Tree methods have
      `tested_by_rank [B, K]` and `accepted_by_rank [B, K]`, int32, of the
      children of sibling rank 0, 1, ... on the path. Rules that choose a whole
      path (`layer`, `conditional_ot`, `gbv` and its like, `shared_gumbel`) do
      not test siblings in turn: there those up to the chosen one are counted,
      or all where the path ends. Where a reward is given,
      any method has `reward [B]` float32, of the whole text.
  """
  target_calls: Array
  draft_calls: Array
  emitted: Array
  nodes: Array
  accepted_by_depth: Array
  extra: dict[str, Array]

  @classmethod
  def zeros(cls, batch: int, depth: int = 0, **extra: tuple[int, ...]):
    """Returns counts of 0, in `extra` of these shapes in each row."""
    none = lambda *shape: jnp.zeros((batch, *shape), jnp.int32)
    return cls(none(), none(), none(), none(), none(depth + 1),
               {name: none(*shape) for name, shape in extra.items()})

  def add(self, **counts: Array) -> "Stats":
    """Adds to fields, and in `extra` to counts of other names."""
    extra = {name: x + counts.pop(name) if name in counts else x
             for name, x in self.extra.items()}
    return self.replace(extra=extra, **{
        name: getattr(self, name) + x for name, x in counts.items()})


@flax.struct.dataclass
class DecodeState:
  """The carry of a generation's loop.

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
    top: `top_tokens` and `top_log_probs` of `Generation`, a pair; or None.
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
  top: Optional[tuple[Array, Array]] = None


@flax.struct.dataclass
class Generation:
  """The result of `generate`.

  Attributes:
    tokens: `[B, P + max_new_tokens]` int32: prompt, what was generated, PAD.
    lengths: `[B]` int32, committed length, the prompt included.
    log_probs: `[B, P + max_new_tokens]` float32, natural log of the target's
      own probability (temperature 1, nothing cut off) of each generated token;
      0 at the prompt and after the length.
    stats: counts per row.
    steps: `[]` int32, steps of the loop.
    top_tokens: `[B, P + max_new_tokens, K]` int32, the K most probable tokens
      at each generated token, the most probable first; PAD elsewhere. None
      unless `top_log_probs` was asked for.
    top_log_probs: float32 of the same shape, of these tokens, by the same
      distribution as `log_probs`; 0 elsewhere, or None.
  """
  tokens: Array
  lengths: Array
  log_probs: Array
  stats: Stats
  steps: Optional[Array] = None
  top_tokens: Optional[Array] = None
  top_log_probs: Optional[Array] = None
