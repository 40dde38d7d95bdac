"""Models of the Hugging Face hub, such as "hub:HuggingFaceTB/SmolLM2-135M".

`huggingface_hub` downloads each model once. `HF_HOME` sets the cache,
`HF_TOKEN` gives access to gated models, `HF_HUB_OFFLINE=1` allows the cache
only.
"""

import functools
import pathlib

PREFIX = "hub:"
# Architecture and tokenizer; heads whose files have names of their own (Medusa,
# Hydra, Chimera); and the weights, in one of two formats.
_DESCRIPTIONS = ("*.json", "*.model", "*.jinja", "merges.txt")
_HEADS = ("*_lm_head.safetensors", "*_lm_head.pt", "trimlp.pt",
          "fast_layer1.pt", "chimera_head.pt")
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
# Copies for other libraries.
_LEFT_OUT = "*/*"


def is_hub(name) -> bool:
  return str(name).startswith(PREFIX)


@functools.lru_cache(maxsize=None)
def folder(name: str) -> pathlib.Path:
  """Returns the folder of a model, downloaded unless it is in the cache. `name`
  is "hub:", owner and model, and maybe "@" and a branch, tag or commit. Of
  weights in several forms the folder has safetensors alone. Raises
  ValueError if there is no such model, or it cannot be had."""
  for weights in _WEIGHTS:
    path = _fetched(name, *_DESCRIPTIONS, *_HEADS, weights)
    if any(path.glob(weights)):
      break
  return path


def check(name: str):
  """Raises ValueError as `folder` does; downloads at most a config.json."""
  _fetched(name, "config.json")


def _fetched(name, *patterns):
  # Few runs need it, and it takes its time.
  import huggingface_hub  # pylint: disable=import-outside-toplevel
  repo, _, revision = name.removeprefix(PREFIX).partition("@")
  try:
    return pathlib.Path(huggingface_hub.snapshot_download(
        repo, revision=revision or None, ignore_patterns=_LEFT_OUT,
        allow_patterns=patterns))
  except (OSError, ValueError) as e:  # All that the hub and its names raise.
    raise ValueError(f"'{name}' cannot be had from the Hugging Face hub: "
                     f"{' '.join(str(e).split())}") from e
