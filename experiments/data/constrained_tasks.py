"""Tasks of constrained decoding: prompts, references and rewards."""

import collections
import functools
import hashlib
import itertools
import json
import keyword
import pathlib
import re
from typing import Any, NamedTuple

import jax
import numpy as np

from decoding_jax import argument_checks
from experiments.app import launch
from experiments.data import constraint_file
from experiments.data import parallel_text
from experiments.data import preference_pairs
from experiments.data import prompt_tasks
from experiments.data import python_corpus
from experiments.data import records
from experiments.scoring import task_rewards
from models.text import chat_template
from models.text import tokenizers

_DIALOGUES = "hh_harmless_base_test.jsonl.gz"
# Prompts, references and constraints of a split of CommonGen.
_COMMONGEN = ("{}.src_alpha.txt", "{}.tgt.txt", "{}.constraint.json")
_WORD_SETS = pathlib.Path(__file__).parent / "word_sets.jsonl"
_IDENTIFIER = re.compile(r"(?<!\w)[^\W\d]\w{2,}(?=\W)", re.ASCII)
# Fields of a config that a task does not read.
_PROMPT = ("prompt.template", "prompt.answer", "prompt.shots")
_REWARD = ("reward", "reward_on_host")
_IGNORED = {
    "python": ("split", "chat", *_REWARD, *_PROMPT), "commongen": _REWARD,
    "harmless": ("split", *_PROMPT), "file": ("split",),
    "continue": ("split", "chat", "reward_on_host", *_PROMPT)}
# Prompts to look at for each one that has identifiers.
_SPARE = 4


class Task(NamedTuple):
  """Examples of constrained decoding."""
  prompts: list[list[int]]  # tokens of each
  references: list[str]  # a good text for each
  eos_id: Any  # tokens that end a text, or None
  judge: task_rewards.Judge  # the reward, and what is reported of it


def load(config, pair) -> Task:
  """Loads `config.examples` examples of a config as in `configs/cdsl.py`."""
  launch.check_known("--config.task", [config.task], _TASKS)
  launch.check_positive(config, "examples", "concepts", "prompt_length",
                        "max_new_tokens", "batch")
  launch.check_used(config, system="chat")
  launch.check_unset(config, *_IGNORED[config.task])
  with launch.user_errors(OSError, ValueError):
    task = _TASKS[config.task](config, pair)
    if not config.second_reward:
      return task
    second = task_rewards.second(config.second_reward)
    return task._replace(judge=task.judge._replace(second=second))


def fingerprint(task) -> str:
  """Returns a short digest of prompts, references and constraints."""
  digest = hashlib.sha256(json.dumps([task.prompts, task.references]).encode())
  for leaf in jax.tree.leaves(task.judge.constraints):
    digest.update(np.asarray(leaf).tobytes())
  return digest.hexdigest()[:16]


def advice(config) -> str:
  """Returns a warning if a chat model is asked without its template, or ""."""
  if config.chat or config.prompt.shots:
    return ""
  try:
    chat_template.load(launch.model_folder(config.target))
  except (OSError, ValueError):
    return ""
  return (f"target={config.target!r} is a chat model, and reads prompts as "
          "plain text without solved examples: it may not understand them. "
          "--config.chat=True writes them with its template, --config.prompt."
          "shots are examples; configs/cdsl_llm.py has both.")


def _python(config, pair):
  """Loads held-out modules, with identifiers of what really follows."""
  # These are the first ones that are common in the training modules; prompts
  # without any are left out.
  prompts, references = _passages(config, pair, _SPARE * config.examples)
  known = _common(config.common, config.corpus or None) if (
      config.common) else None
  words = [[word for word in _identifiers(text, pair.tokenizer.decode(prompt))
            if known is None or word in known][:config.concepts]
           for prompt, text in zip(prompts, references)]
  chosen = [i for i, names in enumerate(words) if names][:config.examples]
  if len(chosen) < config.examples:
    raise ValueError(
        f"examples={config.examples}: only {len(chosen)} held-out prompts go "
        "on with an identifier of these.")
  concepts = [[[word] for word in words[i]] for i in chosen]
  return Task([prompts[i] for i in chosen], [references[i] for i in chosen],
              None, task_rewards.lexical(concepts, pair, config.max_new_tokens))


def _continuations(config, pair):
  """Loads held-out modules; a dual encoder scores what goes on with them."""
  longest = max(config.prompt_length, config.max_new_tokens)
  return Task(*_passages(config, pair, config.examples), None,
              task_rewards.model(config.reward, pair, longest))


def _passages(config, pair, count):
  """Returns prompts of held-out modules, and the texts that go on with them."""
  sizes = (config.prompt_length, config.max_new_tokens)
  argument_checks.check_budget(*sizes, pair.target, pair.draft)
  passages = python_corpus.prompts(pair.tokenizer, count, sum(sizes),
                                   seed=config.seed, root=config.corpus or None)
  prompts, rests = ([x[at] for x in passages] for at in (
      slice(sizes[0]), slice(sizes[0], None)))
  return prompts, [tokenizers.decode(pair.tokenizer, rest, prompt)
                   for prompt, rest in zip(prompts, rests)]


def _identifiers(text, before=""):
  """Returns identifiers of a text, no keywords; `before` ends its words."""
  words = _IDENTIFIER.findall(before + text, len(before))
  return [word for word in dict.fromkeys(words) if not keyword.iskeyword(word)]


