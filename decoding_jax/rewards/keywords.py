"""Rewards of texts that contain given words, or avoid them.

The parameters of these rewards are a `keyword_automaton.Vocabulary`. The value
of an unfinished text is its value if it ended there: "cat" is in "the cat",
though no longer in "the category".
"""

import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import programs
from decoding_jax.kernels import bits
from decoding_jax.rewards import keyword_automaton
from decoding_jax.rewards import min_tokens
from decoding_jax.types import Array, Reward


@flax.struct.dataclass
class Concepts:
  """The constraint of `lexical`, with a leading axis `B` for a batch."""
  automaton: keyword_automaton.Automaton  # Of all forms of the row
  lasts: Array  # `[C, W]` uint32, the last bits of the forms of each concept
  count: Array  # `[]` int32, concepts of the row, at most C


def concepts(rows: Sequence[Sequence[Sequence[str]]], pieces: Sequence[bytes],
             max_new_tokens: int | None = None,
             fold_case: bool = False) -> Concepts:
  """Returns the constraints of a batch for `lexical`.

  Args:
    rows: for each row its concepts, for each concept its surface forms; rows
      may have different numbers of concepts, and none.
    pieces: the bytes of V tokens; b"" for special tokens.
    max_new_tokens: the budget that the concepts must fit in; None for any.
    fold_case: whether the case of ASCII letters does not matter.

  Returns:
    `Concepts` with a leading axis `B`.

  Raises:
    ValueError: naming the row and the form, for a concept or a form that is
      empty, that the vocabulary cannot spell, or that the budget is too small
      for.
  """
  if not rows:
    raise ValueError("rows is empty: the concepts of at least one are needed.")
  rows = [[_forms(concept, f"rows[{i}][{j}]", fold_case)
           for j, concept in enumerate(row)] for i, row in enumerate(rows)]
  parts = min_tokens.parts(tuple(pieces), fold_case)
  for i, row in enumerate(rows):
    _check(parts, row, f"rows[{i}]", max_new_tokens)
  unique = [sorted({form for concept in row for form in concept})
            for row in rows]
  words = max(map(keyword_automaton.num_words, unique))
  width = max(1, *map(len, rows))
  built = [_build(row, forms, width, words, fold_case)
           for row, forms in zip(rows, unique)]
  return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *built)


@functools.lru_cache(maxsize=None)
def lexical() -> Reward:
  """Returns the reward that is the share of `Concepts` that a text contains.

  Of a row without concepts it is 1.
  """
  return _of_concepts(lambda constraint, state: _share(
      constraint, _present(constraint, state)))


@functools.lru_cache(maxsize=None)
def avoided() -> Reward:
  """Returns the reward that is the share of `Concepts` that a text lacks.

  It is `banned` with phrases of each row's own. Of a row without concepts it is
  1.
  """
  return _of_concepts(lambda constraint, state: _share(
      constraint, constraint.count - _present(constraint, state)))


def hard_coverage(values):
  """Returns `[...]` bool, whether a coverage means that no concept is missing.
  """
  return values >= 1


@programs.memoized
def banned(phrases: Sequence[str], fold_case: bool = False) -> Reward:
  """Returns a reward of 0 for texts with one of the phrases, 1 for others.

  Phrases count at word boundaries, as forms of `concepts` do.
  """
  automaton, _ = keyword_automaton.build(
      _forms(phrases, "phrases", fold_case), fold_case)

  def value(params, constraint, state):
    del params, constraint
    return 1 - (keyword_automaton.present(automaton, state) != 0).any().astype(
        jnp.float32)

  return Reward(
      init=lambda params, _, prompt, length: keyword_automaton.init(
          params, automaton, prompt, length),
      advance=lambda params, _, state, tokens, valid: keyword_automaton.advance(
          params, jax.tree.map(jnp.asarray, automaton), state, tokens, valid),
      value=value, maximum=1.0)


def _of_concepts(value):
  """Returns a reward from a function of the constraint and the state."""
  return Reward(
      init=lambda params, constraint, prompt, length: keyword_automaton.init(
          params, constraint.automaton, prompt, length),
      advance=lambda params, constraint, state, tokens, valid: keyword_automaton
      .advance(params, constraint.automaton, state, tokens, valid),
      value=lambda params, constraint, state: value(constraint, state),
      maximum=1.0)


def _present(constraint, state):
  """Returns `[]` int32, the number of concepts that the text contains."""
  present = keyword_automaton.present(constraint.automaton, state)
  return ((constraint.lasts & present[None]) != 0).any(axis=-1).sum(
      dtype=jnp.int32)


def _share(constraint, number):
  share = number / jnp.maximum(1, constraint.count)
  return jnp.where(constraint.count == 0, 1, share).astype(jnp.float32)


def _forms(concept, name, fold_case):
  """Returns the forms of a concept as bytes; `name` is for errors."""
  if isinstance(concept, (str, bytes)) or not len(concept):
    raise ValueError(
        f"{name}={concept!r}: a list of at least one form is needed.")
  for form in concept:
    if not form:
      raise ValueError(f"{name}={list(concept)!r} has an empty form.")
  forms = [form.encode() if isinstance(form, str) else bytes(form)
           for form in concept]
  # `lower` of bytes changes ASCII letters only.
  return [form.lower() for form in forms] if fold_case else forms


def _check(parts, row, name, max_new_tokens):
  """Raises ValueError for concepts that no text can contain."""
  for j, forms in enumerate(row):
    for form in forms:
      if min_tokens.fewest_tokens(parts, form) == float("inf"):
        raise ValueError(f"{name}[{j}]: the vocabulary cannot spell the form "
                         f"{form.decode('utf-8', 'replace')!r}.")
  if max_new_tokens is None:
    return
  fewest = min_tokens.fewest_tokens_of_all(parts, row)
  if fewest > max_new_tokens:
    shortest = [
        min(forms, key=lambda form: min_tokens.fewest_tokens(parts, form))
        for forms in row
    ]
    raise ValueError(
        f"{name}: the forms "
        f"{[form.decode('utf-8', 'replace') for form in shortest]} take at "
        f"least {fewest} tokens, max_new_tokens={max_new_tokens}.")


def _build(row, forms, width, words, fold_case):
  """Returns the `Concepts` of one row, of numpy arrays."""
  automaton, lasts = keyword_automaton.build(forms, fold_case, words)
  bit = dict(zip(forms, lasts))
  marks = np.zeros((width, words * bits.SIZE), bool)
  for j, concept in enumerate(row):
    marks[j, [bit[form] for form in concept]] = True
  return Concepts(automaton, bits.pack(marks, words), np.int32(len(row)))
