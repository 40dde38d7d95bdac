"""Arrays and contracts of decoding on a canvas.

A masked-diffusion language model sees a prompt and a canvas, L positions that
follow it, of which some are masked; and it gives a distribution at each of
them. Decoding fills all positions, several a forward. Besides the axes of
`decoding_jax.types`:

  L  positions of a canvas     S  positions of a block
  D  canvases that are tried at once
"""

from typing import Any, Callable, NamedTuple, Optional

import flax.struct

from decoding_jax.types import Array, MaskedModel, Params


class Method(NamedTuple):
  """A way to fill a canvas; hashable."""
  name: str  # As in a table, with its sizes
  # `(params, confidence [L] float32, eligible [L] bool, start []) -> [L] bool`,
  # which of the eligible positions of one row to fill, at least one of them.
  # The current block begins at position `start`.
  rule: Callable[..., Array]
  drafts: int = 1  # D, canvases a forward; more than 1: see `methods.free_dave`
  # Whether the positions after an end of text are filled with ends of text at
  # once
  ends_text: bool = False
  needs_params: bool = False  # Whether the rule has parameters


@flax.struct.dataclass
class Context:
  """Inputs that stay constant from step to step."""
  model: MaskedModel = flax.struct.field(pytree_node=False)
  params: Params
  method: Method = flax.struct.field(pytree_node=False)
  method_params: Params  # parameters of its rule, or None
  # See `confidence`.
  confidence: Callable[..., Array] = flax.struct.field(pytree_node=False)
  block: int = flax.struct.field(pytree_node=False)  # S
  warper: Any  # a `sampling.LogitsWarper`
  keys: Array  # `[B]` random keys, of the noise of each row
  prompts: Array  # `[B, P]` int32, left-padded
  padding: Array  # `[B]` int32, slots before the prompt
  eos_id: Array  # `[]` int32, `NONE` for none


@flax.struct.dataclass
class State:
  """The loop's carry."""
  # `[B, L]` int32, the mask's token where a position is not filled.
  canvas: Array
  # `[B, D, L]` int32, canvases of the next forward; the first one is `canvas`.
  drafts: Array
  # `[B, L]` int32, the forward that filled each position, from 0 on; `NONE`
  # where it is not filled.
  filled_at: Array
  forwards: Array  # `[B]` int32, forwards a row has taken
  # `[B]` int32, those that read prompt and canvas again; all without a cache.
  # With one of a block-causal model prompts are read once.
  whole_forwards: Array
  steps: Array  # `[B]` int32, times that the rule has filled positions
  # `[B, F, L]` float32 of confidences and `[B, F, L]` int32 of tokens, of each
  # forward; None if it is not kept.
  trace: Any = None
  # Keys and values of prompt and canvas, as a `Block`; None without a cache.
  store: Any = None
  # `[B]` int32, the block at whose beginning a row was stored, or of a
  # block-causal model the first one that is not stored; `NONE` at first.
  stored: Optional[Array] = None


@flax.struct.dataclass
class Filled:
  """The result of `canvas.generate`."""
  tokens: Array  # `[B, L]` int32; after an end of text, ends of text
  # `[B]` int32, tokens up to the end of text, which is counted; L without one
  lengths: Array
  # `[B, L]` int32, the forward that filled each position; `NONE` after the end
  # where none did
  filled_at: Array
  # `[B]` int32, forwards that a row has taken, of all its drafts together
  forwards: Array
  whole_forwards: Array  # `[B]` int32, those that read prompt and canvas again
  # `[B]` int32, times that the rule has filled places: the forwards of a method
  # without drafts
  steps: Array
  trace: Any = None  # See `State`
