"""Texts that a teacher writes, for its student to learn from.

The student drafts behind what the teacher has written, so this is the text on
which it has to agree.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import tqdm

import decoding_jax as dj
from experiments import corpus


def load_or_write(path, config, teacher, teacher_params, tokenizer):
  """Samples at temperature 1 behind prompts from the train split.

  Args:
    path: `.npy` file; read if it is there, else written.
    config: `sample_rows`, `sample_length`, `sample_prompt`, `sample_batch`,
      `corpus` and `seed`.
    teacher: a language model.
    teacher_params: its parameters.
    tokenizer: its tokenizer.

  Returns:
    `[sample_rows, sample_length]` int32; a text that ends is followed by the
    start of another, as in the corpus.
  """
  path = pathlib.Path(path)
  if path.exists():
    return np.load(path)
  prompts = np.asarray(corpus.prompts(
      tokenizer, config.sample_rows, config.sample_prompt, seed=config.seed,
      split=corpus.TRAIN, root=config.corpus or None), np.int32)
  samples = _write(config, teacher, teacher_params, prompts)
  partial = path.with_suffix(".partial")
  with open(partial, "wb") as f:
    np.save(f, samples)
  partial.replace(path)
  return samples


def _write(config, teacher, teacher_params, prompts):
  key = jax.random.key(config.seed)
  rows = len(prompts)
  batches = []
  with tqdm.tqdm(total=rows, desc="samples", unit="row") as bar:
    for start in range(0, rows, config.sample_batch):
      # The last batch is filled up, to have the compiled shape.
      chosen = np.arange(start, start + config.sample_batch) % rows
      out = dj.generate(
          jax.random.fold_in(key, start), prompts[chosen],
          jnp.full(len(chosen), config.sample_prompt),
          method=dj.methods.autoregressive(), target=teacher,
          target_params=teacher_params,
          max_new_tokens=config.sample_length - config.sample_prompt)
      batches.append(np.asarray(out.tokens))
      bar.update(min(config.sample_batch, rows - start))
  return np.concatenate(batches)[:rows]
