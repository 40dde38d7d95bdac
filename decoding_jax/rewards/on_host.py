"""Rewards that a Python function computes from texts, on the host.

A reward model with another tokenizer, the tests of a program, a regular
expression or a classifier of another library become a `types.Reward` here. The
loop of a generation waits for the function wherever a method asks for a value:
once a step for all candidates of all rows, see `HostReport` for what it costs.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import inspect
import math
import numbers
import queue
import threading
import time
from typing import Any, NamedTuple, Optional
import weakref

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import kernels
from decoding_jax import token_text
from decoding_jax.types import Array, Reward
from decoding_jax.validation import values as values_lib

# What a function is given besides texts, if it has parameters of these names.
_EXTRAS = ("prompts", "constraints")
# Last tokens of a prompt, of which a text is decoded after one.
_CONTEXT = 16


class HostReport(NamedTuple):
  """The costs of a reward on the host so far, of all generations together."""
  calls: int = 0  # Of the function
  texts: int = 0  # That it was given
  # Values that were known: of equal texts, or of earlier calls
  repeated: int = 0
  failed: int = 0  # Texts whose value is the fallback
  seconds: float = 0.0  # In the function, decoding included
  slowest: float = 0.0  # Seconds of the longest call


@flax.struct.dataclass
class HostText:
  """The state: prompt and text, as tokens."""
  prompt: Array  # `[P]` int32; arbitrary after its length
  prompt_length: Array  # `[]` int32
  tokens: Array  # `[max_tokens]` int32; arbitrary after the length
  # `[]` int32; of a text that is too long, more than `max_tokens`.
  length: Array


class _Options(NamedTuple):
  """The arguments of `on_host`."""
  fn: Callable[..., Any]
  decode: Optional[Callable[..., Any]]
  max_tokens: int
  maximum: float
  timeout: Optional[float]
  fallback: Optional[float]
  cache_size: int


@dataclasses.dataclass
class _Record:
  """State that changes from call to call; used under its lock."""
  report: HostReport
  known: dict
  lock: Any


class _Failure(Exception):
  """Raised where a function has no value for some text."""


class _TooSlow(Exception):
  """Raised where a call takes longer than allowed."""


# By the `value` of a reward.
_RECORDS = weakref.WeakKeyDictionary()


def on_host(fn: Callable[..., Any], *, max_tokens: int,
            decode: Optional[Callable[..., Any]] = None,
            maximum: float = math.inf, timeout: Optional[float] = None,
            fallback: Optional[float] = None,
            cache_size: int = 10_000) -> Reward:
  """Returns the reward that a Python function gives to texts.

    reward = on_host(lambda texts: [text.count("\\n") for text in texts],
                     decode=tokenizer.decode, max_tokens=128)

  The function must give equal texts equal values: values are remembered, and
  equal texts are scored once. It may use JAX; then on a CPU.

  Args:
    fn: `texts -> values`, a list of N strings to N numbers, all finite or -inf.
      If it has parameters of these names, it also gets the lists `prompts` and
      `constraints`: the prompt of each text, and the row's part of
      `constraints` of `generate`.
    max_tokens: most tokens of a text, such as `max_new_tokens`.
    decode: from a list of tokens to a string, such as `tokenizer.decode`; None
      to give the function lists of tokens instead of strings. A text is what
      its tokens add to the string of the prompt, with the blank between them.
    maximum: a value that cannot be exceeded; inf if there is none.
    timeout: seconds that a call may take; None for any. A call that takes
      longer goes on in its thread, and its result is dropped.
    fallback: the value of texts for which the function raises an error, returns
      NaN or takes too long. Texts of a call that raises are scored once more,
      one by one; all texts of a call that takes too long have the fallback.
      None: these are errors, which end the generation.
    cache_size: values that are remembered.

  Returns:
    A reward without parameters; `host_report` says what it has cost. Equal
    arguments give the same object.

  Raises:
    ValueError: naming the argument, its value and what is allowed. Errors of
      the function come as `jax.errors.JaxRuntimeError` from the generation, or
      from the first use of its arrays; their last line gives the reason.
  """
  for name, x, optional in (("fn", fn, False), ("decode", decode, True)):
    if not (callable(x) or optional and x is None):
      raise ValueError(f"{name}={x!r}: a function is needed"
                       f"{', or None' if optional else ''}.")
  values_lib.check_positives(max_tokens=max_tokens, cache_size=cache_size)
  if timeout is not None:
    values_lib.check_number("timeout", timeout, 1e-3, threading.TIMEOUT_MAX)
  for name, x in (("maximum", maximum), ("fallback", fallback)):
    if x is not None and (not isinstance(x, numbers.Real) or math.isnan(x)):
      raise ValueError(f"{name}={x!r}: a number is needed.")
  if fallback is not None and fallback > maximum:
    raise ValueError(f"fallback={fallback!r}: at most maximum={maximum!r} is "
                     "needed.")
  return _on_host(_Options(fn, decode, int(max_tokens), float(maximum),
                           timeout, fallback, int(cache_size)))


def host_report(reward: Reward) -> HostReport | None:
  """Returns what a reward of `on_host` has cost; None for any other."""
  record = _RECORDS.get(reward.value)
  if record is None:
    return None
  with record.lock:
    return record.report


@functools.lru_cache(maxsize=128)
def _on_host(options: _Options) -> Reward:
  record = _Record(HostReport(), {}, threading.Lock())
  score = functools.partial(_score, options, record)

  def init(params, constraint, prompt, length):
    del params, constraint
    return HostText(prompt.astype(jnp.int32), jnp.asarray(length, jnp.int32),
                    jnp.zeros(options.max_tokens, jnp.int32), jnp.int32(0))

  def advance(params, constraint, state, tokens, valid):
    del params, constraint
    places = state.length + jnp.cumsum(valid) - 1
    places = jnp.where(valid, places, options.max_tokens)
    return state.replace(
        tokens=state.tokens.at[places].set(tokens.astype(jnp.int32),
                                           mode="drop"),
        length=state.length + jnp.sum(valid, dtype=jnp.int32))

  def value(params, constraint, state):
    del params
    # Not `io_callback`: without an order, and dropped where nobody reads it.
    return jax.pure_callback(
        score, jax.ShapeDtypeStruct((), jnp.float32), state, constraint,
        vmap_method="broadcast_all")

  _RECORDS[value] = record
  return Reward(init, advance, value, options.maximum)


def _score(options: _Options, record: _Record, state: HostText, constraint):
  """Computes the values of texts `[...]`; called by a program that runs."""
  state, constraint = jax.tree.map(np.asarray, (state, constraint))
  shape = state.length.shape
  flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(shape):]),
                      (state, constraint))
  rows = [jax.tree.map(lambda x, i=i: x[i], flat)
          for i in range(state.length.size)]
  if state.length.size and state.length.max() > options.max_tokens:
    raise ValueError(
        f"max_tokens={options.max_tokens} of a reward on the host: a text has "
        f"{state.length.max()} tokens; max_new_tokens of generate is needed.")
  rows = [(text.prompt[:text.prompt_length], text.tokens[:text.length], own)
          for text, own in rows]
  keys = [tuple(x.tobytes() for x in jax.tree.leaves(row)) for row in rows]
  with record.lock:
    new = {key: row for key, row in zip(keys, rows) if key not in record.known}
    scores = dict(zip(new, _values(options, record, list(new.values()))))
    scores.update((key, record.known[key]) for key in keys if key not in new)
    record.report = record.report._replace(
        repeated=record.report.repeated + len(keys) - len(new))
    # A dict is in order of insertion: those not used for longest are first.
    for key in scores:
      record.known.pop(key, None)
    record.known.update(scores)
    while len(record.known) > options.cache_size:
      del record.known[next(iter(record.known))]
  return np.array([scores[key] for key in keys], np.float32).reshape(shape)


def _values(options: _Options, record: _Record, rows) -> list[float]:
  """Computes the values of rows of (prompt, text, constraint)."""
  if not rows:
    return []
  try:
    return _call(options, record, rows)
  except _Failure as e:
    if options.fallback is None:
      raise ValueError(f"{e} (a `fallback` of on_host would be the value of "
                       "such texts)") from e.__cause__
    if len(rows) > 1 and not isinstance(e.__cause__, _TooSlow):
      return [_values(options, record, [row])[0] for row in rows]
    record.report = record.report._replace(
        failed=record.report.failed + len(rows))
    return [options.fallback] * len(rows)


def _call(options: _Options, record: _Record, rows) -> list[float]:
  """Calls the function once, counts that, and checks what it returns."""
  start = time.perf_counter()
  try:
    result = _within(options.timeout, functools.partial(_ask, options, rows))
  except _TooSlow as e:
    raise _Failure(f"the reward on the host took more than {options.timeout} "
                   f"seconds for {_described(rows)}") from e
  except Exception as e:
    raise _Failure(f"the reward on the host raised {type(e).__name__}: {e}; "
                   f"for {_described(rows)}") from e
  finally:
    took, report = time.perf_counter() - start, record.report
    record.report = report._replace(
        calls=report.calls + 1, texts=report.texts + len(rows),
        seconds=report.seconds + took, slowest=max(report.slowest, took))
  values = _numbers(result, len(rows))
  if np.isnan(values).any():
    wrong = rows[int(np.argmax(np.isnan(values)))]
    if options.fallback is None:
      raise _Failure("the reward on the host returned NaN; for "
                     f"{_described([wrong])}")
    record.report = record.report._replace(
        failed=record.report.failed + int(np.isnan(values).sum()))
    values = np.where(np.isnan(values), options.fallback, values)
  if values.max() > options.maximum:
    raise ValueError(f"the reward on the host returned {values.max()}: at most "
                     f"maximum={options.maximum} is allowed.")
  return values.tolist()


def _ask(options: _Options, rows):
  """Calls the function with decoded texts, and what else it takes."""
  # A thread does not inherit the default device of a callback. On another one
  # the program that waits for the reward would be waited for.
  with jax.default_device(kernels.host_device()):
    decode = options.decode or list
    extras = {"prompts": lambda: [decode(x.tolist()) for x, _, _ in rows],
              "constraints": lambda: [x for _, _, x in rows]}
    return options.fn(
        [_text(options.decode, prompt.tolist(), tokens.tolist())
         for prompt, tokens, _ in rows],
        **{name: extras[name]() for name in _extras_of(options.fn)})


def _text(decode, prompt, tokens):
  """Returns what tokens add to a prompt; the tokens without `decode`."""
  if decode is None:
    return tokens
  before = token_text.context(decode, prompt[-_CONTEXT:])
  return token_text.added(decode, before, tokens)


def _extras_of(fn) -> Sequence[str]:
  """Returns which of `_EXTRAS` a function has parameters for."""
  try:
    parameters = inspect.signature(fn).parameters.values()
  except (TypeError, ValueError):  # Of some functions that are not Python's.
    return ()
  if any(x.kind is x.VAR_KEYWORD for x in parameters):
    return _EXTRAS
  return tuple(x.name for x in parameters if x.name in _EXTRAS)


def _within(timeout, call):
  """Returns what a function returns, if that takes no longer than allowed."""
  if timeout is None:
    return call()
  results = queue.SimpleQueue()

  def run():
    try:
      results.put((call(), None))
    except BaseException as e:  # pylint: disable=broad-except
      results.put((None, e))

  # Python cannot end a thread, and would wait at exit for one of a pool.
  threading.Thread(target=run, daemon=True).start()
  try:
    result, error = results.get(timeout=timeout)
  except queue.Empty as e:
    raise _TooSlow from e
  if error is not None:
    raise error
  return result


def _numbers(result, count) -> np.ndarray:
  """Returns `[count]` float64; raises ValueError for anything else."""
  try:
    values = np.asarray(result, np.float64)
  except (TypeError, ValueError) as e:
    raise ValueError(
        f"the reward on the host returned {values_lib.shortened(result)}: "
        f"{count} numbers are needed.") from e
  if values.shape != (count,):
    raise ValueError(
        f"the reward on the host returned an array of shape {values.shape}: "
        f"[{count}], a number for each text, is needed.")
  return values


def _described(rows) -> str:
  """Returns how many texts there are, and the tokens of the first one."""
  return (f"{len(rows)} text(s), the first one of tokens "
          f"{values_lib.shortened(rows[0][1].tolist())}")
