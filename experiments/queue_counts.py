"""Counts what the rows of a queue do, on lengths drawn like those of chats.

  python -m experiments.queue_counts
  python -m experiments.queue_counts --methods="rsd_s(3, 4)" --chunks=0,13 \\
      --rows=64 --prompts=1024

Lengths are log-normal, with the means that ShareGPT's prompts and answers have
(arXiv 2309.06180, figure 11). Models are tables: the target counts down, so
that the last token of a prompt is the length of its text, and its drafter is
right as often as the flags say. Nothing else of a model matters to the counts,
which are those of `dj.generate`. `--chunks=0` prefills a quarter of the rows at
a time, while the others wait.
"""

from typing import NamedTuple

from absl import flags
import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import tree, tree_decoder
from experiments.app import launch
from experiments.app import method_specs
from experiments.app import text_tables
from models import tabular

# Tokens of a prompt and of a text, at most; the longest ones are cut.
MOST = 512, 1024
# Of the logarithms of lengths.
_DEVIATION = 1.0
_HEADER = ("method", "chunk", "steps", "rows that write", "rows that read",
           "idle rows", "prefills of waiting rows", "tokens computed for one",
           "longest pause")


class Queue(NamedTuple):
  """Prompts, and the models that give each of them its length.

  Attributes:
    prompts: `[N, P]` int32.
    prompt_lengths: `[N]` int32.
    text_lengths: `[N]` int32.
    target: a `LanguageModel` and its parameters.
    draft: the same.
  """
  prompts: np.ndarray
  prompt_lengths: np.ndarray
  text_lengths: np.ndarray
  target: tuple
  draft: tuple


class Counts(NamedTuple):
  """Counts of a queue.

  Attributes:
    steps: of the loop.
    writing: row-steps that score a tree of a text.
    reading: row-steps that read a chunk of a prompt.
    idle: row-steps in which the row has finished, and no prompt takes it.
    prefills: forwards for which all rows wait.
    tokens: that the target computes for a token of a text.
    pause: most tokens that the target computes between two steps, and in the
      second of them.
  """
  steps: int
  writing: int
  reading: int
  idle: int
  prefills: int
  tokens: float
  pause: int


def main():
  methods = [method_specs.read(spec, "--methods") for spec in METHODS.value]
  with launch.user_errors(ValueError):
    chunks = [int(x) for x in CHUNKS.value]
  if not all(0 <= x < MOST[0] - 1 for x in chunks):
    raise launch.UserError(f"--chunks={','.join(CHUNKS.value)}: 0 to "
                           f"{MOST[0] - 2} are allowed.")
  if PROMPTS.value <= ROWS.value:
    raise launch.UserError(f"--prompts={PROMPTS.value}: more than "
                           f"--rows={ROWS.value} are needed.")
  queue = draw(PROMPTS.value, (PROMPT_MEAN.value, TEXT_MEAN.value),
               ACCEPTANCE.value, SEED.value)
  lines = [_HEADER]
  for method in methods:
    for chunk in chunks:
      with launch.user_errors(ValueError):
        found = count(method, queue, ROWS.value, chunk)
      size = found.steps * ROWS.value
      lines.append((method.name, str(chunk and max(chunk, nodes(method))),
                    str(found.steps), *(f"{x / size:.1%}" for x in (
                        found.writing, found.reading, found.idle)),
                    str(found.prefills), f"{found.tokens:.2f}",
                    str(found.pause)))
  print(text_tables.markdown("", lines))


def draw(prompts: int, means, acceptance: float, seed: int) -> Queue:
  """Draws the lengths of a queue, and makes models that have them.

  Args:
    prompts: N.
    means: tokens of a prompt and of a text, before the longest are cut.
    acceptance: probability that the drafter's first token is the target's; half
      of the other times its second one is.
    seed: of all that is drawn.
  """
  rng = np.random.default_rng(seed)
  lengths = [np.clip(np.rint(rng.lognormal(
      np.log(mean) - _DEVIATION**2 / 2, _DEVIATION, prompts)), 1, most).astype(
          np.int32) for mean, most in zip(means, MOST)]
  size = MOST[1] + 1
  tokens = rng.integers(1, size, (prompts, MOST[0])).astype(np.int32)
  tokens[np.arange(prompts), lengths[0] - 1] = lengths[1]
  order = np.arange(size)
  target = np.full((size, size), -np.inf)
  target[order, order - 1] = 0
  draft = np.full((size, size), -30.0)
  draft[order, rng.integers(1, size, size)] = -1
  rest = (1 - acceptance) / 2
  draft[order, order - 1] = rng.choice([0.0, -2.0, -40.0], size,
                                       p=[acceptance, rest, rest])
  return Queue(tokens, *lengths, tabular.TabularLM(target),
               tabular.TabularLM(draft))


