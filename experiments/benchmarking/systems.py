"""The systems of a benchmark: pairs of models, prompts, ours and rivals."""

import contextlib
import functools
import hashlib
import json
import pathlib
from typing import NamedTuple

import jax
import numpy as np

import decoding_jax as dj
from experiments.app import launch
from experiments.benchmarking import entries
from experiments.data import python_corpus
from experiments.devices import drafts
from experiments.devices import model_pair
from experiments.rivals import engines
from experiments.rivals import gguf_export
from experiments.rivals import random_pair
from experiments.rivals import subprocess_server
from experiments.timing import stopwatch
from models import checkpoints
from models import transformer
from models.gguf import files as gguf_files
from models.huggingface import config as hf_config
from models.text import tokenizers
from models.text import vocab_alignment
from models.transformer import quantization


class Pair(NamedTuple):
  """Folders of a target and a draft that use the same tokens."""
  target: pathlib.Path  # Folders as transformers writes them.
  draft: pathlib.Path
  tokenizer: object  # Of both; None if the folders have none.
  vocab_size: int  # Tokens that they share.
  dtype: str  # Of the stored target.
  draft_dtype: str  # Of the draft's computations; "" for its target's.
  draft_weights: str  # Of our draft's matrices, of `quantization.WEIGHTS`.
  file: pathlib.Path | None = None  # GGUF that the target is read from.
  head: str = ""  # Drafts for our methods; "" for the draft.

  def dtypes(self, dtype):
    """Returns dtypes of target and draft, if a run is in `dtype`."""
    computed = dtype if dtype in entries.DTYPES else "bfloat16"
    return computed, self.draft_dtype or computed

  def rival_draft(self, dtype):
    """Returns the type of another engine's draft, if a run is in `dtype`."""
    return (quantization.INT8 if self.draft_weights == quantization.INT8
            else self.dtypes(dtype)[1])

  def source(self, dtype):
    """Returns what our target is read from: in 4 bits its file, if any."""
    return (self.file if self.file and dtype == quantization.INT4
            else self.target)

  def weights(self, dtype):
    """Returns formats of our matrices, if a run is in `dtype`.

    A target stored in bfloat16 has equal numbers in float32.
    """
    if dtype == quantization.INT8:
      return quantization.INT8, self.draft_weights
    if dtype == quantization.INT4:
      return (quantization.STORED if self.file else quantization.INT4,
              self.draft_weights)
    exact = (self.dtype, dtype) == ("bfloat16", "float32")
    return (quantization.BFLOAT16 if exact else quantization.DTYPE,
            self.draft_weights)


def open_pair(config, workdir):
  """Opens the `Pair` of a config; builds or exports it if need be.

  The workdir gets exports of models that other tools cannot read.
  """
  if bool(config.target) != bool(config.draft):
    raise launch.UserError(
        f"target={config.target!r}, draft={config.draft!r}: both are needed, "
        "or none for a pair that is built.")
  if config.head and not drafts.parse(config.head).is_head:
    raise launch.UserError(f"--config.head={config.head!r} is no head on "
                           "features of a target, see docs/heads.md.")
  if config.target:
    target = launch.model_folder(config.target)
    folders = [target, drafts.parse(config.draft).folder(target, workdir)]
  else:
    folders = built_pair(config)
  with launch.user_errors(OSError, ValueError):
    architectures = [checkpoints.architecture(x) for x in folders]
    encoders = [tokenizers.load(x) for x in folders if tokenizers.has(x)]
    if len(encoders) == 2:
      tokenizers.check_same(*encoders)
    elif len({x.vocab_size for x in architectures}) > 1:
      raise launch.UserError(
          f"'{folders[0]}' has {architectures[0].vocab_size} tokens, "
          f"'{folders[1]}' {architectures[1].vocab_size}, and without "
          "tokenizers it is unknown which of them are used.")
    # The first layers of a model have its tokenizer, and no copy of it.
    own = len(encoders) == 2 or drafts.parse(config.draft).of_target
    tokenizer = encoders[0] if encoders and own else None
    file = folders[0] if gguf_files.is_gguf(folders[0]) else None
    folders = [_as_hf(x, pathlib.Path(workdir) / name)
               for x, name in zip(folders, ("target", "draft"))]
  smallest = min(x.vocab_size for x in architectures)
  return Pair(*folders, tokenizer,
              tokenizers.used_size(tokenizer, smallest) if tokenizer
              else smallest,
              architectures[0].dtype, config.draft_dtype, config.draft_weights,
              file, config.head)


