"""A reward model as a function of texts, whatever its tokenizer is.

    score = text_scorer.scorer(lm, params, tokenizer, capacity=512)
    reward = dj.rewards.on_host(score, decode=target_tokenizer.decode,
                                max_tokens=128)

A reward model with the tokens of the target is faster on the device, see
`models.transformer.reward_model`.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np

from decoding_jax import types
from models.text import tokenizer_files
from models.transformer import language_models
from models.transformer import reward_model


def scorer(lm: types.LanguageModel, params: types.Params, tokenizer,
           capacity: int) -> Callable[..., np.ndarray]:
  """Returns `(texts, prompts) -> [N]` float32, a model's output at the ends of
  texts. `lm` has `outputs=1` and reads the last `capacity` tokens of prompt and
  text, encoded together. It runs on a CPU, which a callback of a program on
  another device may use. Raises ValueError for a capacity that the model does
  not have."""
  reward_model.check_capacity(lm, capacity)
  params = jax.device_put(params, jax.local_devices(backend="cpu")[0])

  def score(texts: Sequence[str], prompts: Sequence[str]):
    ids = [tokenizer_files.encode(tokenizer, prompt + text).ids[-capacity:]
           for text, prompt in zip(texts, prompts)]
    # A program for each power of 2, of rows that are all equally long.
    tokens = np.zeros((1 << (len(ids) - 1).bit_length(), capacity), np.int32)
    last = np.zeros(len(tokens), np.int32)
    for i, row in enumerate(ids):
      tokens[i, :len(row)], last[i] = row, max(len(row) - 1, 0)
    return np.asarray(_outputs(lm, params, tokens, last))[:len(ids)]

  return score


@functools.partial(jax.jit, static_argnums=0)
def _outputs(lm, params, tokens, last):
  outputs = language_models.causal_logits(lm, params, tokens)[..., 0]
  return outputs[np.arange(len(last)), last].astype(np.float32)
