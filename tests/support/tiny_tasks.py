"""What tests of tasks share: configs, files, and a pair that is never run."""

import functools
import json
import re
import types

import jax
import numpy as np
import pytest

import decoding_jax as dj
from configs import rsd as rsd_config, train as train_config
from experiments import train
from experiments.app import launch
from experiments.devices import mesh, model_pair
from models.text import tokenizers


@functools.lru_cache(maxsize=None)
def make_pair():
  """Two models of which nothing but length and tokenizer is known."""
  model = types.SimpleNamespace(max_length=4096)
  tokenizer = tokenizers.train(["abc"], 257)
  return model_pair.ModelPair(model, None, model, None, tokenizer, 0.1,
                              eos_id=(0,))


def make_config(task, data, **update):
  """A config of `experiments.rsd` for one prompt of a task."""
  config = rsd_config.defaults()
  config.update(task=task, data=str(data), prompts=1, **update)
  return config


def make_training(folder, **fields):
  """A config of `experiments.train` that reads and writes in a folder."""
  config = train_config.get_config("smoke")
  config.update({
      "corpus": str(folder), "tokenizer": str(folder / "tokenizer"),
      "workdir": str(folder / "work"), "export": str(folder / "export"),
      **fields})
  return config


def check_refused(message, config):
  """Asserts that training is refused in one line that has this text."""
  with pytest.raises(launch.UserError, match=re.escape(message)) as error:
    train.train(config)
  assert "\n" not in str(error.value)


def jsonl(path, *values):
  """Writes a file of records, and returns its path."""
  path.write_text("".join(json.dumps(value) + "\n" for value in values))
  return path


PROMPTS = np.array([[40, 41, 42], [50, 60, 70]], np.int32)


def decoded(pair, method, *, new=6, temperature=0.0, prompts=PROMPTS,
            lengths=None, **reward):
  """What a pair writes after two prompts, on its device or mesh."""
  return mesh.generate(
      pair, jax.random.split(jax.random.key(0), len(prompts)), prompts,
      np.full(len(prompts), prompts.shape[1]) if lengths is None else lengths,
      method=method, max_new_tokens=new, sampling=dj.Sampling(temperature),
      **reward)
