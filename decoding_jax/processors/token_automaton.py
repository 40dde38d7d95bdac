"""Texts that a finite automaton allows, and the automata of stop strings."""

from collections.abc import Mapping, Sequence

import flax.struct
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import bits
from decoding_jax.types import Array, LogitsProcessor, NONE
from decoding_jax.validation import values

_BYTES = 256


@flax.struct.dataclass
class Automaton:
  """An automaton over tokens; state 0 is the first one.

  Tokens that lead to the same states everywhere are of one class, so that the
  table of Q states has C columns instead of V.

  Attributes:
    allowed: `[Q, V / 32]` uint32, bit b of word w for token `32 w + b`.
    classes: `[V]` int32, the class of each token.
    following: `[Q, C]` int32, the state after a token; `NONE` where it must
      not stand.
  """
  allowed: Array
  classes: Array
  following: Array


def _advance(params, state, token):
  # After a token that must not stand here, whatever follows must not either.
  return jnp.where(state == NONE, NONE,
                   params.following[state, params.classes[token]])


def _process(params, state, logits):
  if len(logits) != len(params.classes):
    raise ValueError(f"an automaton over {len(params.classes)} tokens: one "
                     f"over {len(logits)}, those of the model, is needed.")
  allowed = bits.unpack(params.allowed[state], len(logits))
  return jnp.where(allowed & (state != NONE), logits, -jnp.inf)


def _init(params):
  if not isinstance(params, Automaton):
    raise ValueError(f"processor_params is of type {type(params).__name__}: an "
                     "Automaton, as dj.processors.regex makes, is needed.")
  return jnp.int32(0)


_AUTOMATON = LogitsProcessor(init=_init, advance=_advance, process=_process)


def automaton() -> LogitsProcessor:
  """Allows the tokens that its automaton allows after those generated.

  Returns:
    The processor; its parameters are an `Automaton`.
  """
  return _AUTOMATON


def table(following) -> Automaton:
  """An automaton from the table of its transitions, on the host.

  Args:
    following: `[Q, V]` int, the state after each token; `NONE` where the token
      must not stand.

  Returns:
    The automaton, of numpy arrays.

  Raises:
    ValueError: if a state is not one of Q, or allows no token at all.
  """
  following = np.asarray(values.array("following", following))
  if following.ndim != 2 or not np.issubdtype(following.dtype, np.integer):
    raise ValueError(f"following has shape {following.shape} and type "
                     f"{following.dtype}: integers [Q, V] are needed.")
  states = len(following)
  if (following < NONE).any() or (following >= states).any():
    raise ValueError(f"following has states from {following.min()} to "
                     f"{following.max()}: {NONE} to {states - 1} are needed.")
  allowed = following != NONE
  stuck = np.flatnonzero(~allowed.any(axis=1))
  if len(stuck):
    raise ValueError(f"following[{stuck[0]}] allows no token: where a text is "
                     "over, allow the token that ends it.")
  return _automaton([(np.flatnonzero(some), row[some])
                     for row, some in zip(following, allowed)],
                    following.shape[1])


def from_transitions(transitions: Mapping[int, Mapping[int, int]], start: int,
                     finals, vocab_size: int, eos_id) -> Automaton:
  """An automaton from the transitions of states, each a token and a state.

  Args:
    transitions: state -> token -> state; names of states are any integers.
    start: the first state.
    finals: states in which a text may end.
    vocab_size: V.
    eos_id: the token that ends a text there, or several such tokens.

  Returns:
    The automaton. States from which no text can end are left out.

  Raises:
    ValueError: if no text is possible, or there is no `eos_id`.
  """
  ends = end_tokens(eos_id, vocab_size)
  arcs = {state: _without(tokens, ends)
          for state, tokens in transitions.items()}
  finals = set(finals)
  live = _live(arcs, finals)
  if start not in live:
    raise ValueError("the vocabulary cannot spell any text that is allowed.")
  numbers = {state: i for i, state in enumerate([start, *(live - {start})])}
  over, rows = len(numbers), []
  for state in numbers:
    tokens = {token: numbers[to] for token, to in arcs.get(state, {}).items()
              if to in live}
    rows.append(tokens | dict.fromkeys(ends if state in finals else (), over))
  rows.append(dict.fromkeys(ends, over))
  return _automaton(
      [(np.fromiter(tokens, int), np.fromiter(tokens.values(), int))
       for tokens in rows], vocab_size)


