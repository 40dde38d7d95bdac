"""What tests of tasks share: configs, files, and a pair that is never run."""

import functools
import json
import types

from configs import rsd as rsd_config
from experiments.devices import model_pair
from models.text import tokenizers


@functools.lru_cache(maxsize=None)
def make_pair():
  """Two models of which nothing but length and tokenizer is known."""
  model = types.SimpleNamespace(max_length=4096)
  tokenizer = tokenizers.train(["abc"], 257)
  return model_pair.ModelPair(model,
                              None,
                              model,
                              None,
                              tokenizer,
                              0.1,
                              eos_id=(0,))


def make_config(task, data, **update):
  """A config of `experiments.rsd` for one prompt of a task."""
  config = rsd_config.get_config()
  config.update(task=task, data=str(data), prompts=1, **update)
  return config


def jsonl(path, *values):
  """Writes a file of records, and returns its path."""
  path.write_text("".join(json.dumps(value) + "\n" for value in values))
  return path
