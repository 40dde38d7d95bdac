"""Finite automata over tokens, and of stop strings."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import flax.struct
import jax.numpy as jnp
import numpy as np

from decoding_jax import token_text
from decoding_jax.grammars import sparse_automaton
from decoding_jax.grammars.sparse_automaton import SparseAutomaton
from decoding_jax.kernels import bits
from decoding_jax.types import Array, LogitsProcessor, NONE
from decoding_jax.validation import values

# Limits of what is compiled: states, and bytes that compiling takes.
MAX_STATES = 20_000
MAX_BYTES = 4 * 2**30
# Bytes that an entry of the table of stop strings takes while it is built.
_ENTRY_BYTES = 24


class NoText(ValueError):
  """An automaton that allows no text."""


@flax.struct.dataclass
class Automaton:
  """A deterministic automaton over tokens; state 0 is the first one.

  Tokens that lead to the same states everywhere are of one class, so that the
  table of Q states has C columns instead of V.
  """
  allowed: Array  # `[Q, V / 32]` uint32, bit b of word w for token `32 w + b`
  classes: Array  # `[V]` int32, the class of each token
  # `[Q, C]` int32, the state after a token; `NONE` where the token is forbidden
  following: Array


def _advance(params, state, token):
  if isinstance(params, SparseAutomaton):
    return sparse_automaton.advance(params, state, token)
  # After a forbidden token, all others are forbidden too.
  return jnp.where(state == NONE, NONE,
                   params.following[state, params.classes[token]])


def _process(params, state, logits):
  if isinstance(params, SparseAutomaton):
    return sparse_automaton.process(params, state, logits)
  if len(logits) != len(params.classes):
    raise ValueError(f"an automaton over {len(params.classes)} tokens: one "
                     f"over the model's {len(logits)} tokens is needed.")
  allowed = bits.unpack(params.allowed[state], len(logits))
  return jnp.where(allowed & (state != NONE), logits, -jnp.inf)


def _init(params):
  if not isinstance(params, (Automaton, SparseAutomaton)):
    raise ValueError(f"processor_params is of type {type(params).__name__}: an "
                     "Automaton, as dj.processors.regex makes, is needed.")
  return jnp.int32(0)


_AUTOMATON = LogitsProcessor(init=_init, advance=_advance, process=_process)


def automaton() -> LogitsProcessor:
  """Returns the processor that allows what an automaton allows.

  Returns:
    The processor; its parameters are the `Automaton` or `SparseAutomaton`,
    which reads the generated tokens.
  """
  return _AUTOMATON


def table(following) -> Automaton:
  """Returns the automaton of a table of transitions.

  Args:
    following: `[Q, V]` int, the state after each token; `NONE` where the token
      is forbidden.

  Returns:
    The automaton, of numpy arrays.

  Raises:
    ValueError: if a state is not one of Q, or allows no token at all, or if
      the automaton would take more than `MAX_BYTES`.
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
  """Returns the automaton of the transitions of each state.

  Args:
    transitions: state -> token -> state; names of states are any integers.
    start: the first state.
    finals: states in which a text may end.
    vocab_size: V.
    eos_id: the token that ends a text there, or several such tokens.

  Returns:
    The automaton. States from which no text can end are left out.

  Raises:
    ValueError: if no text is possible, if there is no `eos_id`, or if the
      automaton would take more than `MAX_BYTES`.
  """
  ends = end_tokens(eos_id, vocab_size)
  arcs = {state: _arrays(tokens, ends) for state, tokens in transitions.items()}
  return from_arcs(arcs, start, finals, vocab_size, ends)


def from_arcs(arcs, start: int, finals, vocab_size: int, ends) -> Automaton:
  """Returns the automaton of the arcs of each state, as `from_transitions`.
  `arcs` are state -> (tokens, states after them), two arrays; none of the
  tokens is of `ends`. States are taken out of it, since it is large. Raises
  NoText if no text is possible, ValueError beyond `MAX_BYTES`."""
  finals = set(finals)
  live = _live(arcs, finals)
  if start not in live:
    raise NoText("the vocabulary cannot spell any text that is allowed.")
  order = [start, *(live - {start})]
  numbers = _Numbers(np.sort(order), np.argsort(order))
  ended = (np.array(ends), np.full(len(ends), len(order)))
  nothing = (np.zeros(0, int),) * 2
  rows = []
  for state in order:
    parts = [_renamed(arcs.pop(state, nothing), numbers)]
    parts += [ended] if state in finals else []
    rows.append(tuple(map(np.concatenate, zip(*parts))))
  return _automaton([*rows, ended], vocab_size)


