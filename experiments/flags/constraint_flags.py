"""Flags for logits processors: grammars, stop strings and penalties."""

import contextlib
import functools
import pathlib
import sys
import threading

from absl import flags

import decoding_jax as dj
from decoding_jax.validation import values
from experiments.app import launch
from experiments.devices import model_pair
from experiments.devices import mesh as mesh_lib
from experiments.flags import grammar_engine
from models.text import tokenizer_files
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
_MOMENTUM = flags.DEFINE_float(
    "momentum", 0.0, "Resistance of momentum decoding to repeated tokens, such "
    "as 0.2, at --temperature=0; 0: off.", lower_bound=0.0)
_THINK_AT_LEAST = flags.DEFINE_integer(
    "think_at_least", 0, "Tokens before which --end_of_thinking is replaced by "
    "--wait; 0: off.", lower_bound=0)
_THINK_AT_MOST = flags.DEFINE_integer(
    "think_at_most", 0, "Tokens after which --end_of_thinking is forced; 0: "
    "off.", lower_bound=0)
_END_OF_THINKING = flags.DEFINE_string(
    "end_of_thinking", "</think>", "Text that ends thinking; its last token "
    "ends it wherever it comes.")
_WAIT = flags.DEFINE_string(
    "wait", "", "Text of one token that is written instead of an end that is "
    "too early; '' for the next probable one.")
# Flags that name a file, and all that say how the completion ends.
_FILES = (_JSON_SCHEMA, grammar_engine.GRAMMAR, grammar_engine.CHOICES)
_FORMS = (_REGEX, _STOP, *_FILES)
# What the settings of a checkpoint may recommend, by these names.
RECOMMENDED = (_PENALTY, _NO_REPEAT)
flags.adopt_module_key_flags(grammar_engine)
# Seconds of compiling a grammar after which a line says so.
_PATIENCE = 2.0
# Characters of a value in an error.
_SHOWN = 80


def check() -> None:
  """Raises `UserError` for flags that do not fit each other, or lack a file."""
  _form()
  if not (_THINK_AT_LEAST.value or _THINK_AT_MOST.value):
    for flag in (_WAIT, _END_OF_THINKING):
      if flag.value != flag.default:
        raise launch.UserError(f"--{flag.name}={flag.value!r} needs "
                               "--think_at_least or --think_at_most.")
  if _WAIT.value and not _THINK_AT_LEAST.value:
    raise launch.UserError(f"--wait={_WAIT.value!r} needs --think_at_least.")
  if _THINK_AT_MOST.value and _THINK_AT_LEAST.value > _THINK_AT_MOST.value:
    raise launch.UserError(
        f"--think_at_least={_THINK_AT_LEAST.value}: at most --think_at_most="
        f"{_THINK_AT_MOST.value} is allowed.")
  with launch.user_errors(ValueError):
    for flag in _FILES:
      _text(flag)


def apply(pair: model_pair.ModelPair, prompt_length: int, budget: int,
          grammars: bool = True) -> model_pair.ModelPair:
  """Applies the processors that flags ask for, of `grammars` or without."""
  with launch.user_errors(ValueError, ImportError, OSError):
    grammar = grammars and _grammar(pair)
    processors = [
        *_penalties(pair, budget), *_thinking(pair),
        *([grammar] if grammar else []),
        # The last ones: where they forbid all that a grammar allows, they are
        # ignored.
        *_against_repetition(pair, prompt_length + budget)]
  return mesh_lib.with_processors(pair, processors)


def form() -> bool:
  """Tells whether flags give a grammar for the whole completion."""
  return any(flag.value for flag in (_REGEX, *_FILES))


def settings() -> dict:
  """Returns the values of flags by their names; the texts of files."""
  given = {flag.name: flag.value for flag in (
      _REGEX, _STOP, _PENALTY, _PRESENCE, _FREQUENCY, _NO_REPEAT, _MOMENTUM,
      _THINK_AT_LEAST, _THINK_AT_MOST, _END_OF_THINKING, _WAIT,
      grammar_engine.ENGINE)}
  return {**given, **{flag.name: _text(flag) for flag in _FILES}}


def _penalties(pair, budget):
  """Yields processors that make tokens less probable, and parameters."""
  size = pair.target.vocab_size
  if _PENALTY.value != 1:
    with _named(_PENALTY, f"penalty={_PENALTY.value!r}"):
      yield dj.processors.repetition_penalty(_PENALTY.value, size), ()
  if _PRESENCE.value or _FREQUENCY.value:
    yield dj.processors.occurrence_penalty(_PRESENCE.value, _FREQUENCY.value,
                                           size, budget), ()


def _against_repetition(pair, length):
  if _NO_REPEAT.value:
    window = max(length, _NO_REPEAT.value)
    with _named(_NO_REPEAT, f"window={window}"):
      yield dj.processors.no_repeat_ngram(
          _NO_REPEAT.value, pair.target.vocab_size, window), ()
  if _MOMENTUM.value:
    with _named(_MOMENTUM):
      yield dj.processors.momentum(pair.target.vocab_size, length,
                                   resistance=_MOMENTUM.value), ()


def _thinking(pair):
  if not (_THINK_AT_LEAST.value or _THINK_AT_MOST.value):
    return
  with _named(_END_OF_THINKING):
    end = _tokens(pair, _END_OF_THINKING.value)
    if not end:
      raise ValueError("a text of at least one token is needed.")
  wait = _tokens(pair, _WAIT.value)
  if len(wait) > 1:
    raise ValueError(f"--wait={_WAIT.value}: a text of one token is needed, it "
                     f"has {len(wait)}.")
  yield dj.processors.budget_forcing(
      end, minimum=_THINK_AT_LEAST.value,
      maximum=_THINK_AT_MOST.value or None, wait=wait[0] if wait else None,
      eos_id=pair.eos_id), ()


def _tokens(pair, text):
  return tokenizer_files.encode(pair.tokenizer, text,
                                add_special_tokens=False).ids


def _grammar(pair):
  flag = _form()
  if flag is None:
    return None
  if pair.eos_id is None:
    raise ValueError(f"--{flag.name}: the tokenizer has no token that ends a "
                     "text.")
  text = flag.value if flag is _REGEX or flag is _STOP else _text(flag)
  # What makes the processor, and the argument that its errors name.
  argument, make = {
      "regex": ("pattern", grammar_engine.of_regex),
      "stop": ("strings", lambda *texts: (
          dj.processors.automaton(), dj.processors.stop_strings(*texts))),
      "json_schema": ("schema", grammar_engine.of_schema),
      "grammar": ("", grammar_engine.of_grammar),
      "choices": ("", functools.partial(grammar_engine.of_choices,
                                        tokenizer=pair.tokenizer)),
  }[flag.name]
  pieces = tokenizers.pieces(pair.tokenizer, pair.target.vocab_size)
  with _compiled(flag, f"{argument}={values.shortened(text)}"):
    return make(text, pieces, pair.eos_id)


def _form():
  """Returns the flag that says how the completion ends, or None."""
  given = [flag for flag in _FORMS if flag.value]
  if len(given) > 1:
    raise launch.UserError(f"--{' and --'.join(x.name for x in given)}: only "
                           "one of them can say how the completion ends.")
  return given[0] if given else None


def _text(flag):
  """Returns the text of a flag's file; "" without one."""
  with _named(flag):
    return flag.value and pathlib.Path(flag.value).read_text(encoding="utf-8")


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
