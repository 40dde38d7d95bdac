"""Grammars that a library of masks follows on the host: any of its languages.

What no table on the device holds, such as endlessly nested brackets, an
`Engine` reads on the host, token by token. A state on the device is the number
of a text, so drafting, scoring and committing are as with any other processor.
Each forward calls the host twice, whatever the batch and the tree: for states,
and for masks.

A node's matcher is a copy of its parent's that reads one more token; matchers
of rejected nodes are dropped when others are needed.
"""

import collections
import dataclasses
import importlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import token_text
from decoding_jax.grammars import token_automaton
from decoding_jax.kernels import bits
from decoding_jax.types import Array, LogitsProcessor, NONE

# States of every grammar: the empty text, and any text that is over.
START, ENDED = 0, 1
# Grammars that can be in use at once; the oldest one is dropped for another.
MAX_GRAMMARS = 256
# Texts that are remembered; beyond that, those that no row has used of late.
MAX_TEXTS = 2**18
_RECENT_CALLS = 2048
# Bytes of masks that are remembered.
MAX_MASK_BYTES = 2**28
# Matchers of a grammar.
_MAX_MATCHERS = 1024


class Engine(NamedTuple):
  """A grammar engine; see `llguidance_engine`, `xgrammar_engine`."""
  start: Callable[[], Any]  # `() -> matcher`, at the empty text
  # `(matcher, token)`, one that is allowed and does not end the text.
  consume: Callable[[Any, int], None]
  # `(matcher) -> matcher`, at the same text; each then reads on alone.
  copy: Callable[[Any], Any]
  # `(matcher) -> [V / 32]` uint32, the tokens that may come next; the first of
  # those that end a text stands for all of them.
  mask: Callable[[Any], np.ndarray]


@flax.struct.dataclass
class HostGrammar:
  """The parameters of `host_grammar()`."""
  number: Array  # `[]` int32, of the grammar within this process
  ends: Array  # `[V]` bool, tokens that end a text


@dataclasses.dataclass
class HostTimes:
  """Calls of the host by a grammar."""
  calls: int = 0  # By the compiled programs
  masks: int = 0  # That the engine has computed
  seconds: float = 0.0  # In these calls, together


@dataclasses.dataclass
class _Texts:
  """The texts of a grammar as a trie, and what is known of them."""
  engine: Engine  # that allows tokens
  ends: tuple[int, ...]  # tokens that end a text
  end_words: np.ndarray  # `[W]` uint32, the same as a mask
  # `[W]` uint32, tokens that have bytes or are special, and do not end a text.
  occurring: np.ndarray
  # Text -> (the text before its last token, that token).
  last: dict = dataclasses.field(default_factory=dict)
  # (text, token) -> text.
  children: dict = dataclasses.field(default_factory=dict)
  # Text -> `[W]` uint32, the last used ones last.
  masks: collections.OrderedDict = dataclasses.field(
      default_factory=collections.OrderedDict)
  # Text -> the call in which it was used last.
  used: dict = dataclasses.field(default_factory=dict)
  # Text -> a matcher that has read it, the last used ones last.
  matchers: collections.OrderedDict = dataclasses.field(
      default_factory=collections.OrderedDict)
  numbers: Any = dataclasses.field(
      default_factory=lambda: itertools.count(ENDED + 1))
  times: HostTimes = dataclasses.field(default_factory=HostTimes)
  lock: Any = dataclasses.field(default_factory=threading.Lock)


_GRAMMARS: collections.OrderedDict[int, _Texts] = collections.OrderedDict()
_NUMBERS = itertools.count()
# Of a thread that compiles; reserved, not used at once.
_STACK_BYTES = 2**28
_STACK_LOCK = threading.Lock()


def library(name: str):
  """Returns the package of an engine; ImportError says how to install it."""
  try:
    return importlib.import_module(name)
  except ImportError as e:
    # One without what it needs itself is installed, and cannot be imported.
    raise ImportError(f"grammars on the host need the package {name}: pip "
                      f"install 'decoding_jax[{name}]' or pip install {name} "
                      f"({e}).") from e