def stop_strings(strings: Sequence[str], pieces: Sequence[bytes],
                 eos_id) -> Automaton:
  """Returns an automaton that ends a text after any of some strings.

  A string may end anywhere in a token. The text keeps the string and the rest
  of that token; then comes a token that ends texts. The search is by Aho
  and Corasick (1975), over the bytes of tokens.

  Args:
    strings: none of them empty. The name of a special token, such as
      "<|eot_id|>" or the end of "x<|eot_id|>", is met by that token, and where
      it is spelled out as well.
    pieces: the bytes of V tokens, from `models.text.tokenizers.pieces`, which
      names special tokens.
    eos_id: the token that ends a text, or several such tokens.

  Returns:
    The automaton; it allows any token until then.

  Raises:
    ValueError: without strings, for an empty one, if there is no `eos_id`, or
      if the automaton would be larger than `MAX_STATES` or `MAX_BYTES`.
  """
  name = f"strings={values.shortened(strings)}"
  if isinstance(strings, (str, bytes)) or not len(strings) or not all(strings):
    raise ValueError(f"{name}: a list of at least one string is needed, none "
                     "of them empty.")
  check_pieces(pieces)
  ends = end_tokens(eos_id, len(pieces))
  words = _words(name, strings, token_text.special(pieces))
  # At most a state for each byte: common prefixes share states.
  check_size(name, sum(map(len, words)) + 2, len(pieces) * _ENTRY_BYTES)
  steps, final, special = _search(words)
  # After a whole word the search stays where it is.
  steps[final] = final
  following = np.tile(np.arange(len(steps), dtype=np.int32)[:, None],
                      len(pieces))
  for token, piece in enumerate(pieces):
    for symbol in piece or special.get(token, ()):
      following[:, token] = steps[following[:, token], symbol]
  following[final] = NONE
  following[final, ends] = final
  return table(following)


def check_size(name: str, states: int, state_bytes: int):
  """Raises ValueError for too many states, or bytes of them while built."""
  if states > MAX_STATES:
    raise ValueError(f"{name}: an automaton of {states} states: at most "
                     f"{MAX_STATES} are supported.")
  size = states * state_bytes
  if size > MAX_BYTES:
    raise ValueError(
        f"{name}: an automaton of {states} states would take "
        f"{size / 2**30:.1f} GiB: at most {MAX_BYTES / 2**30:.1f} GiB are "
        "allowed.")


def check_pieces(pieces):
  """Raises ValueError unless they are a list of byte strings."""
  if isinstance(pieces, Sequence) and all(isinstance(piece, bytes)
                                          for piece in pieces):
    return
  raise ValueError(f"pieces of type {type(pieces).__name__}: a list of the "
                   "bytes of each token is needed, as "
                   "models.text.tokenizers.pieces(tokenizer) returns.")


def end_tokens(eos_id, vocab_size) -> tuple[int, ...]:
  """Returns the tokens that end a text, checked; ValueError without any."""
  ids = np.atleast_1d(np.asarray([] if eos_id is None else eos_id))
  if not ids.size or not np.issubdtype(ids.dtype, np.integer) or (
      (ids < 0) | (ids >= vocab_size)).any():
    raise ValueError(f"eos_id={eos_id}: a token that ends texts, 0 to "
                     f"{vocab_size - 1}, or several of these are needed.")
  return tuple(ids.tolist())


