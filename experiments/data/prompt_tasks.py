"""Prompts of an experiment, and the references that their tasks have.

A task is described by its config alone, see `configs/tasks.py`: where the
fields of a record are, how they become a prompt, and whether a text ends.
"""

import hashlib
import json
import math
from typing import NamedTuple, Optional

import numpy as np

from decoding_jax import argument_checks
from experiments.app import launch
from experiments.data import prompt_templates
from experiments.data import python_corpus
from experiments.data import records
from experiments.scoring import text_metrics
from models.text import chat_template
from models.text import tokenizer_files

PYTHON, TEXT = "python", "text"


class Examples(NamedTuple):
  """What is decoded.

  Attributes:
    prompts: tokens of each, not all equally many.
    references: a text of each; None if the task has none.
    eos_id: tokens that end a row; None: rows are equally long.
    stop: a text is scored up to here; "" for all of it.
    metrics: names of `text_metrics.CORPUS`, by which texts are scored.
    note: what is to be said of the choice; "" for nothing.
  """
  prompts: list[list[int]]
  references: Optional[list[str]] = None
  eos_id: Optional[tuple[int, ...]] = None
  stop: str = ""
  metrics: tuple[str, ...] = ()
  note: str = ""


def load(config, pair, now=None) -> Examples:
  """The examples of a config; more of them extend fewer.

  Args:
    config: see `configs/rsd.py`.
    pair: a `ModelPair`.
    now: see `chat_template.load`.

  Returns:
    `config.prompts` examples.

  Raises:
    UserError: for an unknown task, a file that cannot be read, a field that is
      missing, and for too few prompts.
  """
  _check_name("task", config.task, (PYTHON, TEXT, *config.tasks))
  _check_name("too_long", config.too_long, prompt_templates.SIDES)
  launch.check_positive(config, "prompts", "prompt_length", "max_new_tokens",
                        "batch", "buckets")
  launch.check_seed(config)
  with launch.user_errors(ValueError, OSError):
    if config.task in (PYTHON, TEXT):
      argument_checks.check_budget(config.prompt_length, config.max_new_tokens,
                                   pair.target, pair.draft)
    if config.task == PYTHON:
      return Examples(python_corpus.prompts(
          pair.tokenizer, config.prompts, config.prompt_length,
          config.max_new_tokens, config.seed, root=config.data or None))
    if config.task == TEXT:
      return _continuations(config, pair.tokenizer)
    return _examples(config, pair, now)


def score(examples, texts, seed=0):
  """Figures of generated texts by the metrics of a task.

  Args:
    examples: of `load`.
    texts: one a prompt; not needed without metrics.
    seed: of the bootstrap.

  Returns:
    dict from the name of a metric to [figure, low, high] of a 95 % interval.
  """
  if not examples.metrics:
    return {}
  if examples.stop:
    texts = [text.lstrip().split(examples.stop)[0] for text in texts]
  texts = [text.strip() for text in texts]
  return {name: text_metrics.CORPUS[name](texts, examples.references, seed)
          for name in examples.metrics}


def fingerprint(examples):
  """A short digest of prompts and references."""
  data = json.dumps([examples.prompts, examples.references])
  return hashlib.sha256(data.encode()).hexdigest()[:16]


def _check_name(what, name, known):
  if name not in known:
    raise launch.UserError(
        f"--config.{what}={name!r} is not one of "
        f"{', '.join(map(repr, known))}.")


def _continuations(config, tokenizer):
  """Stretches of any texts, all of one length."""
  if not config.data:
    raise ValueError("data is empty: task='text' needs a file.")
  texts = [
      records.field(r, "text" if isinstance(r.value, dict) else "")
      for r in records.load(config.data)]
  passages = python_corpus.passages(
      tokenizer, config.prompts, config.prompt_length + config.max_new_tokens,
      config.seed, texts)
  return Examples([passage[:config.prompt_length] for passage in passages])


def _examples(config, pair, now):
  """Prompts from records, in an order drawn with the seed."""
  task = config.tasks[config.task]
  for name in task.metrics:
    _check_name(f"tasks.{config.task}.metrics", name,
                tuple(text_metrics.CORPUS))
  found = records.load(config.data, task.get("dataset"))
  if config.category:
    found = _of_category(found, config.category)
  form = prompt_templates.layout(task, found[0])
  encode = _encoder(config, pair.tokenizer, form, now)
  longest = room(config, pair)
  prompts, references, shortened, left_out = [], [], 0, 0
  for i in np.random.default_rng(config.seed).permutation(len(found)):
    if len(prompts) == config.prompts:
      break
    values = prompt_templates.values(form, found[i])
    encoding = encode(values)
    if not encoding.ids:
      raise ValueError(f"{found[i].where}: its prompt is empty.")
    tokens = prompt_templates.shorten(encoding, longest, config.too_long)
    if tokens is None:
      left_out += 1
      continue
    shortened += len(tokens) < len(encoding.ids)
    prompts.append(tokens)
    references.append(prompt_templates.answer(form, values).strip())
  note = _note(config, len(found), len(prompts), shortened, left_out, longest)
  if len(prompts) < config.prompts:
    raise ValueError(f"prompts={config.prompts} are too many. {note}")
  return Examples(
      prompts, references if form.get("answer") else None,
      pair.eos_id if task.ends else None, task.stop,
      tuple(task.metrics) if form.get("answer") else (), note)


def _of_category(found, category):
  kinds = [records.field(record, "category") for record in found]
  if category not in kinds:
    raise ValueError(f"category={category!r} is not one of "
                     f"{', '.join(map(repr, dict.fromkeys(kinds)))}.")
  return [record for record, kind in zip(found, kinds) if kind == category]


def _encoder(config, tokenizer, form, now):
  """A function from the fields of a record to the encoding of its prompt."""
  if not config.chat:
    return lambda values: tokenizer_files.encode(
        tokenizer, prompt_templates.plain(form, values))
  encode = chat_template.encoder(launch.model_folder(config.target), tokenizer,
                                 now)
  return lambda values: encode(
      prompt_templates.messages(form, values, config.system))


def room(config, pair):
  """Tokens of the longest prompt that is taken; None: of any length.

  Args:
    config: `longest_prompt`, 0 for what the models have; `max_new_tokens`.
    pair: a `ModelPair`.
  """
  if config.longest_prompt < 0:
    raise ValueError(
        f"longest_prompt={config.longest_prompt}: at least 0 is needed.")
  argument_checks.check_budget(1, config.max_new_tokens, pair.target,
                               pair.draft)
  longest = min(positions(pair, config.max_new_tokens),
                config.longest_prompt or math.inf)
  return None if longest == math.inf else longest


def positions(pair, max_new_tokens):
  """Those that the models have for a prompt; infinity if there is no limit.

  Args:
    pair: a `ModelPair`.
    max_new_tokens: the budget after it.
  """
  return min((model.max_length - max_new_tokens
              for model in (pair.target, pair.draft)
              if model and model.max_length), default=math.inf)


def _note(config, found, used, shortened, left_out, longest):
  """What became of the examples, in one line."""
  kind = f" of category {config.category}" if config.category else ""
  line = (f"Task {config.task}: {used} prompts of the first {used + left_out} "
          f"of {found} examples{kind}, in an order drawn with seed "
          f"{config.seed}")
  if longest is None:
    return f"{line}; prompts may be of any length."
  what = (f"{left_out} longer ones were left out"
          if config.too_long == "leave_out" else
          f"of {shortened} longer ones the {config.too_long} end was cut off")
  return f"{line}; there is room for {longest} tokens, {what}."
