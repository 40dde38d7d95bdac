"""Rewards of tasks, and the scores that are reported of them."""

from typing import Any, Callable, NamedTuple

from decoding_jax import constraints
import decoding_jax as dj
from experiments.app import launch
from experiments.app import text_tables
from models import checkpoints
from models.text import text_scorer
from models.text import tokenizers
from models.transformer import reward_model


class Judge(NamedTuple):
  """A reward of a task, with its parameters."""
  reward: dj.Reward
  params: Any
  constraints: Any  # tree of `[R, ...]`, one entry per example; or None
  scores: tuple[str, ...]  # names of `SCORES` to report
  host_params: Any = None  # of a reward on the host, for its digest
  # `(texts, prompts) -> [N]`, another reward of finished texts, which no method
  # sees; or None.
  second: Any = None


class Score(NamedTuple):
  """A score of a text, computed from its reward."""
  of: Callable[[float], float]  # `reward -> score`
  scale: float  # factor of the reported mean
  digits: int  # decimals of the reported mean
  title: str
  axis: str


# Methods are compared by the first of them that a task has.
SCORES = {
    "hard": Score(lambda value: int(constraints.hard_coverage(value)), 100, 1,
                  "hard, %", "all words present, % of examples"),
    "soft": Score(float, 100, 1, "soft, %", "words present, %"),
    "reward": Score(float, 1, 3, "reward", "reward of the text"),
    "second": Score(float, 1, 3, "second reward", "second reward of the text"),
}


def first(names) -> str:
  """Returns the score that methods are compared by, of some of `SCORES`."""
  return next(name for name in SCORES if name in names)


def lexical(concepts, pair, max_new_tokens, banned=None) -> Judge:
  """Makes the reward of lexical constraints, see `constraints.lexical`."""
  # `concepts` are the surface forms of each concept of each example. With
  # `banned` ones the reward is the mean of the share of the concepts that the
  # text contains, and of the share of the banned ones that it avoids. Raises a
  # `ValueError` for a constraint that cannot be met in the budget.
  pieces = tokenizers.pieces(pair.tokenizer, pair.target.vocab_size)
  vocabulary = constraints.vocabulary(pieces)
  rows = constraints.concepts(concepts, pieces, max_new_tokens)
  scores = ("hard", "soft")
  if banned is None:
    return Judge(constraints.lexical(), vocabulary, rows, scores)
  reward = constraints.weighted_sum(
      ((0.5, constraints.lexical()), (0.5, constraints.avoided())))
  return Judge(reward, (vocabulary, vocabulary),
               (rows, constraints.concepts(banned, pieces)), scores)


def model(name, pair, capacity, on_host=False, max_new_tokens=None) -> Judge:
  """Makes the reward of a model, see `models.transformer.reward_model`."""
  # It reads the last `capacity` tokens, at most its `max_length`; a dual
  # encoder as many of prompt and text each. `on_host` it may have another
  # tokenizer than the pair, and scores at most `max_new_tokens`.
  folder = _reward_folder(name, "reward", dual=not on_host)
  tokenizer = tokenizers.load(folder)
  if on_host:
    lm, params = checkpoints.load(folder)
    score = text_scorer.scorer(lm, params, tokenizer, lm.max_length or capacity)
    reward = dj.rewards.on_host(score, decode=pair.tokenizer.decode,
                                max_tokens=max_new_tokens)
    return Judge(reward, None, None, ("reward",), params)
  try:
    tokenizers.check_same(tokenizer, pair.tokenizer)
  except ValueError as e:
    raise ValueError(f"reward={name!r} has another tokenizer than the target: "
                     f"{e} It needs --config.reward_on_host=True.") from e
  lm, params = checkpoints.load(folder)
  reward = reward_model.reward(lm, min(capacity, lm.max_length), pair.eos_id,
                               checkpoints.architecture(folder).outputs > 1)
  return Judge(reward, params, None, ("reward",))


def second(name):
  """Loads another reward model, `(texts, prompts) -> [N]` float32."""
  # It judges what the first one has steered.
  folder = _reward_folder(name, "second_reward")
  lm, params = checkpoints.load(folder)
  return text_scorer.scorer(lm, params, tokenizers.load(folder),
                            lm.max_length)


def _reward_folder(name, field, dual=False):
  if not name:
    raise ValueError(f"{field}='': a reward model is needed here.")
  folder = launch.model_folder(name)
  outputs = checkpoints.architecture(folder).outputs
  if outputs != 1 and not (dual and outputs):
    raise ValueError(f"{field}={name!r} is a model of texts, not of rewards"
                     f"{' on the host' * bool(outputs)}.")
  return folder


def host_costs(judge) -> str:
  """Returns a line about a reward on the host; "" for any other."""
  report = dj.rewards.host_report(judge.reward)
  if report is None:
    return ""
  return (f"reward on the host: {text_tables.count(report.calls, 'call')}, "
          f"{text_tables.count(report.texts, 'text')}, {report.repeated} "
          f"repeated, {report.seconds:.1f} s "
          f"({1e3 * report.seconds / max(report.texts, 1):.1f} ms a text)")
