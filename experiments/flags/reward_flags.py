"""What a text is worth, for methods that search for it."""

from absl import flags
import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import mesh
from experiments.devices import model_pair
from models.text import tokenizers

_WORDS = "words:"
_REWARD = flags.DEFINE_string(
    "reward", "", "What a text is worth, for methods that search for it: "
    f"{_WORDS}dog,run/ran, the share of these words that it contains, each in "
    "one of its forms; or a reward model, named as --target is, which scores "
    "on the host if it has another tokenizer; '' for nothing.")


def arguments(judge, pair, rows: int = 1) -> dict:
  """Returns what `mesh.generate` and `dj.generate` take for `rows` rows."""
  return {} if judge is None else {
      "reward": judge.reward,
      "reward_params": mesh.on_all(pair.mesh, judge.params),
      "constraints": jax.tree.map(
          lambda x: np.repeat(np.asarray(x), rows, axis=0), judge.constraints)}


def given() -> bool:
  """Returns whether `--reward` names a reward."""
  return bool(_REWARD.value)


def judged(pair: model_pair.ModelPair, prompt_length: int, budget: int):
  """Makes the `Judge` that `--reward` names, for P tokens a prompt, or None."""
  name = _REWARD.value
  if not name:
    return None
  from experiments.scoring import task_rewards  # If asked for.
  try:
    if name.startswith(_WORDS):
      return task_rewards.lexical([_concepts(name)], pair, budget)
    return _model(task_rewards, name, pair, prompt_length, budget)
  except ValueError as e:
    raise launch.UserError(f"--reward={name!r}: {e}") from e


def line(out: dj.Generation) -> list[str]:
  """Returns a line about the reward of the first row; none without one."""
  if not _REWARD.value:
    return []
  return [f"reward {float(out.stats.extra['reward'][0]):.3f}"]


def _model(task_rewards, name, pair, prompt_length, budget):
  """Returns the reward of a model; of another tokenizer it is on the host."""
  own = {}
  try:
    tokenizers.check_same(tokenizers.load(launch.model_folder(name)),
                          pair.tokenizer)
  except ValueError:
    own = {"on_host": True, "max_new_tokens": budget}
  return task_rewards.model(name, pair, prompt_length + budget, **own)


def _concepts(name):
  concepts = [word.split("/") for word in name.removeprefix(_WORDS).split(",")]
  if not all(map(all, concepts)):
    raise ValueError("words are needed, separated by commas.")
  return concepts