def grammar(name: str, make: Callable[..., Engine], source,
            pieces: Sequence[bytes], eos_id) -> HostGrammar:
  """Returns the grammar of the engine `make(name, source, pieces, ends)`."""
  token_automaton.check_pieces(pieces)
  ends = token_automaton.end_tokens(eos_id, len(pieces))
  return register(name, make(name, source, pieces, ends), pieces, ends)


def register(name: str, engine: Engine, pieces: Sequence[bytes],
             eos_id) -> HostGrammar:
  """Returns the parameters of `host_grammar()`; errors begin with `name`."""
  ends = token_automaton.end_tokens(eos_id, len(pieces))
  marks = np.zeros(len(pieces), bool)
  marks[list(ends)] = True
  occurring = ~marks & np.array([
      bool(piece) or isinstance(piece, token_text.SpecialToken)
      for piece in pieces])
  texts = _Texts(engine, ends, bits.pack(marks), bits.pack(occurring))
  try:
    begins = _mask(texts, START).any()
  except ValueError as e:
    raise ValueError(f"{name}: no text can begin: {e}") from e
  if not begins:
    raise ValueError(f"{name}: the vocabulary cannot spell any text that is "
                     "allowed.")
  number = next(_NUMBERS)
  _GRAMMARS[number] = texts
  while len(_GRAMMARS) > MAX_GRAMMARS:
    _GRAMMARS.popitem(last=False)
  return HostGrammar(np.int32(number), marks)


def with_deep_stack(function):
  """Returns what a function returns, which may recur deeply in native code.
  Engines follow references of a grammar by recursion: a chain of a thousand
  would end the process on a stack of the usual size."""
  with futures.ThreadPoolExecutor(1) as pool:
    with _STACK_LOCK:
      usual = threading.stack_size(_STACK_BYTES)
      try:
        result = pool.submit(function)
      finally:
        threading.stack_size(usual)
    return result.result()


def host_times(params: HostGrammar) -> HostTimes:
  """Returns how often a grammar has been asked so far, and the time it took."""
  return dataclasses.replace(_texts(params.number).times)


def host_grammar() -> LogitsProcessor:
  """Returns the processor that allows what a grammar on the host allows. Its
  parameters are a `HostGrammar`, which reads the generated tokens. Another one
  of as many tokens compiles nothing."""
  return _PROCESSOR


def _init(params):
  if not isinstance(params, HostGrammar):
    raise ValueError(f"processor_params is of type {type(params).__name__}: a "
                     "HostGrammar, as dj.processors.llguidance_engine.regex "
                     "makes, is needed.")
  return jnp.int32(START)


def _advance(params, state, token):
  return jax.pure_callback(
      _host_advance, jax.ShapeDtypeStruct((), jnp.int32), params.number, state,
      token, jnp.int32(NONE), vmap_method="broadcast_all")


def _advance_block(params, states, tokens, parents):
  return jax.pure_callback(
      _host_advance, jax.ShapeDtypeStruct(states.shape, jnp.int32),
      params.number, states, tokens, parents)


def _process(params, state, logits):
  size = len(logits)
  if size != len(params.ends):
    raise ValueError(f"a grammar over {len(params.ends)} tokens: one over "
                     f"the model's {size} tokens is needed.")
  words = jax.pure_callback(
      _host_masks, jax.ShapeDtypeStruct((bits.num_words(size),), jnp.uint32),
      params.number, state, vmap_method="broadcast_all")
  return jnp.where(bits.unpack(words, size), logits, -jnp.inf)


_PROCESSOR = LogitsProcessor(init=_init, advance=_advance, process=_process,
                             advance_block=_advance_block)


def _texts(number) -> _Texts:
  number = int(np.ravel(number)[0])
  if number not in _GRAMMARS:
    raise ValueError(f"grammar {number} is not in use in this process any "
                     f"more: at most {MAX_GRAMMARS} are; make it again.")
  return _GRAMMARS[number]


