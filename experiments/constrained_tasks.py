"""Prompts, and the words that their continuations must have."""

import collections
import functools
import json
import keyword
import pathlib
import re
from typing import Any, NamedTuple

from experiments import corpus
from experiments import launch
from experiments import pairs
from models import tokenizers

_IDENTIFIER = re.compile(r"(?<!\w)[^\W\d]\w{2,}(?=\W)", re.ASCII)
# So many prompts are looked at for one that has identifiers.
_SPARE = 4


class Task(NamedTuple):
  """Examples of constrained decoding.

  Attributes:
    prompts: tokens of each.
    concepts: of each example, for each concept its surface forms.
    references: a text that meets the constraint, of each.
    eos_id: the token that ends a text, or None.
  """
  prompts: list[list[int]]
  concepts: list[list[list[str]]]
  references: list[str]
  eos_id: Any


def load(config, tokenizer) -> Task:
  """The examples of a config.

  Args:
    config: see `configs/cdsl.py`.
    tokenizer: of the models.

  Returns:
    A `Task` of `config.examples` examples.

  Raises:
    UserError: for an unknown task, and where files or examples are missing.
  """
  if config.task not in _TASKS:
    raise launch.UserError(f"task={config.task!r} is not one of "
                           f"{', '.join(map(repr, _TASKS))}.")
  launch.check_positive(config, "examples", "concepts", "prompt_length",
                        "max_new_tokens", "batch")
  with launch.user_errors(OSError, ValueError):
    return _TASKS[config.task](config, tokenizer)


def _python(config, tokenizer):
  """Held-out modules, and identifiers of what really follows.

  The identifiers are the first ones of the continuation that are common in the
  modules trained on; prompts without any are left out.
  """
  sizes = (config.prompt_length, config.max_new_tokens)
  options = {"seed": config.seed, "root": config.corpus or None}
  count = _SPARE * config.examples
  prompts = corpus.prompts(tokenizer, count, *sizes, **options)
  rests = corpus.references(tokenizer, count, *sizes, **options)
  references = [tokenizer.decode(rest) for rest in rests]
  known = _common(config.common, options["root"]) if config.common else None
  words = [[word for word in _identifiers(text)
            if known is None or word in known][:config.concepts]
           for text in references]
  chosen = [i for i, found in enumerate(words) if found][:config.examples]
  if len(chosen) < config.examples:
    raise ValueError(
        f"examples={config.examples}: only {len(chosen)} held-out prompts go "
        "on with an identifier of these.")
  return Task([prompts[i] for i in chosen],
              [[[word] for word in words[i]] for i in chosen],
              [references[i] for i in chosen], None)


def _identifiers(text):
  """Identifiers in the order in which they first occur, keywords left out."""
  return [word for word in dict.fromkeys(_IDENTIFIER.findall(text))
          if not keyword.iskeyword(word)]


@functools.lru_cache(maxsize=None)
def _common(count, root):
  """The identifiers that most modules of the training split have."""
  modules = collections.Counter()
  for _, text in corpus.modules(corpus.TRAIN, root):
    modules.update(_identifiers(text))
  return frozenset(word for word, _ in modules.most_common(count))


def _commongen(config, tokenizer):
  """Concept sets of CommonGen's dev split, and their inflections."""
  folder = pathlib.Path(config.corpus)
  lines = lambda name: (
      (folder / name).read_text("utf-8").splitlines()[:config.examples])
  prompts, references = lines("dev.src_alpha.txt"), lines("dev.tgt.txt")
  concepts = list(map(json.loads, lines("dev.constraint.json")))
  if not len(prompts) == len(references) == len(concepts) == config.examples:
    raise ValueError(
        f"examples={config.examples}: '{folder}' has {len(prompts)} concept "
        f"sets, {len(references)} references, {len(concepts)} constraints.")
  return Task([pairs.prompt_tokens(tokenizer, prompt) for prompt in prompts],
              concepts, references, tokenizers.eos_id(tokenizer))


_TASKS = {"python": _python, "commongen": _commongen}
