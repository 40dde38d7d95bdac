"""Words that a text must, or must not, contain.

The parameters of these rewards are an `automata.Vocabulary`. The value of a
text that is not finished is that of the text if it ended there: "cat" is in
"the cat", though no longer in "the category".
"""

import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import bits
from decoding_jax.rewards import keyword_automaton
from decoding_jax.rewards import min_tokens
from decoding_jax.types import Array, Reward


@flax.struct.dataclass
class Concepts:
  """The constraint of `lexical`; a leading `B` where it is one of many rows.

  Attributes:
    automaton: of all forms of the row.
    lasts: `[C, W]` uint32, the last bits of the forms of each concept.
    count: `[]` int32, concepts of the row, at most C.
  """
  automaton: keyword_automaton.Automaton
  lasts: Array
  count: Array


def concepts(rows: Sequence[Sequence[Sequence[str]]], pieces: Sequence[bytes],
             max_new_tokens: int | None = None,
             fold_case: bool = False) -> Concepts:
  """Constraints of a batch.

  Args:
    rows: for each row its concepts, for each concept its surface forms; rows
      may differ in how many they have, and may have none.
    pieces: V byte strings, those of the tokens; b"" for special tokens.
    max_new_tokens: the budget that the concepts must fit in; None: any.
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
  """The share of a row's `Concepts` that the text has; 1 if there are none."""
  return Reward(
      init=lambda params, constraint, prompt, length: keyword_automaton.init(
          params, constraint.automaton, prompt, length),
      advance=lambda params, constraint, state, tokens, valid: keyword_automaton
      .advance(params, constraint.automaton, state, tokens, valid),
      value=_coverage,
      maximum=1.0)


def hard_coverage(values):
  """`[...]` bool, where a coverage means that no concept is missing."""
  return values >= 1


def banned(phrases: Sequence[str], fold_case: bool = False) -> Reward:
  """0 if the text has one of the phrases, at word boundaries; else 1."""
  return _banned(tuple(_forms(phrases, "phrases", fold_case)), fold_case)


@functools.lru_cache(maxsize=None)
def _banned(forms, fold_case):
  automaton, _ = keyword_automaton.build(forms, fold_case)

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


def _coverage(params, constraint, state):
  del params
  present = keyword_automaton.present(constraint.automaton, state)
  covered = ((constraint.lasts & present[None]) != 0).any(axis=-1).sum()
  share = covered / jnp.maximum(1, constraint.count)
  return jnp.where(constraint.count == 0, 1, share).astype(jnp.float32)


def _forms(concept, name, fold_case):
  """The forms of a concept as bytes; `name` is for errors."""
  if isinstance(concept, (str, bytes)) or not len(concept):
    raise ValueError(
        f"{name}={concept!r}: a list of at least one form is needed.")
  for form in concept:
    if not form:
      raise ValueError(f"{name}={list(concept)!r} has an empty form.")
  forms = [form.encode() if isinstance(form, str) else bytes(form)
           for form in concept]
  # That of bytes changes ASCII letters alone.
  return [form.lower() for form in forms] if fold_case else forms


def _check(parts, row, name, max_new_tokens):
  """Raises an error for concepts that no text could have."""
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
  """`Concepts` of one row, in numpy."""
  automaton, lasts = keyword_automaton.build(forms, fold_case, words)
  place = dict(zip(forms, lasts))
  marks = np.zeros((width, words * bits.SIZE), bool)
  for j, concept in enumerate(row):
    marks[j, [place[form] for form in concept]] = True
  return Concepts(automaton, bits.pack(marks, words), np.int32(len(row)))