def _automaton(rows, vocab_size) -> Automaton:
  """Returns the automaton of each state's tokens and the states after them."""
  # Tokens of a class have the same sum: of a factor a state and what follows.
  factors = np.random.default_rng(0).integers(
      1, 2**64, len(rows), np.uint64, endpoint=False)
  sums = np.zeros(vocab_size, np.uint64)
  for (tokens, states), factor in zip(rows, factors):
    sums[tokens] += factor * (states + 1).astype(np.uint64)
  kinds, classes = np.unique(sums, return_inverse=True)
  size = len(rows) * (vocab_size // 8 + 4 * len(kinds))
  if size > MAX_BYTES:
    raise ValueError(
        f"an automaton of {len(rows)} states and {len(kinds)} classes of "
        f"tokens takes {size / 2**30:.1f} GiB: at most "
        f"{MAX_BYTES / 2**30:.1f} GiB are allowed.")
  following = np.full((len(rows), len(kinds)), NONE, np.int32)
  allowed = np.zeros((len(rows), bits.num_words(vocab_size)), np.uint32)
  for i, (tokens, states) in enumerate(rows):
    following[i, classes[tokens]] = states
    marks = np.zeros(vocab_size, bool)
    marks[tokens] = True
    allowed[i] = bits.pack(marks)
  return Automaton(allowed, classes.astype(np.int32), following)


def _arrays(tokens, left_out):
  """Returns tokens and the states after them, without some of the tokens."""
  keys = np.fromiter(tokens, np.int32, len(tokens))
  states = np.fromiter(tokens.values(), np.int64, len(tokens))
  kept = ~np.isin(keys, left_out)
  return keys[kept], states[kept]


class _Numbers(NamedTuple):
  """New numbers of states: their `names`, ascending, and `numbers`."""
  names: np.ndarray
  numbers: np.ndarray


def _renamed(arcs, numbers):
  """Returns the arcs to states that have numbers, by their numbers."""
  tokens, states = arcs
  index = np.minimum(np.searchsorted(numbers.names, states),
                     len(numbers.names) - 1)
  kept = numbers.names[index] == states
  return tokens[kept], numbers.numbers[index[kept]]


def _live(arcs, finals):
  """Returns the states from which one of `finals` can be reached."""
  before = {}
  for state, (_, following) in arcs.items():
    for to in np.unique(following).tolist():
      before.setdefault(to, []).append(state)
  waiting, live = list(finals), set(finals)
  while waiting:
    for state in before.get(waiting.pop(), ()):
      if state not in live:
        live.add(state)
        waiting.append(state)
  return live


def _words(name, strings, names):
  """Returns the symbols that stop strings are met by. A string that names
  special tokens is two words: with these tokens, and spelled out in bytes."""
  words = [tuple(values.utf8(name, x) if isinstance(x, str) else bytes(x))
           for x in strings]
  return list(dict.fromkeys([*words, *(
      token_text.symbols(x, names)
      for x in strings if isinstance(x, str))]))


def _search(words):
  """Returns the search for any of several words: `[Q, S]` int32 next states,
  the state in which a word was met, and a dict from special tokens to sequences
  of their symbol, numbered from 256 on."""
  num_bytes = token_text.NUM_BYTES
  special = sorted({x for word in words for x in word if x >= num_bytes})
  numbers = {x: num_bytes + i for i, x in enumerate(special)}
  children = _trie([[numbers.get(x, x) for x in word] for word in words])
  final = len(children)
  steps = np.zeros((final + 1, num_bytes + len(special)), np.int32)
  # Of each prefix, its longest proper suffix that is a prefix too.
  suffixes = [0] * final
  waiting = [0]
  for state in waiting:
    if state:
      steps[state] = steps[suffixes[state]]
    for symbol, child in children[state].items():
      suffix = int(steps[state, symbol]) if state else 0
      if child is None or suffix == final:
        steps[state, symbol] = final
      else:
        steps[state, symbol], suffixes[child] = child, suffix
        waiting.append(child)
  return steps, final, {x - num_bytes: (i,) for x, i in numbers.items()}


def _trie(words):
  """Returns the children of each proper prefix by symbol, None for a word."""
  children = [{}]
  for word in words:
    node = 0
    for symbol in word[:-1]:
      child = children[node].setdefault(symbol, len(children))
      if child is None:
        break  # A shorter word ends here.
      if child == len(children):
        children.append({})
      node = child
    else:
      children[node][word[-1]] = None
  return children
