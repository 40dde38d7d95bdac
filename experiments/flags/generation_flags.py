"""Flags for decoding: method, sampling settings, token budget."""

import functools

from absl import flags

import decoding_jax as dj
from experiments.app import compilation_cache
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import guides
from experiments.devices import mesh
from experiments.devices import model_pair
from experiments.devices import start_tables
from experiments.flags import constraint_flags
from experiments.flags import model_flags
from models.text import tokenizer_files

# Value of `--method` that measures and chooses.
AUTO = "auto"
# Of the target's authors: settings that they recommend.
_FILE = tokenizer_files.GENERATION
METHOD = flags.DEFINE_string(
    "method", "rsd_s",
    method_specs.help_text("auto, which measures and chooses"))
MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 128,
                                      "Most tokens to generate.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the random key.", lower_bound=0,
                            upper_bound=launch.MOST_SEED)
_GUIDE = flags.DEFINE_string("guide", "", f"{guides.HELP}.")
_COMPILED = flags.DEFINE_string(
    "compilation_cache", "runs/generate/compiled",
    "Folder of compiled programs, which the next start loads; '' for none.")
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0,
                                  "Sampling temperature; 0 is greedy.",
                                  lower_bound=0)
_TOP_P = flags.DEFINE_float("top_p", 1.0, "Probability mass of the tokens to "
                            "keep; 1 keeps all.", lower_bound=0, upper_bound=1)
_TOP_K = flags.DEFINE_integer("top_k", 0, "Number of most probable tokens to "
                              "keep; 0 keeps all.", lower_bound=0)
_MIN_P = flags.DEFINE_float(
    "min_p", 0.0, "Least probability of a token to keep, as a share of the "
    "largest; 0 keeps all.", lower_bound=0, upper_bound=1)
_TYPICAL_P = flags.DEFINE_float(
    "typical_p", 1.0, "Probability mass of the tokens to keep whose surprise "
    "is closest to the entropy; 1 keeps all.", lower_bound=0, upper_bound=1)


def sampling() -> dj.Sampling:
  """Returns the sampling settings, whose distribution is preserved."""
  return dj.Sampling(_TEMPERATURE.value, _TOP_K.value, _TOP_P.value,
                     min_p=_MIN_P.value, typical_p=_TYPICAL_P.value)


def remarks() -> list[str]:
  """Returns a line if the target recommends settings that no flag sets."""
  settings = _TEMPERATURE, _TOP_P, _TOP_K, _MIN_P, _TYPICAL_P
  unset = () if any(flag.present for flag in settings) else settings
  values = [{flag.name: flag.value for flag in group} for group in (
      unset, [x for x in constraint_flags.RECOMMENDED if not x.present])]
  line = recommended(model_flags.TARGET.value, *values)
  return [line] if line else []


def recommended(target, sampling, penalties):
  """Returns a line of recommended settings that differ from those in use."""
  folder = launch.model_folder(target)
  setting = functools.partial(tokenizer_files.setting, folder, _FILE)
  with launch.user_errors(ValueError):
    # Without it transformers decodes greedily and ignores these fields.
    used = {**(sampling if setting("do_sample") else {}), **penalties}
    values = {name: setting(name) for name in used}
  wanted = [f"--{name}={value}" for name, value in values.items()
            if value is not None and value != used[name]]
  if not wanted:
    return ""
  return f"{_FILE} of the target recommends {' '.join(wanted)}."


def methods(batch, draft=None, reward=False) -> list[dj.Method]:
  """Returns the methods that may decode: the one of the flags, or of `auto`.

  `draft` is the drafter, once it is open; `reward`, whether there is one.
  """
  if METHOD.value == AUTO:
    from experiments.timing import auto_method  # It imports much.
    return auto_method.methods(draft or model_flags.has_drafter(), batch)
  if model_flags.memory_budget() is not None:
    raise launch.UserError(f"--memory_budget and --method={METHOD.value}: it is"
                           f" --method={AUTO} that chooses by a budget.")
  return [method_specs.from_flag(METHOD.value, [AUTO], reward)]


def choose(pair, prompts, lengths, batch):
  """Returns what `auto` chooses, an `auto_method.Choice`."""
  from experiments.timing import auto_method  # Few runs need it.
  return auto_method.choose(pair, prompts, lengths, MAX_NEW_TOKENS.value,
                            sampling(), batch=batch,
                            memory_budget=model_flags.memory_budget())


def settings() -> dict:
  """Returns what texts depend on, as JSON values by name."""
  return {flag.name: flag.value for flag in (
      _TEMPERATURE, _TOP_P, _TOP_K, _MIN_P, _TYPICAL_P, MAX_NEW_TOKENS, SEED,
      _GUIDE)}


def unfinished(tokens, eos_id) -> str:
  """Returns a line if a text that was to have a form has not ended, else ""."""
  if len(tokens) and tokens[-1] in eos_id:
    return ""
  return (f"stopped at --max_new_tokens={MAX_NEW_TOKENS.value}: the text is "
          "not complete.")


def opened(batch, reward=False):
  """Opens the models of the flags, and the methods that may decode."""
  constraint_flags.check()
  named = methods(batch, reward=reward)
  mesh.join(model_flags.TARGET.value, batch)
  pair = model_flags.open_pair(METHOD.value, named)
  start_tables.check_used(pair.start, named)
  return model_pair.with_features(pair, named), methods(batch, pair.draft,
                                                        reward)


def load(pair, methods, batch, max_rows, prompt_length) -> model_pair.ModelPair:
  """Reads the parameters, if memory allows; `max_rows` have a cache at once."""
  pair = mesh.load(pair, launch.decoders(methods, [_TEMPERATURE.value]), batch,
                   max_rows, prompt_length, MAX_NEW_TOKENS.value,
                   constraint_flags.apply(pair, prompt_length,
                                          MAX_NEW_TOKENS.value, False))
  if _COMPILED.value:
    compilation_cache.keep(_COMPILED.value)
  return guides.apply(pair, _GUIDE.value)
