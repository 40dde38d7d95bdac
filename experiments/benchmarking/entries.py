"""The entries of a benchmark, which take turns: ours, theirs, ours, theirs, ...

An entry is a setting of a tool. Entries of one batch and temperature form a
group, which is measured in rounds: in each, every entry decodes the same
prompts once, ours and the rivals' in turn, so that drifts of the machine affect
all of them. Round 0 is the first call, which compiles.
"""

import itertools
from typing import NamedTuple

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.rivals import engines
from models.transformer import quantization

OURS = "decoding_jax"
# Types of weights, and the classes in which systems are compared.
WEIGHTS = {"float32": "32 bits", "bfloat16": "16 bits", "int8": "8 bits",
           "int4": "4 bits"}
# Those that activations have as well; of others it is bfloat16.
DTYPES = ("float32", "bfloat16")
SAMPLED = "sampled"  # By the target; other prompts are held-out modules.


class Entry(NamedTuple):
  """A tool's setting to measure."""
  tool: str  # `OURS`, or a key of `engines.ENGINES`.
  name: str  # Of the method or setting, sizes included.
  # Of weights, of `WEIGHTS`; activations of 8 bits and fewer are in 16 bits.
  dtype: str
  batch: int  # Rows decoded together.
  temperature: float  # Of target and draft; 0 is greedy.


def setting_name(setting) -> str:
  """Returns the name of a rival's setting: "assisted(4, p_min=0.4)"."""
  sizes = [f"{key}={value}" for key, value in sorted(setting.items())
           if key not in ("name", "length", "batch_1")]
  if "length" in setting:
    sizes.insert(0, str(setting["length"]))
  return setting["name"] + (f"({', '.join(sizes)})" if sizes else "")


def groups(config, methods, tools) -> list[list[Entry]]:
  """Returns the groups of entries, our methods and rivals' settings in turn."""
  of_all = []
  for batch, temperature in itertools.product(config.batches,
                                              config.temperatures):
    ours = [Entry(OURS, name, dtype, batch, temperature)
            for dtype in config.dtypes for name in methods]
    theirs = [Entry(tool, setting_name(setting), dtype, batch, temperature)
              for tool in tools for dtype in config.rival_dtypes
              if dtype in engines.ENGINES[tool].weights
              for setting in config.rivals[tool]
              if batch == 1 or not setting.get("batch_1")]
    turns = itertools.zip_longest(ours, theirs)
    of_all.append([x for turn in turns for x in turn if x])
  return of_all


def methods_of(specs) -> dict[str, dj.Method]:
  """Returns our methods by name; one without a draft tree is a `UserError`."""
  methods = [method_specs.read(spec, "methods") for spec in specs]
  for method in methods:
    if not isinstance(method.sampled, dj.Pair):
      raise launch.UserError(f"methods: {method.name} has no draft tree; only "
                             "methods with one are compared.")
  return method_specs.by_name(methods)


def check(config):
  """Raises `launch.UserError` for a config that cannot be measured."""
  launch.check_positive(config, "rounds", "prompts", "prompt_length",
                        "max_new_tokens", "batches")
  for name in ("temperatures", "dtypes", "rival_dtypes", "methods"):
    if not config[name]:
      raise launch.UserError(f"{name} is empty: one is needed.")
  for name, values, allowed in (
      ("dtypes", config.dtypes, WEIGHTS),
      ("draft_dtype", [config.draft_dtype], ("", *DTYPES)),
      ("rival_dtypes", config.rival_dtypes, WEIGHTS),
      ("draft_weights", [config.draft_weights], quantization.WEIGHTS),
      ("rivals", config.rivals, engines.ENGINES),
      ("text", [config.text], (SAMPLED, "python"))):
    launch.check_known(name, values, allowed)
  if not 0 < config.vllm_memory_share <= 1:
    raise launch.UserError(
        f"--config.vllm_memory_share={config.vllm_memory_share}: above 0 and "
        "at most 1, the share of the GPU's memory, is needed.")
