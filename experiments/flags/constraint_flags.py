"""Flags for logits processors: the form of a completion, and penalties.

Processors are applied to target and draft, so that drafts keep the form too.
"""

import contextlib
import math
import pathlib

from absl import flags

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import mesh
from experiments.devices import model_pair
from models.text import tokenizers

_REGEX = flags.DEFINE_string(
    "regex", "", "Regular expression that the whole completion matches.")
_JSON_SCHEMA = flags.DEFINE_string(
    "json_schema", "", "File of a JSON schema that the completion follows.")
_STOP = flags.DEFINE_multi_string(
    "stop", [], "Text at which the completion ends.")
_PENALTY = flags.DEFINE_float(
    "repetition_penalty", 1.0, "Divides positive logits of tokens in prompt "
    "and completion, and multiplies negative ones; 1 changes nothing.")
_PRESENCE = flags.DEFINE_float(
    "presence_penalty", 0.0, "Subtracted from the logits of all tokens that "
    "have been generated.")
_FREQUENCY = flags.DEFINE_float(
    "frequency_penalty", 0.0, "Subtracted from the logit of a token once for "
    "each time it has been generated.")
_NO_REPEAT = flags.DEFINE_integer(
    "no_repeat_ngram_size", 0, "Size of n-grams that occur only once in prompt "
    "and completion; 0 allows repetitions.", lower_bound=0)


def apply(pair: model_pair.ModelPair, width: int,
          budget: int) -> model_pair.ModelPair:
  """Applies the processors that flags ask for to both models of a pair.

  Args:
    pair: with parameters.
    width: tokens of the longest prompt.
    budget: most tokens of a completion.

  Returns:
    A pair; the same one if no flag is set.

  Raises:
    UserError: for values that no processor can be made of, or for several of
      the flags that decide how the completion ends.
  """
  with launch.user_errors(ValueError, ImportError, OSError):
    automaton = _automaton(pair)
    found = [*_penalties(pair, budget),
             *([(dj.processors.automaton(), automaton)] if automaton else []),
             # The last one: where it forbids all that a form allows, the form
             # stays.
             *_no_repeat(pair, width, budget)]
  return _applied(pair, found)


def with_penalties(pair: model_pair.ModelPair, width: int,
                   budget: int) -> model_pair.ModelPair:
  """Applies all processors but that of a form, to estimate memory by.

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
  """Returns whether a flag gives the form of the whole completion."""
  return bool(_REGEX.value or _JSON_SCHEMA.value)


def settings() -> dict:
  """Returns the values of the flags by name, and the text of the schema."""
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
    yield dj.processors.no_repeat_ngram(
        size, pair.target.vocab_size, max(width + budget, size)), ()


def _automaton(pair):
  """Returns the automaton that a flag asks for; None if none does."""
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
    with _named(_REGEX, f"pattern={_REGEX.value!r}"):
      return dj.processors.regex(_REGEX.value, *rest)
  if _STOP.value:
    with _named(_STOP, f"strings={_STOP.value!r}"):
      return dj.processors.stop_strings(_STOP.value, *rest)
  schema = _schema()
  with _named(_JSON_SCHEMA, f"schema={schema}"):
    return dj.processors.json_schema(schema, *rest)


def _schema():
  if not _JSON_SCHEMA.value:
    return ""
  with _named(_JSON_SCHEMA):
    return pathlib.Path(_JSON_SCHEMA.value).read_text(encoding="utf-8")


@contextlib.contextmanager
def _named(flag, argument=""):
  """Makes errors name the flag instead of the argument that it is."""
  value = flag.value
  if isinstance(value, list):
    value = " ".join(map(repr, value))
  try:
    yield
  except (ValueError, OSError) as e:
    problem = getattr(e, "strerror", None) or e
    raise ValueError(f"--{flag.name}={value}: "
                     f"{str(problem).removeprefix(f'{argument}: ')}") from e
  except RecursionError as e:
    raise ValueError(f"--{flag.name}={value}: it is nested too deeply.") from e
