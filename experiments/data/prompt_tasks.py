"""Prompts and references of tasks, which `configs/tasks.py` describes."""

import collections
import hashlib
import json
import math
import pathlib
from typing import NamedTuple, Optional

import ml_collections
import numpy as np

from decoding_jax import argument_checks
from decoding_jax.speculation import tree_decoder
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import own_code
from experiments.data import prompt_templates
from experiments.data import python_corpus
from experiments.data import records
from experiments.scoring import text_metrics
from models.text import chat_template
from models.text import tokenizer_files

PYTHON, TEXT = "python", "text"
# Where the `file` of a task is.
_FILES = pathlib.Path(__file__).parent


class Examples(NamedTuple):
  """Prompts to decode."""
  prompts: list[list[int]]  # tokens of each, of any lengths
  # A text for each; None if the task has none.
  references: Optional[list[str]] = None
  # Tokens that end a row; None: rows are equally long.
  eos_id: Optional[tuple[int, ...]] = None
  # String, or strings, before which a text ends for its score; "" for none.
  stop: str | tuple[str, ...] = ""
  # Names of `text_metrics.CORPUS` that score the texts.
  metrics: tuple[str, ...] = ()
  note: str = ""  # a sentence about the choice of prompts; "" for none
  # Of each prompt; None if records have none.
  categories: Optional[list[str]] = None


def load(config, pair, now=None) -> Examples:
  """Loads `config.prompts` examples; a larger number extends a smaller one."""
  task = _own_task(config.task)
  if task is None:
    launch.check_known("--config.task", [config.task],
                       (PYTHON, TEXT, *config.tasks))
    task = config.tasks.get(config.task)
  launch.check_known("--config.too_long", [config.too_long],
                     prompt_templates.SIDES)
  launch.check_positive(config, "prompts", "prompt_length", "max_new_tokens",
                        "batch", "buckets")
  launch.check_used(config, system="chat")
  with launch.user_errors(ValueError, OSError):
    if config.task not in (PYTHON, TEXT):
      return _examples(config, task, pair, now)
    launch.check_unset(config, "category", "balanced", "longest_prompt", "chat")
    argument_checks.check_budget(config.prompt_length, config.max_new_tokens,
                                 pair.target, pair.draft)
    if config.task == TEXT and not config.data:
      raise ValueError("data is empty: task='text' needs a file.")
    texts = records.texts(config.data) if config.task == TEXT else None
    return Examples(python_corpus.prompts(
        pair.tokenizer, config.prompts, config.prompt_length,
        config.max_new_tokens, config.seed, texts, root=config.data or None))


def score(examples, texts, seed=0):
  """Scores texts, one a prompt: metric -> [figure, low, high], of 95 %."""
  if not examples.metrics:
    return {}
  stops = (examples.stop,) if isinstance(examples.stop, str) else examples.stop
  texts = [_before(text, stops).rstrip() for text in texts]
  return {name: text_metrics.CORPUS[name](texts, examples.references, seed)
          for name in examples.metrics}


def _before(text, stops):
  """Returns a text up to the first of some strings after its first word."""
  start = len(text) - len(text.lstrip())
  ends = [text.find(stop, start) for stop in stops if stop]
  return text[:min((end for end in ends if end >= 0), default=len(text))]


def fingerprint(examples):
  """Returns a short digest of prompts and references."""
  data = json.dumps([examples.prompts, examples.references])
  return hashlib.sha256(data.encode()).hexdigest()[:16]


def _own_task(name):
  """Returns the task that a function of one's own makes; None: another name."""
  if not own_code.module_of(name):
    return None
  task = method_specs.own_call(name, "--config.task")
  try:
    return ml_collections.ConfigDict({
        "ends": True, "stop": "", "metrics": (), **task})
  except TypeError as e:
    raise launch.UserError(f"--config.task={name} returns an object of type "
                           f"{type(task).__name__}: a dict is needed.") from e


