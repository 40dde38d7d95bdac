"""Language models; of the library they know `types` and `kernels` alone."""

import importlib


def __getattr__(name):
  if name == "tokenizers":  # Where it was before there was a folder for text.
    return importlib.import_module("models.text.tokenizers")
  raise AttributeError(f"module 'models' has no attribute {name!r}")
