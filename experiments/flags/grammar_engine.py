"""Flags for grammars: which engine follows them, and what is kept on disk."""

import functools
import importlib.util
import sys
import time

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from experiments.app import multihost

AUTO, AUTOMATON, LLGUIDANCE, XGRAMMAR = (
    "auto", "automaton", "llguidance", "xgrammar")
GRAMMAR = flags.DEFINE_string(
    "grammar", "", "File of a grammar that the completion is of: in GBNF if it "
    "has rules 'name ::= ...', else in the language of Lark.")
CHOICES = flags.DEFINE_string(
    "choices", "", "File of texts, one a line, of which the completion is one.")
ENGINE = flags.DEFINE_enum(
    "grammar_engine", AUTO, [AUTO, AUTOMATON, LLGUIDANCE, XGRAMMAR],
    "What follows a grammar: an automaton on the device, or a package on the "
    "host. auto: an automaton if there is one of at most --grammar_seconds, "
    "else llguidance; for GBNF xgrammar where it is installed, since "
    "llguidance takes longer.")
_SECONDS = flags.DEFINE_float(
    "grammar_seconds", 20.0, "Seconds of compiling the automaton of a schema.",
    lower_bound=0.0)
_CACHE = flags.DEFINE_string(
    "grammar_cache", "runs/generate/grammars", "Folder of automata that took "
    "longer than a second to compile; none are kept if empty.")
_LEAST_SECONDS = 1.0


def of_regex(pattern, pieces, eos_id):
  """Returns the processor of a pattern, and its parameters."""
  if ENGINE.value in (AUTO, AUTOMATON):
    return _automaton(dj.processors.regex, pattern, pieces, eos_id)
  name = ENGINE.value
  return _host(_engine(name).regex(pattern, pieces, eos_id), name)


def of_schema(schema, pieces, eos_id):
  """Returns the processor of a JSON schema, and its parameters."""
  # Few runs need them.
  from decoding_jax.grammars.finite_automata import TooLarge
  from decoding_jax.grammars.json_schema.schema_source import Unsupported
  name = ENGINE.value
  if name not in (AUTO, AUTOMATON):
    return _host(_engine(name).json_schema(schema, pieces, eos_id), name)
  try:
    return _automaton(dj.processors.json_schema, schema, pieces, eos_id,
                      seconds=_SECONDS.value)
  except (TooLarge, Unsupported) as e:
    if ENGINE.value == AUTOMATON:
      raise
    if importlib.util.find_spec(LLGUIDANCE) is None:
      raise ValueError(f"{e} A package that may take it is not installed: pip "
                       "install 'decoding_jax[llguidance]'.") from e
    reason = e
  try:
    made = dj.processors.llguidance_engine.json_schema(schema, pieces, eos_id)
  except ValueError as e:
    raise ValueError(f"{reason} Nor does llguidance take it: {e}") from e
  return _host(made, f"{LLGUIDANCE}, since there is no automaton: {reason}")


def of_grammar(text, pieces, eos_id):
  """Returns the processor of a grammar of GBNF or Lark, and its parameters."""
  from decoding_jax.grammars import grammar_source  # Few runs need it.
  gbnf = grammar_source.is_gbnf(text)
  if ENGINE.value == AUTOMATON or ENGINE.value == XGRAMMAR and not gbnf:
    raise ValueError(f"--grammar_engine={ENGINE.value}: it does not read "
                     "such grammars, llguidance does.")
  name = ENGINE.value
  if name == AUTO:
    known = gbnf and importlib.util.find_spec(XGRAMMAR) is not None
    name = XGRAMMAR if known else LLGUIDANCE
  make = getattr(_engine(name), "gbnf" if gbnf else "lark")
  return _host(make(text, pieces, eos_id), name)


def of_choices(text, pieces, eos_id, tokenizer):
  """Returns the processor of the lines of a text, and its parameters."""
  encode = lambda x: tokenizer.encode(x, add_special_tokens=False).ids
  lines = [line for line in text.splitlines() if line]
  return dj.processors.automaton(), dj.processors.choice(lines, pieces, eos_id,
                                                         encode)


def _engine(name):
  return getattr(dj.processors, f"{name}_engine")


def _automaton(make, what, pieces, eos_id, **options):
  begin = time.monotonic()
  if _CACHE.value:
    automaton, was_there = dj.processors.stored(
        _CACHE.value, make, what, pieces, eos_id,
        least_seconds=_LEAST_SECONDS, **options)
  else:
    automaton, was_there = make(what, pieces, eos_id, **options), False
  seconds = time.monotonic() - begin
  if seconds >= _LEAST_SECONDS or was_there:
    how = "read from disk" if was_there else "compiled"
    _say(f"an automaton of {len(automaton.following)} states, {how} in "
         f"{seconds:.1f} s.")
  return dj.processors.automaton(), automaton


def _host(grammar, how):
  _say(how)
  return dj.processors.host_grammar(), grammar


def _say(line):
  if multihost.first():
    print(f"grammar: {line}", file=sys.stderr, flush=True)


def report(params) -> str:
  """Returns a line on the time that a grammar took on the host, else ""."""
  grammars = _applied(params, dj.processors.HostGrammar)
  if grammars is None:
    return ""
  times = dj.processors.host_times(grammars)
  return (f"grammar on the host: {times.calls} calls, {times.masks} masks, "
          f"{1e3 * times.seconds / max(times.calls, 1):.2f} ms a call")


def ends(pair, texts) -> tuple[np.ndarray, np.ndarray]:
  """Returns which texts `[N, T]` may and must end by a grammar, `[N]` bool."""
  for processor, *kinds in (
      (dj.processors.automaton(), dj.processors.Automaton,
       dj.processors.SparseAutomaton),
      (dj.processors.host_grammar(), dj.processors.HostGrammar)):
    grammars = _applied(pair.target_params, *kinds)
    if grammars is not None:
      break
  else:
    return (np.zeros(len(texts), bool),) * 2
  allowed = np.asarray(_allowed(
      processor, multihost.on_host(grammars), np.asarray(texts),
      pair.target.vocab_size))
  last = np.zeros(allowed.shape[1], bool)
  last[list(pair.eos_id)] = True
  may = allowed[:, last].any(axis=1)
  return may, may & ~allowed[:, ~last].any(axis=1)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _allowed(processor, params, texts, size):
  """Returns the tokens `[N, V]` that a processor allows after texts."""
  def each(function):  # As models call it: of each token of each row.
    return jax.vmap(jax.vmap(function, (None, 0, 0)), (None, 0, 0))

  count = len(texts)
  states = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, 1, *x.shape)),
                        processor.init(params))
  states, _ = jax.lax.scan(
      lambda states, tokens: (each(processor.advance)(
          params, states, tokens[:, None]), None), states, texts.T)
  logits = each(processor.process)(params, states, jnp.zeros((count, 1, size)))
  return logits[:, 0] > -jnp.inf


def _applied(params, *kinds):
  """Returns the parameters of a processor of some types, or None."""
  while isinstance(params, dj.processors.AppliedParams):
    if isinstance(params.processor, kinds):
      return params.processor
    params = params.model
  return None
