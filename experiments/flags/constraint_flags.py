"""What a completion must be: flags for logits processors of both models."""

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
    "regex", "", "Regular expression that the completion matches as a whole.")
_JSON_SCHEMA = flags.DEFINE_string(
    "json_schema", "", "File of a JSON schema that the completion has.")
_STOP = flags.DEFINE_multi_string(
    "stop", [], "Text that ends the completion; may be given several times.")
_PENALTY = flags.DEFINE_float(
    "repetition_penalty", 1.0, "Divides the logits of tokens that were there "
    "already, the prompt's too; 1: changes nothing.")
_PRESENCE = flags.DEFINE_float(
    "presence_penalty", 0.0, "Subtracted from the logits of tokens that were "
    "generated already.")
_FREQUENCY = flags.DEFINE_float(
    "frequency_penalty", 0.0, "The same, as often as they were.")
_NO_REPEAT = flags.DEFINE_integer(
    "no_repeat_ngram_size", 0, "So many tokens in a row do not come twice, in "
    "prompt and completion; 0: they may.", lower_bound=0)


def apply(pair: model_pair.ModelPair, width: int,
          budget: int) -> model_pair.ModelPair:
  """The pair, both of its models with the processors that flags ask for.

  Args:
    pair: with parameters.
    width: tokens of the longest prompt.
    budget: most tokens of a completion.

  Returns:
    A pair; the same one if no flag is set.

  Raises:
    UserError: for flags that no processor can be made of, or several of those
      that say how the completion ends.
  """
  found = []
  with launch.user_errors(ValueError, ImportError, OSError):
    found += [(penalty, ()) for penalty in _penalties(pair, budget)]
    automaton = _automaton(pair)
    if automaton:
      found.append((dj.processors.automaton(), automaton))
    if _NO_REPEAT.value:
      # The last one: where it forbids all that a form allows, the form stays.
      found.append((dj.processors.no_repeat_ngram(
          _NO_REPEAT.value, pair.target.vocab_size,
          max(width + budget, _NO_REPEAT.value)), ()))
  for processor, params in found:
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
  """Whether flags say what form the whole completion has."""
  return bool(_REGEX.value or _JSON_SCHEMA.value)


def settings() -> dict:
  """What flags say, by their names; a schema as it is written."""
  given = {flag.name: flag.value for flag in (
      _REGEX, _STOP, _PENALTY, _PRESENCE, _FREQUENCY, _NO_REPEAT)}
  return {**given, _JSON_SCHEMA.name: _schema()}


def _penalties(pair, budget):
  """The processors that make tokens less probable."""
  size = pair.target.vocab_size
  if _PENALTY.value != 1:
    with _named(_PENALTY, f"penalty={_PENALTY.value!r}"):
      yield dj.processors.repetition_penalty(_PENALTY.value, size)
  for flag in (_PRESENCE, _FREQUENCY):
    if not math.isfinite(flag.value):
      raise ValueError(f"--{flag.name}={flag.value}: a number is needed.")
  if _PRESENCE.value or _FREQUENCY.value:
    yield dj.processors.occurrence_penalty(_PRESENCE.value, _FREQUENCY.value,
                                           size, budget)


def _automaton(pair):
  """The automaton that a flag asks for; None if none does."""
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
  """Errors name a flag, instead of the argument that its value is."""
  value = flag.value
  if isinstance(value, list):
    value = " ".join(map(repr, value))
  try:
    yield
  except (ValueError, OSError) as e:
    problem = getattr(e, "strerror", None) or e
    raise ValueError(f"--{flag.name}={value}: "
                     f"{str(problem).removeprefix(f'{argument}: ')}") from e