@functools.lru_cache(maxsize=None)
def _common(count, root):
  """Returns the identifiers that occur in most modules of the train split."""
  modules = collections.Counter()
  for _, text in python_corpus.modules(python_corpus.TRAIN, root):
    modules.update(_identifiers(text))
  return frozenset(word for word, _ in modules.most_common(count))


def _commongen(config, pair):
  launch.check_used(config, split="corpus")
  words, references, concepts = (_of_folder if config.corpus else
                                 _word_sets)(config)
  return Task(_commongen_prompts(config, pair.tokenizer, words), references,
              pair.eos_id,
              task_rewards.lexical(concepts, pair, config.max_new_tokens))


def _word_sets(config):
  """Returns words, references and forms of the sets that come along."""
  sets = constraint_file.load(str(_WORD_SETS), config.examples)
  return ([" ".join(forms[0] for forms in x.words) for x in sets],
          [x.reference for x in sets], [x.words for x in sets])


def _of_folder(config):
  folder = pathlib.Path(config.corpus)
  names = [name.format(config.split or "dev") for name in _COMMONGEN]
  words, references, concepts = (
      x[:config.examples] for x in parallel_text.lines(folder, names))
  concepts = [_parsed(folder / names[-1], i, line)
              for i, line in enumerate(concepts, 1)]
  if not len(words) == len(references) == len(concepts) == config.examples:
    raise ValueError(
        f"examples={config.examples}: '{folder}' has {len(words)} concept "
        f"sets, {len(references)} references, {len(concepts)} constraints.")
  return words, references, concepts


def _commongen_prompts(config, tokenizer, words):
  """Encodes prompts as the shipped pair has learnt, or as the config says."""
  if not config.prompt.template:
    launch.check_unset(config, *_PROMPT, there="without a template")
    return [parallel_text.prompt_tokens(tokenizer, x) for x in words]
  encode = _encoder(config, tokenizer)
  return [encode({"words": ", ".join(x.split())}) for x in words]


def _encoder(config, tokenizer):
  """Returns a function from fields of an example to its prompt's tokens."""
  form = config.prompt
  if not form.template:
    raise ValueError("prompt.template is empty: it says what the target is to "
                     "do with an example, such as '{prompt}'.")
  encode = prompt_tasks.encoder(config, tokenizer, form)
  return lambda values: encode(values).ids


def _file(config, pair):
  examples = constraint_file.load(config.corpus, config.examples)
  encode = _encoder(config, pair.tokenizer)
  prompts = [encode(example.fields) for example in examples]
  words, banned = ([getattr(x, name) for x in examples]
                   for name in (constraint_file.WORDS, constraint_file.BANNED))
  if any(words) or any(banned):
    launch.check_unset(config, *_REWARD, there=f"on words of {config.corpus}")
    judge = task_rewards.lexical(words, pair, config.max_new_tokens,
                                 banned=banned if any(banned) else None)
  else:
    longest = max(map(len, prompts)) + config.max_new_tokens
    judge = task_rewards.model(config.reward, pair, longest,
                               config.reward_on_host, config.max_new_tokens)
  return Task(prompts, [x.reference for x in examples], pair.eos_id, judge)


def _parsed(path, number, line):
  value = records.parsed(f"'{path}', line {number}", line).value
  if not isinstance(value, list):
    raise ValueError(f"'{path}', line {number} is of type "
                     f"{type(value).__name__}: a list of concepts is needed, "
                     "each a list of forms.")
  return value


def _harmless(config, pair):
  """Loads held-out dialogues up to their last answers."""
  # A reward model scores prompt and answer; the references are the answers that
  # people preferred.
  pairs = preference_pairs.read(config.corpus, _DIALOGUES,
                                python_corpus.HELD_OUT)
  encode = _dialogue_encoder(config, pair.tokenizer)
  encoded = ((encode(before), answer.strip()) for before, _, answer in (
      chosen.rpartition(preference_pairs.ANSWER) for chosen, _ in pairs))
  # A chat that is cut off would lose its template.
  size = config.prompt_length
  fitting = (x for x in encoded if not config.chat or len(x[0]) <= size)
  chosen = list(itertools.islice(fitting, config.examples))
  if len(chosen) < config.examples:
    raise ValueError(f"examples={config.examples}: '{config.corpus}' has "
                     f"{len(pairs)} held-out dialogues, {len(chosen)} of them "
                     f"for prompt_length={size}.")
  prompts, answers = zip(*chosen)
  return Task([prompt[-size:] for prompt in prompts], list(answers),
              pair.eos_id,
              task_rewards.model(config.reward, pair,
                                 size + config.max_new_tokens,
                                 config.reward_on_host,
                                 config.max_new_tokens))


def _dialogue_encoder(config, tokenizer):
  """Returns a function from a dialogue before its last answer to tokens."""
  if not config.chat:
    return lambda text: preference_pairs.encode(
        tokenizer, text + preference_pairs.ANSWER)
  encode = chat_template.encoder(launch.model_folder(config.target), tokenizer)
  system = [{"role": "system", "content": config.system}]
  return lambda text: encode(
      system * bool(config.system) + preference_pairs.messages(text)).ids


_TASKS = {"python": _python, "commongen": _commongen, "harmless": _harmless,
          "continue": _continuations, "file": _file}
