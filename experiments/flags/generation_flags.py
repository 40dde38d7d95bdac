"""How prompts are completed: the flags for method and distribution."""

from absl import flags

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import mesh
from experiments.devices import model_pair
from experiments.flags import method_flags
from experiments.flags import model_flags
from experiments.flags import notices

METHOD = flags.DEFINE_string(
    "method", "rsd_s", method_flags.help_text("auto of experiments.generate"))
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
    "min_p", 0.0, "Share of the largest probability that a token needs to be "
    "kept; 0: all are.")


def sampling() -> dj.Sampling:
  """The distribution that is kept."""
  return dj.Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value,
                     min_p=_MIN_P.value)


def remarks() -> list[str]:
  """Returns a line if the target recommends settings that no flag sets."""
  probs = _TEMPERATURE, _TOP_P, _TOP_K, _MIN_P
  if any(flag.present for flag in probs):
    return []
  line = notices.recommended(model_flags.TARGET.value,
                             {flag.name: flag.value for flag in probs})
  return [line] if line else []


def open_pair(methods) -> model_pair.ModelPair:
  """The models, of which no parameters are read yet.

  Args:
    methods: list of `dj.Method`, which may decode.

  Returns:
    See `model_pair.open_pair`.

  Raises:
    UserError: see there, and `model_pair.drafter`.
  """
  return model_flags.open_pair(model_flags.drafter(METHOD.value, methods))


def load(pair, methods, batch, most, width) -> model_pair.ModelPair:
  """The pair with its parameters.

  Args:
    pair: of `open_pair`.
    methods: as there.
    batch: rows decoded together, at most.
    most: rows that there is a cache for, at most.
    width: P, tokens of the longest prompt.

  Returns:
    See `mesh.load`.
  """
  return mesh.load(pair, model_flags.TARGET.value,
                   model_flags.drafter(METHOD.value, methods),
                   launch.decoders(methods, [_TEMPERATURE.value]), batch, most,
                   width, MAX_NEW_TOKENS.value)