def nodes(method: dj.Method) -> int:
  """Returns the nodes that a step of a greedy pair scores in a row."""
  return 1 + tree.num_nodes(method.greedy.drafter.layout)


def count(method: dj.Method, queue: Queue, rows: int, chunk: int) -> Counts:
  """Counts what happens in a queue at temperature 0.

  Args:
    method: whose greedy form is a pair.
    queue: of `draw`.
    rows: B, that are decoded together.
    chunk: `prefill_chunk` of `dj.generate`.

  Raises:
    ValueError: for a method without draft trees.
  """
  if not isinstance(method.greedy, dj.Pair):
    raise ValueError(f"method {method.name}: one with draft trees is needed.")
  (lm, params), forwards = queue.target, []

  def forward(params, tokens, *others):
    jax.debug.callback(lambda x: forwards.append(x.shape), tokens, ordered=True)
    return lm.forward(params, tokens, *others)

  drafts = tree_decoder.as_decoder(method.greedy).needs_draft
  draft = queue.draft if drafts else (None, None)
  out = dj.generate(
      jax.random.key(0), queue.prompts, queue.prompt_lengths, method=method,
      target=lm._replace(forward=forward), target_params=params,
      draft=draft[0], draft_params=draft[1], max_new_tokens=MOST[1],
      sampling=dj.Sampling(0.0), eos_id=0, rows=rows, prefill_chunk=chunk)
  jax.effects_barrier()
  np.testing.assert_array_equal(out.stats.emitted, queue.text_lengths)
  steps, width = int(out.steps), max(chunk, nodes(method))
  writing = int(out.stats.target_calls.sum())
  # The first rows are prefilled together.
  left = queue.prompt_lengths[rows:] - 1
  reading = int((-(-left // width)).sum()) if chunk else 0
  pauses = _pauses(forwards, rows)
  return Counts(
      steps, writing, reading, steps * rows - writing - reading,
      sum(len(pause) - 1 for pause in pauses[1:]),
      sum(map(np.prod, forwards)) / queue.text_lengths.sum(),
      max(map(sum, pauses[1:])))


def _pauses(forwards, rows):
  """Returns tokens of forwards, a list for each step: prefills, and its own.

  No row waits in the first one.
  """
  found = [[]]
  for shape in forwards:
    found[-1].append(int(np.prod(shape)))
    if shape[0] == rows and shape[1] < MOST[0] - 1:
      found.append([])
  return found[:-1]


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  METHODS = flags.DEFINE_multi_string(
      "methods", ["autoregressive", "speculative(4)", "rsd_s(3, 4)"],
      "Methods with draft trees, such as rsd_s(3, 4).")
  CHUNKS = flags.DEFINE_list(
      "chunks", ["0", "1", "16", "64"], "Prompt tokens that a row which joins "
      "reads in a step; as many as a step scores nodes, if these are more. 0: "
      "rows are prefilled while the others wait.")
  ROWS = flags.DEFINE_integer("rows", 16, "Rows decoded together.",
                              lower_bound=1)
  PROMPTS = flags.DEFINE_integer("prompts", 512, "Prompts of the queue.",
                                 lower_bound=2)
  PROMPT_MEAN = flags.DEFINE_float("prompt_mean", 161.31,
                                   "Mean tokens of a prompt.", lower_bound=1)
  TEXT_MEAN = flags.DEFINE_float("text_mean", 337.99, "Mean tokens of a text.",
                                 lower_bound=1)
  ACCEPTANCE = flags.DEFINE_float(
      "acceptance", 0.7, "How often the drafter's best token is the target's.",
      lower_bound=0, upper_bound=1)
  SEED = flags.DEFINE_integer("seed", 0, "Of all that is drawn.",
                              lower_bound=0)
  launch.run(main)
