"""A decoder that sees the first and the newest tokens, as its own drafter.

Xiao et al. 2023, "StreamingLLM" (arXiv 2309.17453): the first tokens, on which
much of the attention rests whatever they are, and the newest ones give nearly
the distribution of all of a long text. As drafters: "TriForce" (arXiv
2404.11912, section 4.2) and "MagicDec" (arXiv 2408.11049). Parameters, keys and
values are the target's, so that nothing is prefilled or kept for the drafter:
before each tree the tokens that it sees are copied from the target's cache.
"""

import functools

from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib
from models.transformer import architecture
from models.transformer import language_models

# First tokens that are seen, as in StreamingLLM.
SINKS = 4


@functools.lru_cache(maxsize=None)
def recent_window(config: architecture.Config,
                  window: int) -> types.LanguageModel:
  """Returns a decoder that sees the first and the newest committed tokens.

  Positions count in the whole text. Drafted tokens are seen as well.

  Args:
    config: the architecture of the target.
    window: newest tokens that are seen, in addition to the first `SINKS`.

  Returns:
    A `LanguageModel` for a target of these parameters; equal arguments give the
    same object.

  Raises:
    ValueError: for a window that is not positive, or layers that have one.
  """
  if window < 1:
    raise ValueError(f"window={window}: at least 1 is needed.")
  if config.window:
    raise ValueError(f"the target has layers with a window of {config.window}, "
                     "which count positions by slots: one without is needed.")
  if config.linear_key_heads:
    raise ValueError(f"the target has linear_key_heads="
                     f"{config.linear_key_heads}: its states hold all tokens, "
                     "and a window of the newest needs layers of attention.")
  lm = language_models.language_model(config)
  return lm._replace(
      target_view=lambda cache: cache_lib.latest(cache, SINKS, window))