def built_pair(config):
  """Returns the folders of the synthetic pair, which is built if missing."""
  text = json.dumps(config.pair.to_dict(), sort_keys=True)
  name = hashlib.sha256(text.encode()).hexdigest()[:12]
  folder = pathlib.Path(config.pairs) / name
  with launch.user_errors(OSError, ValueError):
    if not folder.exists():
      print(f"building the pair in {folder}, which takes a minute or more.",
            flush=True)
      figures = random_pair.write(folder, config.pair)
      print(f"overlap {figures['overlap']:.3f}, perplexity "
            f"{figures['perplexity']:.1f}", flush=True)
  return [folder / random_pair.TARGET, folder / random_pair.DRAFT]


def _as_hf(folder, out):
  if hf_config.is_hf(folder) and folder.is_dir():
    return folder
  if not out.exists():
    checkpoints.export(folder, out)
  return out


@functools.lru_cache(maxsize=None)
def with_dtype(pair, dtype):
  """Loads a `Pair` as a `ModelPair`, the target in `dtype`."""
  if pair.head:
    return model_pair.with_params(model_pair.open_pair(
        str(pair.source(dtype)), pair.head, *pair.dtypes(dtype),
        *pair.weights(dtype)))
  # A draft of the target's first layers has no tokenizer of its own.
  with launch.user_errors(OSError, ValueError):
    loaded = [checkpoints.load(folder, dtype=computed, weights=weights)
              for folder, computed, weights in zip(
                  (pair.source(dtype), pair.draft), pair.dtypes(dtype),
                  pair.weights(dtype))]
    lms = vocab_alignment.align(*(lm for lm, _ in loaded), pair.vocab_size)
  sizes = [transformer.num_params(params) for _, params in loaded]
  return model_pair.ModelPair(lms[0], loaded[0][1], lms[1], loaded[1][1],
                              pair.tokenizer, sizes[1] / sizes[0])


def remarks(pair, models):
  """Returns lines about sizes and types of a `Pair`, and its `ModelPair`."""
  sizes = [transformer.num_params(params) / 1e6 for params in (
      models.target_params, models.draft_params)]
  return [line for holds, line in (
      (True, "A pair of {:.3g} M and {:.3g} M parameters.".format(*sizes)),
      (pair.draft_dtype,
       f"All drafts, ours and theirs, compute in {pair.draft_dtype}."),
      (pair.draft_weights != quantization.DTYPE,
       f"Matrices of our drafts are in {pair.draft_weights}."),
      (pair.weights("float32")[0] != quantization.DTYPE,
       f"The target is stored in {pair.dtype}. In float32 ours reads its "
       "matrices as stored, which are the same numbers.")) if holds]


def prompts(config, pair):
  """Returns the prompts of a config, `[prompts, prompt_length]` int32."""
  count, length = config.prompts, config.prompt_length
  if config.text == entries.SAMPLED:
    return _sampled(pair, count, length, config.seed)
  if pair.tokenizer is None:
    raise launch.UserError(f"text={config.text!r} needs a tokenizer in the "
                           f"models' folders: {entries.SAMPLED!r} does not.")
  with launch.user_errors(OSError, ValueError):
    return np.array(python_corpus.prompts(pair.tokenizer, count, length,
                                          seed=config.seed), np.int32)


# Cached: choosing, measuring and profiling use the same prompts.
@functools.lru_cache(maxsize=1)
def _sampled(pair, count, length, seed):
  models = with_dtype(pair, pair.dtype)
  first = np.random.default_rng(seed).integers(
      pair.vocab_size, size=(count, 1), dtype=np.int32)
  return random_pair.sample(models.target, models.target_params, seed, first,
                            length)


def sampling(config, temperature):
  """Returns the sampling settings of all systems at a temperature."""
  return dj.Sampling(temperature, config.top_k, config.top_p,
                     min_p=config.min_p)


