"""Texts that a teacher writes, for its student to learn from.

The student drafts after what the teacher has written, so this is the text on
which it has to agree.
"""

import pathlib

import jax
import numpy as np
import tqdm

import decoding_jax as dj


def load_or_write(path, config, data, teacher, teacher_params):
  """Samples at temperature 1 after prompts from the train split.

  Args:
    path: `.npy` file; read if it is there, else written.
    config: `sample_rows`, `sample_length`, `sample_batch` and `seed`.
    data: a `batches.Data`, which has the prompts.
    teacher: a language model.
    teacher_params: its parameters.

  Returns:
    `[sample_rows, sample_length]` int32, in the order of the prompts. A text
    that ends is followed by `types.PAD` if the data has an `eos_id`, else by
    the start of another, as in the corpus.
  """
  path = pathlib.Path(path)
  if path.exists():
    return np.load(path)
  samples = _write(config, data, teacher, teacher_params)
  partial = path.with_suffix(".partial")
  with open(partial, "wb") as f:
    np.save(f, samples)
  partial.replace(path)
  return samples


def _write(config, data, teacher, teacher_params):
  prompts, lengths = data.prompts(config.sample_rows)
  key = jax.random.key(config.seed)
  rows, width = prompts.shape
  batches = []
  with tqdm.tqdm(total=rows, desc="samples", unit="row") as bar:
    for start in range(0, rows, config.sample_batch):
      # The last batch is filled up, to have the compiled shape.
      chosen = np.arange(start, start + config.sample_batch) % rows
      out = dj.generate(
          jax.random.fold_in(key, start), prompts[chosen], lengths[chosen],
          method=dj.methods.autoregressive(), target=teacher,
          target_params=teacher_params, eos_id=data.eos_id,
          max_new_tokens=config.sample_length - width)
      batches.append(np.asarray(out.tokens))
      bar.update(min(config.sample_batch, rows - start))
  return np.concatenate(batches)[:rows]
