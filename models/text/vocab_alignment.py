"""Common vocabularies of a target and its drafter.

Embeddings are often padded, to different sizes; padding tokens never occur.
"""

import functools

from decoding_jax import types


@functools.lru_cache(maxsize=None)
def cut(lm: types.LanguageModel, vocab_size: int) -> types.LanguageModel:
  """Returns the model with the tokens before `vocab_size`, as one object."""
  def forward(*args):
    logits, block = lm.forward(*args)
    return logits[..., :vocab_size], block

  return lm._replace(forward=forward, vocab_size=vocab_size)


def align(target: types.LanguageModel, draft: types.LanguageModel | None,
          used: int):
  """Removes the padding that only one of two models has; a draft may be None.
  Raises ValueError if one has fewer tokens than `used`, the
  tokenizer's."""
  sizes = {name: lm.vocab_size
           for name, lm in (("target", target), ("draft", draft)) if lm}
  for name, size in sizes.items():
    if size < used:
      raise ValueError(f"vocab_size={size} of the {name}: the tokenizer has "
                       f"{used} entries.")
  size = min(sizes.values())
  return tuple(cut(lm, size) if lm and lm.vocab_size > size else lm
               for lm in (target, draft))