def ours(config, pair, methods, texts, entry, number):
  """Decodes a round's prompts by a method of ours; returns its `_record`."""
  rows, chosen = _chosen(texts, entry, number)
  keys = jax.vmap(jax.random.fold_in, (None, 0))(
      jax.random.key(config.seed), rows + number * len(texts))
  method = methods[entry.name]
  models = model_pair.for_method(with_dtype(pair, entry.dtype), method)
  subprocess_server.reset_peak()
  out, seconds = stopwatch.timed(
      lambda: dj.generate(
          keys, chosen, np.full(len(rows), chosen.shape[1], np.int32),
          method=method, target=models.target,
          target_params=models.target_params, draft=models.draft,
          draft_params=models.draft_params,
          max_new_tokens=config.max_new_tokens,
          sampling=sampling(config, entry.temperature)))
  # An accelerator's peak is since the process began.
  memory = jax.local_devices()[0].memory_stats() or {}
  return _record(seconds, int(out.stats.emitted.sum()), int(out.steps),
                 int(out.stats.target_calls.sum()),
                 memory.get("peak_bytes_in_use") or
                 subprocess_server.peak_memory())


def theirs(config, servers_, texts, entry, number):
  """Decodes them by another tool; `servers_` is of `servers`."""
  rows, chosen = _chosen(texts, entry, number)
  setting = next({"length": 0, **x, "setting": x["name"]}
                 for x in map(dict, config.rivals[entry.tool])
                 if entries.setting_name(x) == entry.name)
  try:
    answer = subprocess_server.generate(
        servers_(entry.tool, entry.dtype, setting), {
            **setting, "prompts": chosen.tolist(),
            "seed": int(rows[0]) + number,
            "max_new_tokens": config.max_new_tokens, "top_k": config.top_k,
            "top_p": config.top_p, "min_p": config.min_p,
            "temperature": entry.temperature})
  # An engine's format may not fit a model.
  except (subprocess_server.Failure, OSError, ValueError) as e:
    return {"error": str(e)}
  calls = answer["target_calls"]
  return _record(answer["seconds"], sum(map(len, answer["tokens"])), calls,
                 calls and calls * len(rows), answer["peak_bytes"])


@contextlib.contextmanager
def servers(config, pair, folder):
  """Yields `(tool, dtype, setting) -> Rival`, each started when needed."""
  running = {}

  def server(tool, dtype, setting):
    engine, (computed, draft_dtype) = engines.ENGINES[tool], pair.dtypes(dtype)
    target, draft = _files(engine, pair, dtype, folder)
    load = {"target": str(target), "draft": str(draft), "dtype": computed,
            "weights": dtype, "draft_dtype": draft_dtype,
            "draft_weights": pair.rival_draft(dtype),
            "folder": str(folder), "threads": 0,  # All cores.
            "max_length": config.prompt_length + config.max_new_tokens,
            "memory_share": config.vllm_memory_share}
    if engine.per_setting:
      load.update(setting)
    name = json.dumps([tool, load])
    if name not in running:
      running[name] = subprocess_server.start(tool, load)
    return running[name]

  try:
    yield server
  finally:
    for rival in running.values():
      subprocess_server.stop(rival)


def _files(engine, pair, dtype, folder):
  """Returns target and draft in the format of an engine, written if need be."""
  if engine.format == engines.HUGGING_FACE:
    return pair.target, pair.draft
  files = []
  for name, model, weights in (("target", pair.target, dtype),
                               ("draft", pair.draft, pair.rival_draft(dtype))):
    path = pathlib.Path(folder) / f"{name}-{weights}.gguf"
    if not path.exists():
      gguf_export.write(model, path, weights)
    files.append(path)
  return pair.file if pair.file and dtype == "int4" else files[0], files[1]


def _chosen(texts, entry, number):
  """Returns numbers `[B]` of a round's prompts, and the prompts `[B, P]`."""
  rows = (np.arange(entry.batch) + number * entry.batch) % len(texts)
  return rows, texts[rows]


def _record(seconds, emitted, steps, row_calls, peak_bytes):
  # Rows that had finished count in `steps`, and not in `row_calls`.
  return {"seconds": round(seconds, 6), "emitted": emitted, "steps": steps,
          "row_calls": row_calls, "peak_bytes": peak_bytes}
