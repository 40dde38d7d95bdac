"""Batches of texts as `decoding_jax.generate` takes them, and back."""

import numpy as np

from models.text import tokenizer_files


def encode(tokenizer, texts):
  """Encodes the prompts of a batch.

  Args:
    tokenizer: a `tokenizers.Tokenizer`, as of `models.text.tokenizers.load`.
    texts: list of str, or of lists of tokens, such as the `ids` of what an
      encoder of `models.text.chat_template` returns.

  Returns:
    prompts `[B, P]` int32, right-padded, and lengths `[B]` int32.

  Raises:
    ValueError: if there is no text, or one has no token.
  """
  if isinstance(texts, str):
    raise ValueError(f"texts={texts!r}: a list of texts is needed.")
  rows = [tokenizer_files.encode(tokenizer, text).ids
          if isinstance(text, str) else list(text) for text in texts]
  lengths = np.array([len(row) for row in rows], np.int32)
  if not lengths.all() or not rows:
    which = f"texts[{lengths.argmin()}]" if rows else "texts"
    raise ValueError(f"{which} is empty: a prompt has one token at least.")
  prompts = np.zeros((len(rows), lengths.max()), np.int32)
  prompts[np.arange(prompts.shape[1]) < lengths[:, None]] = np.concatenate(rows)
  return prompts, lengths


def decode(tokenizer, out, prompt_lengths) -> list[str]:
  """Decodes what was written after each prompt.

  Args:
    tokenizer: that of the prompts.
    out: a `decoding_jax.Generation`.
    prompt_lengths: `[B]` int32, as of `encode`.

  Returns:
    The texts, without special tokens, such as those that end them.

  Raises:
    ValueError: if there is not one length a row.
  """
  tokens, ends = np.asarray(out.tokens), np.asarray(out.lengths)
  starts = np.asarray(prompt_lengths)
  if starts.shape != ends.shape:
    raise ValueError(f"prompt_lengths has shape {starts.shape}: one for each "
                     f"of {len(ends)} rows is needed.")
  return tokenizer.decode_batch([row[start:end].tolist() for row, start, end
                                 in zip(tokens, starts, ends)])
