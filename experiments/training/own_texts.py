"""Training data of a drafter: texts that its target writes itself.

A drafter is to agree with its target on the target's own answers, so that these
are all the data it needs, whatever the target is. Questions come from
a file, or from the target as well: its chat template, cut off where a user
speaks, is continued by what users say (Magpie, arXiv 2406.08464). A target
without a template begins with its first token.

Texts are kept in files of `CHUNK` texts each: a run that was killed goes on
after the last file. A drafter that is to serve greedy decoding too needs greedy
answers among them.
"""

import functools
import hashlib
import numbers
import pathlib

import jax
import numpy as np

import decoding_jax as dj
from decoding_jax import types
from decoding_jax.validation import keys as row_keys
from experiments.app import launch
from experiments.data import batches
from experiments.data import parallel_text
from experiments.data import records
from experiments.devices import mesh as mesh_lib
from experiments.training import array_files
from models.text import chat_template
from models.text import tokenizer_files
from models.text import tokenizers

_FOLDER = "texts"
CHUNK = 256
# Prompts are padded to a multiple of it, so that there are few programs.
_WIDTH = 32
# One text in this many is held out.
_STRIDE = 16
_MARK = "\u2042"


def is_source(config) -> bool:
  """Returns whether a target's own texts are the data."""
  return bool(config.own_texts or config.prompts)


def check(config) -> None:
  """Raises a ValueError for settings that do not describe own texts."""
  if not config.teacher:
    raise ValueError(f"--config.own_texts={config.own_texts}, --config.prompts="
                     f"{config.prompts!r} need a --config.teacher that writes.")
  launch.check_positive(config, "sample_batch")
  if config.sample_fraction:
    raise ValueError(f"--config.sample_fraction={config.sample_fraction}: all "
                     "texts are the teacher's, so that it must be 0.")
  temperatures = config.answer_temperatures
  if not temperatures or not all(isinstance(x, numbers.Real) and x >= 0
                                 for x in temperatures):
    raise ValueError(f"--config.answer_temperatures={tuple(temperatures)}: "
                     "numbers of at least 0 are needed, such as (1.0, 0.0).")
  batches.check_ascending(config)
  if not 2 <= config.sample_length <= max(config.windows) + 1:
    raise ValueError(
        f"--config.sample_length={config.sample_length} must be 2 to one more "
        f"than the longest of --config.windows={tuple(config.windows)}.")
  if config.prompts:
    _prompts_of_file(config)


def texts(config) -> list[str]:
  """Returns the prompts of the file, which are part of a run."""
  return [str(x) for x in _prompts_of_file(config)] if config.prompts else []


