"""Drafters with another tokenizer: their tokens under the ids of the target.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, section 3.3): a
drafter keeps the tokens that the target has too, and gives others probability 0
in the target's vocabulary. Any method drafts from it exactly.

Tokens are the same if they add the same bytes: "Ġthe" of a byte-level tokenizer
is "▁the" of SentencePiece. The drafter reads the text as the target has divided
it, since shapes are static and a text cannot be encoded again. A missing token
is read as the last of the tokens that its own tokenizer makes of it.
"""

import functools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types
from models.text import tokenizers

# A token of byte fallback, which may add the same byte as another token.
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_SPACES = str.maketrans("\u0120\u2581", "  ")


class Table(NamedTuple):
  """Tokens of a target as tokens of a drafter; V is the target's."""
  ids: types.Array  # `[V]` int32, what the drafter reads instead of each token
  common: types.Array  # `[V]` bool, tokens that the drafter has too, and drafts


class MappedParams(NamedTuple):
  """Parameters of `mapped`: `model`, the drafter's, and the `table`."""
  model: types.Params
  table: Table


@functools.lru_cache(maxsize=None)
def mapped(draft: types.LanguageModel, vocab_size: int) -> types.LanguageModel:
  """Returns a drafter as a language model of the target's vocabulary. Its
  parameters are `MappedParams`. Equal arguments give the same object."""
  def forward(params, tokens, positions, cache, block, slot, mask):
    ids, common = map(jnp.asarray, params.table)
    logits, block = draft.forward(params.model, ids[tokens], positions, cache,
                                  block, slot, mask)
    common, logits = common[None, None], logits[..., ids]
    # A draft that excludes all common tokens has no distribution of them.
    kept = common & (logits > -jnp.inf)
    none = ~kept.any(axis=-1, keepdims=True)
    logits = jnp.where(none, jnp.zeros((), logits.dtype), logits)
    return jnp.where(common & (kept | none), logits, -jnp.inf), block

  def after_prompt(params, cache):
    return draft.after_prompt(params.model, cache)

  def abstract_params():
    shape = functools.partial(jax.ShapeDtypeStruct, (vocab_size,))
    return MappedParams(
        draft.abstract_params() if draft.abstract_params else ...,
        Table(shape(jnp.int32), shape(jnp.bool_)))

  return draft._replace(
      forward=forward, vocab_size=vocab_size, abstract_params=abstract_params,
      after_prompt=after_prompt if draft.after_prompt else None,
      halves=None, packs=False)


def table(target, draft, vocab_size: int, draft_vocab_size: int,
          ends=()) -> Table:
  """Returns the `Table` of two tokenizers, of numpy arrays. `ends` are pairs of
  a token of the target and one of the drafter that mean the same in spite of
  their spelling, such as the ends of a text. Raises ValueError if a model has
  fewer tokens than its tokenizer, or no token is common."""
  for name, tokenizer, size in (("target", target, vocab_size),
                                ("draft", draft, draft_vocab_size)):
    if tokenizers.used_size(tokenizer, size) > size:
      raise ValueError(f"vocab_size={size} of the {name}: its tokenizer has "
                       f"{tokenizers.size(tokenizer)} entries.")
  ours = _meanings(target, vocab_size)
  theirs = _meanings(draft, draft_vocab_size)
  of_meaning = _tokens_of(theirs, draft)
  ids, common = np.zeros(vocab_size, np.int32), np.zeros(vocab_size, bool)
  for meaning, token in _tokens_of(ours, target).items():
    common[token] = meaning in of_meaning
  pairs = {token: of_meaning[meaning] for token, meaning in ours.items()
           if meaning in of_meaning}
  taken = set(pairs.values())
  for token, other in ends:
    if token not in pairs and other not in taken and other < draft_vocab_size:
      pairs[token], common[token] = other, True
  if not common.any():
    raise ValueError("no token of the draft's tokenizer is one of the "
                     "target's.")
  last = _last_pieces(draft, {token: text for token, (_, text) in ours.items()
                              if token not in pairs})
  pairs |= {x: piece for x, piece in last.items() if piece < draft_vocab_size}
  ids[list(pairs)] = list(pairs.values())
  return Table(ids, common)


def _meanings(tokenizer, size):
  """Returns a dict from ids below a size to (special or not, the bytes)."""
  vocabulary = tokenizer.get_vocab()
  added = tokenizer.get_added_tokens_decoder()
  try:
    bytes_of = tokenizers.pieces(tokenizer)
  except (ValueError, KeyError):  # Of a type whose bytes are unknown.
    bytes_of = {token: text.translate(_SPACES).encode()
                for text, token in vocabulary.items()}
  special = lambda token: token in added and added[token].special
  return {token: (True, text.encode()) if special(token)
          else (False, bytes_of[token])
          for text, token in vocabulary.items() if token < size}


def _tokens_of(meanings, tokenizer):
  """Returns the inverse; of equal tokens byte fallback comes last."""
  is_byte = lambda token: bool(_BYTE.fullmatch(tokenizer.id_to_token(token)))
  order = sorted(meanings, key=lambda token: (not is_byte(token), -token))
  return {meanings[token]: token for token in order}


def _last_pieces(tokenizer, texts):
  """Returns the last token of each of `texts`, a dict from ids to bytes."""
  encodings = tokenizer.encode_batch(
      [text.decode("utf-8", "replace") for text in texts.values()],
      add_special_tokens=False)
  return {token: encoding.ids[-1] for token, encoding in zip(texts, encodings)
          if encoding.ids}
