"""How prompts are completed: the flags for method and law."""

from absl import flags

import decoding_jax as dj
from experiments import chosen
from experiments import launch
from experiments import meshes
from experiments import remarks as remarks_lib

METHOD = flags.DEFINE_string(
    "method", "rsd_s", "Name of a method; of experiments.generate also auto.")
MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 128, "Most tokens.")
SEED = flags.DEFINE_integer("seed", 0, "Of the random key.", lower_bound=0,
                            upper_bound=launch.MOST_SEED)
COMPILED = flags.DEFINE_string(
    "compilation_cache", "runs/generate/compiled",
    "Folder of compiled programs, which the next start loads; '' for none.")
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "0 is greedy.")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "Mass of tokens to keep; 1: all.")
_TOP_K = flags.DEFINE_integer("top_k", 0, "Tokens to keep; 0: all.")
_MIN_P = flags.DEFINE_float(
    "min_p", 0.0, "Tokens to keep: at least so many times as probable as the "
    "most probable one; 0: all.")


def sampling() -> dj.Sampling:
  """The law that is kept."""
  return dj.Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value,
                     min_p=_MIN_P.value)


def remarks() -> list[str]:
  """A line if the target's authors recommend a law, and no flag sets one."""
  law = _TEMPERATURE, _TOP_P, _TOP_K, _MIN_P
  if any(flag.present for flag in law):
    return []
  line = remarks_lib.recommended(chosen.TARGET.value,
                                 {flag.name: flag.value for flag in law})
  return [line] if line else []


def open_pair(methods) -> launch.ModelPair:
  """The models, of which no parameters are read yet.

  Args:
    methods: list of `dj.Method`, which may decode.

  Returns:
    See `launch.open_pair`.

  Raises:
    UserError: see there, and `launch.drafter`.
  """
  return chosen.open_pair(chosen.drafter(METHOD.value, methods))


def load(pair, methods, batch, most, width) -> launch.ModelPair:
  """The pair with its parameters.

  Args:
    pair: of `open_pair`.
    methods: as there.
    batch: rows decoded together, at most.
    most: rows that there is a cache for, at most.
    width: P, tokens of the longest prompt.

  Returns:
    See `meshes.load`.
  """
  return meshes.load(pair, chosen.TARGET.value,
                     chosen.drafter(METHOD.value, methods),
                     launch.kinds(methods, [_TEMPERATURE.value]), batch, most,
                     width, MAX_NEW_TOKENS.value)