def data(config, tokenizer, teacher) -> batches.Data:
  """Samples the texts, or reads them; the loss is over what was written."""
  write = functools.partial(_written, config, tokenizer, teacher)
  start, encode = _template(config.teacher, tokenizer)
  questions = _prompts_of_file(config) if config.prompts else []
  if config.own_texts:
    asked = write("questions", [start] * config.own_texts,
                  config.sample_length // 2)
    questions += [tokenizer.decode(row[n:end].tolist()).strip()
                  for row, n, end in zip(*asked)]
  prompts = [encode(question) for question in questions if question]
  # A text has room for an answer at least as long as its prompt.
  prompts = [x for x in prompts if len(x) <= config.sample_length // 2]
  if not prompts:
    raise ValueError("no prompt is at most half of --config.sample_length="
                     f"{config.sample_length} tokens long.")
  return _batches(config, write("answers", prompts, config.sample_length,
                                config.answer_temperatures))


def _prompts_of_file(config):
  loaded = records.load(config.prompts, by_line=True, name="--config.prompts")
  return [x.value if isinstance(x.value, str)
          else records.find(x, config.prompts_field) for x in loaded]


def _template(name, tokenizer):
  """Returns what comes before a user's words, and `question -> tokens`."""
  try:
    render = chat_template.load(name)
  except ValueError as e:
    if "has no chat template" not in str(e):
      raise
    first = tokenizer.encode("").ids or [
        tokenizers.eos_id(tokenizer, name) or 0]
    return first, lambda text: tokenizer_files.encode(tokenizer, text).ids
  encode = chat_template.encoder(name, tokenizer)
  before = render([{"role": "user", "content": _MARK}]).partition(_MARK)[0]
  return tokenizer_files.encode(
      tokenizer, before, add_special_tokens=False).ids, lambda said: encode(
          said if isinstance(said, list) else [
              {"role": "user", "content": said}]).ids


def _written(config, tokenizer, teacher, name, prompts, length,
             temperatures=(1.0,)):
  """Returns `Rows` of prompts and what follows, `length` tokens at most."""
  starts = np.array([len(prompt) for prompt in prompts], np.int32)
  if starts.min() >= length:
    raise ValueError(f"--config.sample_length={config.sample_length} leaves no "
                     f"room after {starts.min()} tokens of the chat template.")
  # A folder of its own for all that texts depend on.
  settings = [config[x] for x in ("teacher", "teacher_dtype", "seed",
                                  "sample_batch")]
  digest = hashlib.sha256(repr((settings, prompts, length, tuple(
      temperatures))).encode())
  folder = (pathlib.Path(config.workdir).resolve() / _FOLDER
            / f"{name}-{digest.hexdigest()[:12]}")
  width = -(-starts.max() // _WIDTH) * _WIDTH
  padded = np.zeros((len(prompts), width), np.int32)
  padded[np.arange(width) < starts[:, None]] = np.concatenate(prompts)

  budget = int(length - starts.min())
  eos_id = tokenizers.eos_ids(tokenizer, config.teacher) or None

  def write(chosen, first):
    key = jax.random.fold_in(jax.random.key(config.seed), first)
    return _continued(
        config, teacher, jax.random.fold_in(key, len(name)), padded[chosen],
        starts[chosen], budget, eos_id,
        temperatures[first // CHUNK % len(temperatures)])

  # Few prompts are a file of whole batches, and not of `CHUNK` rows.
  size = min(CHUNK, -(-len(prompts) // config.sample_batch
                      ) * config.sample_batch)
  tokens = array_files.rows(folder, name, len(prompts), width + budget, size,
                            write)[:, :length]
  ends = (tokens != types.PAD).sum(axis=1).astype(np.int32)
  return parallel_text.Rows(tokens, starts, ends)


def _continued(config, teacher, key, prompts, lengths, budget, eos_id,
               temperature=1.0):
  """Returns `[N, P + budget]` int32, padded after the end of a text."""
  return np.asarray(mesh_lib.generate(
      teacher, row_keys.of_rows(key, len(prompts)), prompts, lengths,
      method=dj.methods.autoregressive(), eos_id=eos_id,
      sampling=dj.Sampling(temperature), max_new_tokens=budget,
      rows=config.sample_batch).tokens)


def samples(folder, config, data, teacher):
  """Returns how a teacher goes on, `[sample_rows, sample_length]` int32."""
  # After its end a text is padded with `types.PAD` if the data has an `eos_id`;
  # else the teacher goes on with another text, as in the corpus.
  of_rows = functools.cache(lambda: data.prompts(config.sample_rows))

  def write(chosen, first):
    prompts, lengths = of_rows()  # Not needed where all files are there.
    return _continued(
        config, teacher, jax.random.fold_in(jax.random.key(config.seed), first),
        prompts[chosen], lengths[chosen],
        config.sample_length - prompts.shape[1], data.eos_id)

  return array_files.rows(folder, "teacher samples", config.sample_rows,
                          config.sample_length, config.sample_batch, write)


def _batches(config, rows):
  """Makes batches of rows; the first one of `_STRIDE` is held out."""
  rows = parallel_text.Rows(*(x[rows.ends > rows.starts] for x in rows))
  longest = max(config.windows)
  tokens = np.pad(rows.tokens, ((0, 0), (0, longest + 1 - rows.tokens.shape[1])
                                ), constant_values=types.PAD)
  rows = rows._replace(tokens=tokens)
  numbers = np.arange(len(tokens), dtype=np.int32)
  train, kept = (numbers[chosen] for chosen in (
      numbers % _STRIDE != 0, numbers % _STRIDE == 0))
  if not len(train):
    raise ValueError(f"{len(tokens)} texts are too few: 2 are needed.")

  def batch(chosen, length):
    return parallel_text.batch(rows, chosen, length)._replace(rows=chosen)

  def train_batch(step, _):
    length, chosen = batches.of_one_length(config, rows.ends[train] - 1, step)
    return batch(train[chosen], length)

  def held_out_batch(count):
    return batch(kept[batches.spread(len(kept), count)], longest)

  return batches.Data(train_batch, held_out_batch, rows=(tokens, rows.ends))