def _host_advance(number, states, tokens, parents):
  """Returns the texts after tokens, of the shape of `states`."""
  # Mapped over any number of axes; the last one is the block's, or the axis of
  # tokens without parents.
  states, tokens, parents = np.broadcast_arrays(states, tokens, parents)
  shape = states.shape
  states, tokens, parents = (
      x.reshape(-1, *shape[-1:] or (1,)) for x in (states, tokens, parents))
  texts = _texts(number)
  with texts.lock:
    begin = time.perf_counter()
    texts.times.calls += 1
    new = np.array(states, np.int32)
    for i in range(new.shape[1]):
      above = np.where(parents[:, i] == NONE, states[:, i],
                       new[np.arange(len(new)), parents[:, i]])
      # Below 0 are NONE and prompt tokens, which are no part of a text.
      new[:, i] = [text if token < 0 else _after(texts, text, token)
                   for text, token in zip(above.tolist(),
                                          tokens[:, i].tolist())]
    texts.times.seconds += time.perf_counter() - begin
  return new.reshape(shape)


def _host_masks(number, states):
  """Returns the masks `[..., W]` uint32 of texts."""
  states = np.asarray(states)
  texts = _texts(number)
  with texts.lock:
    begin = time.perf_counter()
    texts.times.calls += 1
    which, index = np.unique(states, return_inverse=True)
    # Numbers rise along a path, so that neighbours are visited in turn.
    words = np.stack([_mask(texts, text) for text in which.tolist()])
    _forget(texts)
    texts.times.seconds += time.perf_counter() - begin
  return words[index.reshape(states.shape)]


def _after(texts, text, token) -> int:
  """Returns the text after one more token; NONE if it is forbidden."""
  if text == NONE:
    return NONE
  if text == ENDED:
    return ENDED if token in texts.ends else NONE
  texts.used[text] = texts.times.calls
  after = texts.children.get((text, token))
  if after is not None:
    return after
  if not _mask(texts, text)[token // bits.SIZE] >> (token % bits.SIZE) & 1:
    return NONE
  if token in texts.ends:
    return ENDED
  after = next(texts.numbers)
  texts.children[text, token] = after
  texts.last[after] = text, token
  texts.used[after] = texts.times.calls
  return after


def _mask(texts, text) -> np.ndarray:
  """Returns the tokens that may follow a text, `[W]` uint32."""
  if text == NONE:
    return np.zeros_like(texts.end_words)
  if text == ENDED:
    return texts.end_words
  texts.used[text] = texts.times.calls
  if text in texts.masks:
    texts.masks.move_to_end(text)
    return texts.masks[text]
  words = texts.engine.mask(_matcher_at(texts, text))
  end = texts.ends[0]
  may_end = words[end // bits.SIZE] >> (end % bits.SIZE) & 1
  words = (words & texts.occurring) | (texts.end_words if may_end else 0)
  texts.times.masks += 1
  texts.masks[text] = words
  if len(texts.masks) * words.nbytes > MAX_MASK_BYTES:
    texts.masks.popitem(last=False)
  return words


def _matcher_at(texts, text):
  """Returns a matcher that has read a text, and remembers it."""
  prefix, unread = text, []
  while prefix != START and prefix not in texts.matchers:
    if prefix not in texts.last:
      raise ValueError(f"text {prefix} of a grammar has been forgotten: it was "
                       f"not used in the last {_RECENT_CALLS} forwards.")
    unread.append(prefix)
    prefix = texts.last[prefix][0]
  if not unread and prefix in texts.matchers:
    texts.matchers.move_to_end(prefix)
    return texts.matchers[prefix]
  if prefix in texts.matchers:
    texts.matchers.move_to_end(prefix)
    matcher = texts.engine.copy(texts.matchers[prefix])
  else:
    matcher = texts.engine.start()
  for x in reversed(unread):
    texts.engine.consume(matcher, texts.last[x][1])
  texts.matchers[text] = matcher
  if len(texts.matchers) > _MAX_MATCHERS:
    texts.matchers.popitem(last=False)
  return matcher


def _forget(texts):
  """Drops texts that were not used of late, and are no beginning of others."""
  if len(texts.last) <= MAX_TEXTS:
    return
  kept, since = set(), texts.times.calls - _RECENT_CALLS
  for text, call in texts.used.items():
    while call >= since and text not in kept and text in texts.last:
      kept.add(text)
      text = texts.last[text][0]
  texts.last = {x: y for x, y in texts.last.items() if x in kept}
  texts.children = {x: y for x, y in texts.children.items() if y in kept}
  texts.used = {x: y for x, y in texts.used.items() if x in kept}
  for text in [x for x in texts.matchers if x not in kept]:
    del texts.matchers[text]
