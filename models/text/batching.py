"""Batches of texts as `decoding_jax.generate` takes them, and back."""

import numpy as np

from models.text import tokenizer_files
from models.text import tokenizers


def encode(tokenizer, texts):
  """Encodes the prompts of a batch.

  `texts` are a list of str, or of lists of tokens, such as the `ids` of what an
  encoder of `models.text.chat_template` returns. Returns prompts `[B, P]`
  int32, right-padded, and lengths `[B]` int32. Raises ValueError if there is no
  text, or one has no token.
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
  """Decodes what was written after each prompt, without special tokens.

  `out` is a `decoding_jax.Generation`; `prompt_lengths` are `[B]` int32. A
  prompt and its text make the text of all tokens: a blank between them is in
  the latter. Raises ValueError if there is not one length a row.
  """
  return [tokenizers.decode(tokenizer, row, prompt)
          for prompt, row in _divided(out, prompt_lengths)]


def stream(tokenizer, outs, prompt_lengths):
  """Decodes texts while they are written, into parts that never change.

  A part is what the last tokens have added for certain: a character whose bytes
  are still to come is held back until they are there.

    for out, parts in stream(tokenizer, dj.stream(...), lengths):
      print(parts[0], end="", flush=True)

  Yields pairs of a `Generation` and a list of B texts, without special tokens;
  the last one a second time, with what was held back. The texts of a row make
  what `decode` returns for it. Raises ValueError as `decode`.
  """
  out, shown = None, None
  for out in outs:
    rows = _divided(out, prompt_lengths)
    shown = shown or [0] * len(rows)
    texts = [tokenizers.decode_stable_prefix(tokenizer, row, prompt)
             for prompt, row in rows]
    yield out, [text[n:] for text, n in zip(texts, shown)]
    # A text may end before what was settled: special tokens are left out.
    shown = [max(len(text), n) for text, n in zip(texts, shown)]
  if out is not None:
    texts = decode(tokenizer, out, prompt_lengths)
    yield out, [text[n:] for text, n in zip(texts, shown)]


def _divided(out, prompt_lengths):
  """Returns the tokens of each prompt, and those after it."""
  tokens, ends = np.asarray(out.tokens), np.asarray(out.lengths)
  starts = np.asarray(prompt_lengths)
  if starts.shape != ends.shape:
    raise ValueError(f"prompt_lengths has shape {starts.shape}: one for each "
                     f"of {len(ends)} rows is needed.")
  return [(row[:start].tolist(), row[start:end].tolist())
          for row, start, end in zip(tokens, starts, ends)]
