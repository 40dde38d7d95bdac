"""Search for many words at once, byte by byte, by bit operations.

An automaton looks for several byte strings at once (Shift-And, Baeza-Yates and
Gonnet 1992). Every string, a *form*, has a bit for each of its bytes; that bit
is set while the text ends with the form up to this byte. A byte of text shifts
all bits by one and keeps those that match the byte: a few operations on words
of 32 bits, whatever the number of forms.

A form counts where no word byte is next to it: "cat" is not in "category". Word
bytes are the ASCII letters and digits, the underscore, and all bytes from 0x80
on, so that words of any script are words; typographic quotes and dashes are
therefore parts of words too. The end of the text is a boundary.
"""

from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import bits
from decoding_jax.types import Array


@flax.struct.dataclass
class Vocabulary:
  """The bytes of all tokens."""
  pieces: Array  # `[V, L]` uint8, the bytes of each token, padded with 0
  sizes: Array  # `[V]` int32, the number of bytes of each token


@flax.struct.dataclass
class Automaton:
  """Forms as bits; bit b of word w is number `32 w + b`."""
  agree: Array  # `[256, W]` uint32, the bits that match a byte
  first: Array  # `[W]` uint32, the bits of first bytes
  last: Array  # `[W]` uint32, the bits of last bytes


@flax.struct.dataclass
class State:
  """The state of an automaton after the generated text."""
  active: Array  # `[W]` uint32, the bits that are set
  matched: Array  # `[W]` uint32, last bits of forms before a boundary
  in_word: Array  # `[]` bool, whether the last byte is a word byte


def vocabulary(pieces: Sequence[bytes]) -> Vocabulary:
  """Returns the table of the bytes of tokens, b"" for special tokens."""
  sizes = np.array([len(piece) for piece in pieces], np.int32)
  table = np.zeros((len(pieces), max(1, sizes.max(initial=0))), np.uint8)
  table[np.arange(table.shape[1]) < sizes[:, None]] = np.frombuffer(
      b"".join(pieces), np.uint8)
  return Vocabulary(jnp.asarray(table), jnp.asarray(sizes))


def build(forms: Sequence[bytes], fold_case: bool, words: int | None = None):
  """Builds the automaton of forms on the host, and the last bit of each."""
  text = np.frombuffer(b"".join(forms), np.uint8)
  sizes = np.array([len(form) for form in forms], np.int64)
  lasts = np.cumsum(sizes) - 1
  agree = text == np.arange(256)[:, None]
  if fold_case:
    upper, lower = slice(ord("A"), ord("Z") + 1), slice(ord("a"), ord("z") + 1)
    agree[upper] = agree[lower] = agree[upper] | agree[lower]
  words = words or num_words(forms)
  return Automaton(
      bits.pack(agree, words),
      bits.pack(_ones(len(text), lasts + 1 - sizes), words),
      bits.pack(_ones(len(text), lasts), words)), lasts


def num_words(forms: Sequence[bytes]) -> int:
  """Returns W, the words of 32 bits of an automaton of these forms."""
  return max(1, bits.num_words(sum(map(len, forms))))


def init(table: Vocabulary, automaton: Automaton, prompt, length) -> State:
  """Returns the state after a prompt `[P]`, which its last byte decides."""
  order = jnp.arange(len(prompt))
  sizes = jnp.where(order < length, table.sizes[prompt], 0)
  # Special tokens have no bytes: the last byte is of a token before them.
  last = prompt[jnp.max(jnp.where(sizes > 0, order, 0))]
  byte = table.pieces[last, table.sizes[last] - 1]
  none = jnp.zeros_like(automaton.first)
  return State(none, none, _is_word(byte) & (sizes > 0).any())


def advance(table: Vocabulary, automaton: Automaton, state: State, tokens,
            valid) -> State:
  """Returns the state after more `tokens [T]`, where `valid [T]`.

  The loop takes a step for every byte and for every token without bytes: the
  padding of the table costs nothing.
  """
  sizes = jnp.where(valid, table.sizes[tokens], 0)
  pieces = table.pieces[tokens]

  def turn(carry):
    token, i, state = carry
    size = sizes[token]
    state = jax.tree.map(
        lambda new, old: jnp.where(i < size, new, old),
        _step(automaton, state, pieces[token, i]), state)
    over = i + 1 >= size
    return token + over, jnp.where(over, 0, i + 1), state

  # Stop after the last token that has bytes.
  end = jnp.max(jnp.where(sizes > 0, jnp.arange(len(tokens)) + 1, 0),
                initial=0)
  start = (jnp.int32(0), jnp.int32(0), state)
  return jax.lax.while_loop(lambda carry: carry[0] < end, turn, start)[2]


def present(automaton: Automaton, state: State):
  """Returns `[W]` uint32, last bits of the forms met if the text ends here."""
  return state.matched | (state.active & automaton.last)


def _step(automaton, state, byte):
  """Returns the state after one more byte."""
  is_word = _is_word(byte)
  matched = jnp.where(is_word, state.matched, present(automaton, state))
  carried = jnp.concatenate([jnp.zeros(1, jnp.uint32),
                             state.active[:-1] >> (bits.SIZE - 1)])
  moved = ((state.active << 1) | carried) & ~automaton.first
  begun = jnp.where(state.in_word, jnp.uint32(0), automaton.first)
  return State((moved | begun) & automaton.agree[byte], matched, is_word)


def _is_word(byte):
  letter = byte | 0x20
  return ((letter >= ord("a")) & (letter <= ord("z")) | (byte >= 0x80)
          | (byte >= ord("0")) & (byte <= ord("9")) | (byte == ord("_")))


def _ones(size, places):
  marks = np.zeros(size, bool)
  marks[places] = True
  return marks
