"""What the texts of a task are judged by, and what is reported of it."""

from typing import Any, Callable, NamedTuple

from decoding_jax import constraints
import decoding_jax as dj
from experiments.app import launch
from models import checkpoints
from models.text import tokenizers
from models.transformer import reward_model


class Judge(NamedTuple):
  """A reward.

  Attributes:
    reward: the reward.
    params: its parameters.
    constraints: tree of `[R, ...]`, of each example; or None.
    scores: names of `SCORES`, what is reported of it.
  """
  reward: dj.Reward
  params: Any
  constraints: Any
  scores: tuple[str, ...]


class Score(NamedTuple):
  """A figure of a text that its reward tells.

  Attributes:
    of: `reward -> figure`.
    scale: of the mean that is reported.
    digits: after its point.
    title: of a column.
    axis: of a diagram.
    change: what a difference is called, before it and after it.
    runs_model: whether a model has to run for it.
  """
  of: Callable[[float], float]
  scale: float
  digits: int
  title: str
  axis: str
  change: tuple[str, str]
  runs_model: bool


# By the first of them that a task has, methods are compared.
SCORES = {
    "hard": Score(lambda value: int(constraints.hard_coverage(value)), 100, 1,
                  "hard, %", "all words present, % of examples",
                  ("hard coverage", " points"), False),
    "soft": Score(float, 100, 1, "soft, %", "words present, %",
                  ("soft coverage", " points"), False),
    "reward": Score(float, 1, 3, "reward", "reward of the text",
                    ("reward", ""), True),
}


def first(names) -> str:
  """The score that methods are compared by.

  Args:
    names: any, some of `SCORES` among them.

  Returns:
    One of them.
  """
  return next(name for name in SCORES if name in names)


def lexical(concepts, pair, max_new_tokens) -> Judge:
  """The words that a text has, see `constraints.lexical`.

  Args:
    concepts: of each example, for each concept its surface forms.
    pair: a `model_pair.ModelPair`, for its vocabulary.
    max_new_tokens: the budget that they must fit in.

  Returns:
    The judge.

  Raises:
    ValueError: for a constraint that cannot be met.
  """
  pieces = tokenizers.pieces(pair.tokenizer, pair.target.vocab_size)
  return Judge(constraints.lexical(), constraints.vocabulary(pieces),
               constraints.concepts(concepts, pieces, max_new_tokens),
               ("hard", "soft"))


def model(name, pair, capacity) -> Judge:
  """A reward model, see `models.transformer.reward_model`.

  Args:
    name: its folder, or the name of a shipped one.
    pair: a `ModelPair`; their tokens must be those of the reward model.
    capacity: how many of the last tokens it reads, if it can so many.

  Returns:
    The judge.

  Raises:
    ValueError: if it gives no reward, or if its tokens are others.
    UserError: if there is no such model.
  """
  folder = launch.model_folder(name)
  if checkpoints.architecture(folder).outputs != 1:
    raise ValueError(f"reward={name!r} is a model of texts, not of rewards.")
  try:
    tokenizers.check_same(tokenizers.load(folder), pair.tokenizer)
  except ValueError as e:
    raise ValueError(f"reward={name!r} has another tokenizer than the target: "
                     f"{e}") from e
  lm, params = checkpoints.load(folder)
  reward = reward_model.reward(lm, min(capacity, lm.max_length), pair.eos_id)
  return Judge(reward, params, None, ("reward",))