def stop_strings(strings: Sequence[str], pieces: Sequence[bytes],
                 eos_id) -> Automaton:
  """Ends a text where it has one of some strings, wherever in a token it ends.

  Aho and Corasick 1975, over the bytes of tokens. The text keeps the string,
  and what its last token has after it; then comes a token that ends texts.

  Args:
    strings: none of them empty.
    pieces: the bytes of V tokens, as of `models.text.tokenizers.pieces`.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    The automaton; it allows any token until then.

  Raises:
    ValueError: without strings, for an empty one, or if there is no `eos_id`.
  """
  words = [text.encode() if isinstance(text, str) else bytes(text)
           for text in strings]
  if isinstance(strings, (str, bytes)) or not words or not all(words):
    raise ValueError(f"strings={strings!r}: a list of at least one string is "
                     "needed, none of them empty.")
  check_pieces(pieces)
  ends = end_tokens(eos_id, len(pieces))
  steps, found = _search(words)
  # After a whole word the search stays where it is.
  steps[found] = found
  following = np.tile(np.arange(len(steps))[:, None], len(pieces))
  for token, piece in enumerate(pieces):
    for byte in piece:
      following[:, token] = steps[following[:, token], byte]
  following[found] = NONE
  following[found, ends] = found
  return table(following)


def check_pieces(pieces):
  """Raises ValueError unless they are a list of byte strings."""
  if isinstance(pieces, Sequence) and all(isinstance(piece, bytes)
                                          for piece in pieces):
    return
  raise ValueError(f"pieces of type {type(pieces).__name__}: a list of the "
                   "bytes of each token is needed, as "
                   "models.text.tokenizers.pieces(tokenizer) returns.")


def end_tokens(eos_id, vocab_size) -> tuple[int, ...]:
  """The tokens that end a text.

  Args:
    eos_id: one, or several.
    vocab_size: V.

  Raises:
    ValueError: if there is none, or one is not in the vocabulary.
  """
  ids = np.atleast_1d(np.asarray([] if eos_id is None else eos_id))
  if not ids.size or not np.issubdtype(ids.dtype, np.integer) or (
      (ids < 0) | (ids >= vocab_size)).any():
    raise ValueError(f"eos_id={eos_id}: a token that ends texts, 0 to "
                     f"{vocab_size - 1}, or several of these are needed.")
  return tuple(ids.tolist())


def _automaton(rows, vocab_size) -> Automaton:
  """An automaton from the tokens of each state and the states after them."""
  # Tokens of a class have the same sum: of a factor a state and what follows.
  factors = np.random.default_rng(0).integers(
      1, 2**64, len(rows), np.uint64, endpoint=False)
  sums = np.zeros(vocab_size, np.uint64)
  for (tokens, states), factor in zip(rows, factors):
    sums[tokens] += factor * (states + 1).astype(np.uint64)
  kinds, classes = np.unique(sums, return_inverse=True)
  following = np.full((len(rows), len(kinds)), NONE, np.int32)
  allowed = np.zeros((len(rows), bits.num_words(vocab_size)), np.uint32)
  for i, (tokens, states) in enumerate(rows):
    following[i, classes[tokens]] = states
    marks = np.zeros(vocab_size, bool)
    marks[tokens] = True
    allowed[i] = bits.pack(marks)
  return Automaton(allowed, classes.astype(np.int32), following)


def _without(arcs, tokens):
  rest = dict(arcs)
  for token in tokens:
    rest.pop(token, None)
  return rest


def _live(arcs, finals):
  """States from which one of `finals` can be reached."""
  before = {}
  for state, tokens in arcs.items():
    for to in set(tokens.values()):
      before.setdefault(to, []).append(state)
  waiting, live = list(finals), set(finals)
  while waiting:
    for state in before.get(waiting.pop(), ()):
      if state not in live:
        live.add(state)
        waiting.append(state)
  return live


def _search(words):
  """Of a search for any of several words, `[Q, 256]` states and the last one.

  Args:
    words: byte strings.

  Returns:
    The state after each byte in each state, and the state in which a word has
    been found.
  """
  prefixes = sorted({word[:i] for word in words for i in range(len(word))},
                    key=len)
  numbers = {prefix: i for i, prefix in enumerate(prefixes)}
  found = len(prefixes)
  steps = np.zeros((found + 1, _BYTES), np.int64)
  for prefix, i in numbers.items():
    for byte in range(_BYTES):
      text = prefix + bytes([byte])
      steps[i, byte] = found if text.endswith(tuple(words)) else next(
          numbers[text[j:]] for j in range(len(text) + 1)
          if text[j:] in numbers)
  return steps, found
