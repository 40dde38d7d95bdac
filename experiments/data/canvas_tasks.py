"""List operations and grids as rows of a prompt and a canvas.

All prompts are equally long, and so are all canvases; what an answer leaves of
its canvas are ends of text:

    replace k 2 b x d a - - - - - - - - - - - - =     b k d a <end> <end> ...
"""

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from experiments.app import launch
from experiments.data import batches
from experiments.data import parallel_bench
from models.text import tokenizers as tokenizers_lib

TASKS = parallel_bench.TASKS
CANVAS = 16
# The task, two arguments, what is given, and a sign.
PROMPT = 1 + 2 + CANVAS + 1
NOTHING, SIGN, MASK = "-", "=", "<mask>"
WORDS = (tokenizers_lib.EOS, NOTHING, SIGN, parallel_bench.BLANK, *TASKS,
         *parallel_bench.LETTERS, *parallel_bench.NUMBERS, MASK)
_IDS = {word: i for i, word in enumerate(WORDS)}
# Rows that are held out have seeds that no step of training has.
_HELD_OUT = 2**31


def tokenizer() -> tokenizers.Tokenizer:
  """Returns a tokenizer of words; token 0 ends a text, the last one masks."""
  made = tokenizers.Tokenizer(models.WordLevel(_IDS, unk_token=NOTHING))
  made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  return made


def prompt(task: str, arguments: list[str], given: list[str]) -> list[int]:
  """Returns the tokens of a prompt, `PROMPT` of them."""
  words = [task, *_filled(arguments, 2), *_filled(given, CANVAS), SIGN]
  return [_IDS[word] for word in words]


def canvas(answer: list[str]) -> list[int]:
  """Returns the tokens of an answer, `CANVAS` of them."""
  return [_IDS[word] for word in answer] + [0] * (CANVAS - len(answer))


def words(tokens) -> list[str]:
  """Returns the words of a canvas up to the first end of text."""
  chosen = [WORDS[token] for token in tokens]
  return chosen[:chosen.index(WORDS[0])] if WORDS[0] in chosen else chosen


def _filled(texts, size):
  return [*texts, *[NOTHING] * (size - len(texts))]


def draw(names, count: int, seed: int, start: int = 0):
  """Draws (task, arguments, given, answer) that no step of training sees."""
  drawn = []
  for i in range(start, start + count):
    name = names[i % len(names)]
    rng = np.random.default_rng((seed, _HELD_OUT, i))
    drawn.append((name, *TASKS[name].draw(rng)))
  return drawn


def is_right(example, tokens) -> bool:
  """Tells whether the tokens of a canvas answer an example of `draw`."""
  name, arguments, given, _ = example
  return TASKS[name].is_right(arguments, given, words(tokens))


def check(config) -> None:
  """Raises an error for tasks that there are not."""
  launch.check_known("--config.canvas_tasks", config.canvas_tasks, TASKS)
  if not config.masked:
    raise ValueError("--config.canvas_tasks needs --config.masked=True.")


def texts(config) -> list[str]:
  """Returns what identifies the data: names, words and a few examples."""
  return [" ".join(WORDS), *(
      f"{example}" for example in draw(config.canvas_tasks, 64, config.seed))]


def data(config, tokenizer_) -> batches.Data:
  """Makes rows of tasks in turn; the weights are 1 on the canvas, else 0."""
  if tokenizer_.get_vocab() != _IDS:
    raise ValueError(f"--config.tokenizer={config.tokenizer!r} is not that of "
                     "--config.canvas_tasks: another folder is needed.")
  size = PROMPT + CANVAS
  rows = max(1, config.batch_tokens // size)

  def train(step, _):
    rng = np.random.default_rng((config.seed, step))
    names = rng.choice(config.canvas_tasks, rows)
    return _batch([(name, *TASKS[name].draw(rng)) for name in names])

  def held_out(count):
    count = min(count, 4096)
    return _batch(draw(config.canvas_tasks, count, config.seed))

  return batches.Data(train, held_out)


def _batch(examples) -> batches.Batch:
  tokens = np.array([prompt(*example[:3]) + canvas(example[3])
                     for example in examples], np.int32)
  weights = np.zeros((len(tokens), tokens.shape[1] - 1), np.float32)
  weights[:, PROMPT - 1:] = 1
  return batches.Batch(tokens, weights)