def _examples(config, task, pair, now):
  """Makes prompts of records, in an order drawn with the seed."""
  launch.check_known(f"--config.tasks.{config.task}.metrics", task.metrics,
                     text_metrics.CORPUS)
  loaded = _records(config, task)
  form = prompt_templates.layout(task, loaded[0])
  encode = encoder(config, pair.tokenizer, form, now)
  longest = room(config, pair)
  prompts, references, categories = [], [], []
  shortened, left_out, category = 0, 0, _category_of(task)
  for i in _order(config, [*map(category, loaded)]):
    if len(prompts) == config.prompts:
      break
    values = prompt_templates.values(form, loaded[i])
    encoding = encode(values)
    if not encoding.ids:
      raise ValueError(f"{loaded[i].where}: its prompt is empty.")
    tokens = prompt_templates.shorten(encoding, longest, config.too_long)
    if tokens is None:
      left_out += 1
      continue
    shortened += len(tokens) < len(encoding.ids)
    prompts.append(tokens)
    references.append(prompt_templates.reference(form, values))
    categories.append(category(loaded[i]))
  note = _note(config, len(loaded), len(prompts), shortened, left_out, longest)
  if len(prompts) < config.prompts:
    raise ValueError(f"prompts={config.prompts} are too many. {note}")
  has_references = any(references)
  return Examples(
      prompts, references if has_references else None,
      pair.eos_id if task.ends else None, task.stop,
      tuple(name for name in task.metrics if has_references and (
          config.run_code or name != text_metrics.PASS_AT_1)), note,
      categories if all(categories) else None)


def _records(config, task):
  data = config.data
  if not data and task.get("file"):
    data = str(_FILES / task.file)
  rows = records.load(data, task.get("dataset"))
  if config.category:
    kinds = [records.field(row, "category") for row in rows]
    launch.check_known("--config.category", [config.category],
                       dict.fromkeys(kinds))
    rows = [x for x, kind in zip(rows, kinds) if kind == config.category]
  elsewhere = task.get("placeholder")
  left = [x for x in rows if not elsewhere
          or elsewhere not in json.dumps(x.value, default=str)]
  if not left:
    raise ValueError(f"data={data!r}: all {len(rows)} examples refer to other "
                     f"data sets ('{task.placeholder} ...'): the tool of the "
                     "data set has to fill them in first.")
  return left


def _order(config, kinds):
  order = np.random.default_rng(config.seed).permutation(len(kinds))
  if not config.balanced:
    return order
  seen, rounds = collections.Counter(), []
  for i in order:
    rounds.append(seen[kinds[i]])
    seen[kinds[i]] += 1
  return order[np.argsort(rounds, kind="stable")]


def _category_of(task):
  """Returns a function from records to the names of their groups, or ""."""
  groups = {category: group for group, categories in task.get(
      "groups", {}).items() for category in categories}

  def of_record(record):
    if not records.has(record, "category"):
      return ""
    category = records.field(record, "category")
    return groups.get(category, category)

  return of_record


def encoder(config, tokenizer, form, now=None):
  """Returns a function from the fields of a record to its encoded prompt."""
  if not config.chat:
    return lambda values: tokenizer_files.encode(
        tokenizer, prompt_templates.plain(form, values))
  encode = chat_template.encoder(launch.model_folder(config.target), tokenizer,
                                 now)
  return lambda values: encode(
      prompt_templates.messages(form, values, config.system))


def room(config, pair):
  """Returns the most tokens of a prompt; None for any number."""
  # `config.longest_prompt`, or, if that is 0, the positions of the models.
  argument_checks.check_budget(1, config.max_new_tokens, pair.target,
                               pair.draft)
  longest = min(positions(pair, config.max_new_tokens),
                config.longest_prompt or math.inf)
  return None if longest == math.inf else longest


def positions(pair, max_new_tokens, method=None):
  """Returns the positions that the models leave for a prompt, or infinity."""
  # Without a `method` a prompt stays within the drafter's window.
  draft = (argument_checks.limiting_draft(
      tree_decoder.decoders(method), pair.draft) if method else pair.draft)
  return min((model.max_length - max_new_tokens
              for model in (pair.target, draft)
              if model and model.max_length), default=math.inf)


def _note(config, count, used, shortened, left_out, longest):
  category = f" of category {config.category}" if config.category else ""
  line = (f"Task {config.task}: {used} prompts of the first {used + left_out} "
          f"of {count} examples{category}, in an order drawn with seed "
          f"{config.seed}"
          + (", each category in turn" if config.balanced else ""))
  if longest is None:
    return f"{line}; prompts may be of any length."
  what = (f"{left_out} longer ones were left out"
          if config.too_long == "leave_out" else
          f"of {shortened} longer ones the {config.too_long} end was cut off")
  return f"{line}; there is room for {longest} tokens, {what}."
