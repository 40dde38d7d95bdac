"""Flags for logits processors: grammars, stop strings and penalties."""

import contextlib
import math
import pathlib
import sys
import threading

from absl import flags

import decoding_jax as dj
from decoding_jax.validation import values
from experiments.app import launch
from experiments.devices import mesh
from experiments.devices import model_pair
from models.text import tokenizers

_REGEX = flags.DEFINE_string(
    "regex", "", "Regular expression that the completion matches as a whole.")
_JSON_SCHEMA = flags.DEFINE_string(
    "json_schema", "", "File of a JSON schema that the completion is valid by.")
_STOP = flags.DEFINE_multi_string(
    "stop", [], "Text that ends the completion; may be given several times.")
_PENALTY = flags.DEFINE_float(
    "repetition_penalty", 1.0, "Divides the positive logits of tokens that "
    "occurred in prompt or completion, multiplies negative ones; 1: off.")
_PRESENCE = flags.DEFINE_float(
    "presence_penalty", 0.0, "Subtracted from the logits of tokens that "
    "occurred in the completion.")
_FREQUENCY = flags.DEFINE_float(
    "frequency_penalty", 0.0, "The same, times how often they occurred.")
_NO_REPEAT = flags.DEFINE_integer(
    "no_repeat_ngram_size", 0, "Length of token sequences that occur at most "
    "once in prompt and completion; 0: off.", lower_bound=0)
# Seconds of compiling a grammar after which a line says so.
_PATIENCE = 2.0
# Characters of a value in an error.
_SHOWN = 80


def apply(pair: model_pair.ModelPair, width: int,
          budget: int) -> model_pair.ModelPair:
  """Applies the processors that flags ask for to both models.

  Args:
    pair: with parameters.
    width: tokens of the longest prompt.
    budget: most tokens of a completion.

  Returns:
    A pair; the same one if no flag is set.

  Raises:
    UserError: for flags with values that are wrong or too large, and for
      several of those that say how the completion ends.
  """
  with launch.user_errors(ValueError, ImportError, OSError):
    automaton = _automaton(pair)
    found = [*_penalties(pair, budget),
             *([(dj.processors.automaton(), automaton)] if automaton else []),
             # The last one: where it forbids all that a grammar allows, it is
             # ignored.
             *_no_repeat(pair, width, budget)]
  return _applied(pair, found)


def with_penalties(pair: model_pair.ModelPair, width: int,
                   budget: int) -> model_pair.ModelPair:
  """Applies all processors but that of a grammar, to estimate memory by.

  Args:
    pair: its parameters may be shapes.
    width: tokens of the longest prompt.
    budget: most tokens of a completion.

  Returns:
    A pair.

  Raises:
    UserError: for values that no processor can be made of.
  """
  with launch.user_errors(ValueError):
    return _applied(pair, [*_penalties(pair, budget),
                           *_no_repeat(pair, width, budget)])


def _applied(pair, processors):
  """Applies pairs of (processor, parameters) to both models of a pair."""
  for processor, params in processors:
    params = mesh.on_all(pair.mesh, params)
    target, target_params = dj.processors.apply(
        processor, params, pair.target, pair.target_params)
    pair = pair._replace(target=target, target_params=target_params)
    if pair.draft is not None:
      draft, draft_params = dj.processors.apply(
          processor, params, pair.draft, pair.draft_params)
      pair = pair._replace(draft=draft, draft_params=draft_params)
  return pair


def form() -> bool:
  """Whether flags give a grammar for the whole completion."""
  return bool(_REGEX.value or _JSON_SCHEMA.value)


def settings() -> dict:
  """Returns the values of flags by their names; the text of a schema."""
  given = {flag.name: flag.value for flag in (
      _REGEX, _STOP, _PENALTY, _PRESENCE, _FREQUENCY, _NO_REPEAT)}
  return {**given, _JSON_SCHEMA.name: _schema()}


def _penalties(pair, budget):
  """Yields processors that make tokens less probable, and parameters."""
  size = pair.target.vocab_size
  if _PENALTY.value != 1:
    with _named(_PENALTY, f"penalty={_PENALTY.value!r}"):
      yield dj.processors.repetition_penalty(_PENALTY.value, size), ()
  for flag in (_PRESENCE, _FREQUENCY):
    if not math.isfinite(flag.value):
      raise ValueError(f"--{flag.name}={flag.value}: a number is needed.")
  if _PRESENCE.value or _FREQUENCY.value:
    yield dj.processors.occurrence_penalty(_PRESENCE.value, _FREQUENCY.value,
                                           size, budget), ()


def _no_repeat(pair, width, budget):
  """Yields the processor against repeated n-grams, if a flag asks for it."""
  size = _NO_REPEAT.value
  if size:
    window = max(width + budget, size)
    with _named(_NO_REPEAT, f"window={window}"):
      yield dj.processors.no_repeat_ngram(size, pair.target.vocab_size,
                                          window), ()


def _automaton(pair):
  """Returns the automaton that a flag asks for; None without such a flag."""
  given = [flag.name for flag in (_REGEX, _JSON_SCHEMA, _STOP) if flag.value]
  if not given:
    return None
  if len(given) > 1:
    raise ValueError(f"--{' and --'.join(given)}: only one of them can say how "
                     "the completion ends.")
  if pair.eos_id is None:
    raise ValueError(f"--{given[0]}: the tokenizer has no token that ends a "
                     "text.")
  rest = (tokenizers.pieces(pair.tokenizer, pair.target.vocab_size),
          pair.eos_id)
  if _REGEX.value:
    with _compiled(_REGEX, f"pattern={values.shortened(_REGEX.value)}"):
      return dj.processors.regex(_REGEX.value, *rest)
  if _STOP.value:
    with _compiled(_STOP, f"strings={values.shortened(_STOP.value)}"):
      return dj.processors.stop_strings(_STOP.value, *rest)
  schema = _schema()
  with _compiled(_JSON_SCHEMA, f"schema={values.shortened(schema)}"):
    return dj.processors.json_schema(schema, *rest)


def _schema():
  if not _JSON_SCHEMA.value:
    return ""
  with _named(_JSON_SCHEMA):
    return pathlib.Path(_JSON_SCHEMA.value).read_text(encoding="utf-8")


@contextlib.contextmanager
def _compiled(flag, argument):
  """As `_named`, with a line to stderr where it takes long."""
  timer = threading.Timer(_PATIENCE, lambda: print(
      f"compiling the automaton of --{flag.name}...", file=sys.stderr,
      flush=True))
  timer.daemon = True
  timer.start()
  try:
    with _named(flag, argument):
      yield
  finally:
    timer.cancel()


@contextlib.contextmanager
def _named(flag, argument=""):
  """Makes errors name a flag instead of the argument with its value."""
  value = flag.value
  if isinstance(value, list):
    value = " ".join(map(repr, value))
  # Bytes of a command line that are no text are surrogates: not printable.
  value = str(value).encode("utf-8", "backslashreplace").decode()
  if len(value) > _SHOWN:
    value = f"{value[:_SHOWN]}..."
  try:
    yield
  except (ValueError, OSError) as e:
    problem = getattr(e, "strerror", None) or e
    raise ValueError(f"--{flag.name}={value}: "
                     f"{str(problem).removeprefix(f'{argument}: ')}") from e
