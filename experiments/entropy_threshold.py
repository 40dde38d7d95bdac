"""Fits the entropy from which `adadec` looks ahead to a model.

  python -m experiments.entropy_threshold --target=python-target
  python -m experiments.entropy_threshold --target=hub:Qwen/Qwen3-0.6B \\
      --texts=solutions.jsonl --field=code

Reads texts of the kind that the model is to write, asks it for each token of
them whether its most probable one is right, and prints the entropy that best
tells right from wrong (arXiv 2506.08980). The default texts are held-out
modules of Python's standard library.
"""

import functools

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.search.lookahead import entropy_gate
from experiments.app import launch
from experiments.data import python_corpus
from experiments.data import records
from models import checkpoints
from models import transformer
from models.text import tokenizer_files
from models.text import tokenizers

# Windows that are read at a time.
_BATCH = 8


def main():
  with launch.user_errors(OSError, ValueError):
    folder = launch.model_folder(TARGET.value)
    tokenizer = tokenizers.load(folder)
    tokens = read(tokenizer, TEXTS.value, FIELD.value)[:TOKENS.value]
    lm, params = checkpoints.load(folder)
    window = min(WINDOW.value, lm.max_length or WINDOW.value)
    entropies, correct = measure(lm, params, tokens, window)
    threshold = entropy_gate.fit_threshold(entropies, correct)
  print(describe(entropies, correct, threshold))


def read(tokenizer, texts, field) -> np.ndarray:
  """Returns the tokens of all texts, `[n]` int32.

  Args:
    tokenizer: of the target.
    texts: a file, see `records.load`; "" for held-out modules of Python.
    field: of a record that is an object.

  Raises:
    ValueError, OSError: for texts that cannot be read.
  """
  if not texts:
    return python_corpus.encode(tokenizer, python_corpus.HELD_OUT)
  found = records.load(texts, name="--texts")
  return np.concatenate([np.asarray(tokenizer_files.encode(
      tokenizer, record.value if isinstance(record.value, str) else
      records.field(record, field)).ids, np.int32) for record in found])


def measure(lm, params, tokens, window):
  """Reads a text in windows, each of them without what is before it.

  Args:
    lm: a model.
    params: its parameters.
    tokens: `[n]` int32.
    window: tokens of a window.

  Returns:
    `[N]` entropies in nats and `[N]` bool, whether the most probable token is
    the next one of the text; of each token but the first of a window.

  Raises:
    ValueError: if there are fewer tokens than one window has.
  """
  count = len(tokens) // window
  if window < 2 or not count:
    raise ValueError(f"{len(tokens)} tokens of texts: at least one window of "
                     f"{window} is needed, of two tokens or more.")
  windows = tokens[:count * window].reshape(count, window)
  found = [_measure(lm, params, windows[np.arange(i, i + _BATCH) % count])
           for i in range(0, count, _BATCH)]
  return tuple(np.concatenate([np.asarray(x) for x in part])[:count].ravel()
               for part in zip(*found))


@functools.partial(jax.jit, static_argnums=0)
def _measure(lm, params, windows):
  logits = transformer.causal_logits(lm, params, windows)[:, :-1]
  return (entropy_gate.entropy(logits),
          jnp.argmax(logits, axis=-1) == windows[:, 1:])


def describe(entropies, correct, threshold) -> str:
  """Returns the threshold and what it tells, as one line."""
  trusted = entropies < threshold
  right = float(np.mean(trusted == correct))
  return (f"threshold={threshold:.3f} nats: of {len(entropies)} tokens "
          f"{np.mean(~trusted):.1%} would be looked ahead for; the most "
          f"probable token is right in {np.mean(correct):.1%}, and the "
          f"threshold tells right from wrong in {right:.1%}. Use "
          f"--method='adadec(threshold={threshold:.3f})'.")


# See `experiments.rsd` for why flags are defined here.
if __name__ == "__main__":
  TARGET = flags.DEFINE_string("target", "python-target",
                               "Model: folder, hub:owner/name, or the name of "
                               "a shipped one.")
  TEXTS = flags.DEFINE_string(
      "texts", "", "File of texts: .jsonl, .json with a list, or one text, "
      "perhaps compressed (.gz); '' for held-out modules of Python.")
  FIELD = flags.DEFINE_string("field", "text",
                              "Field of a text in a JSON object.")
  TOKENS = flags.DEFINE_integer("tokens", 20_000, "Most tokens to read.",
                                lower_bound=2)
  WINDOW = flags.DEFINE_integer("window", 256, "Tokens read at a time.",
                                lower_bound=2)
  launch.run(main)
