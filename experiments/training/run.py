"""Prepares a training run: corpus, tokenizer, models, updates."""

import dataclasses
import functools
import hashlib
import json
import pathlib
import sys
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

import decoding_jax as dj
from decoding_jax import types
from experiments.app import launch
from experiments.app import multihost
from experiments.data import batches
from experiments.data import canvas_tasks
from experiments.data import masking
from experiments.data import parallel_text
from experiments.data import preference_pairs
from experiments.data import streams
from experiments.training import feature_shards
from experiments.training import head_objectives
from experiments.training import losses
from experiments.training import on_mesh
from experiments.training import own_texts
from experiments.training import steps as training_steps
from models import checkpoints
from models import transformer
from models.folders import resolve
from models.huggingface import config_fields
from models.huggingface import heads
from models.text import tokenizers
from models.transformer import presets
from models.transformer import quantization
from models.transformer import sharding

# In the workdir, the texts of a teacher.
SAMPLES = "samples"
# Entries of a tokenizer, where no size tells; and what hidden sizes are
# multiples of.
_VOCABULARY, _MULTIPLE = 2000, 32
_DTYPES = ("float32", "bfloat16")
_LOSSES = {**losses.DISTILLATION, **losses.PATHS}


class Run(NamedTuple):
  """Parts of a run that do not change from step to step."""
  architecture: transformer.Config
  tokenizer: Any
  task: training_steps.Task  # objective and evaluation
  data: batches.Data  # rows to train and to evaluate on
  start: Any  # initial parameters; None for random ones
  # The model to learn from; None, None without one.
  teacher: dj.LanguageModel | None
  teacher_params: Any
  workdir: pathlib.Path  # folder of checkpoints and metrics
  # A head on the teacher's features, instead of a model; or None.
  head: head_objectives.Chosen | None = None
  mesh: jax.sharding.Mesh | None = None  # of all devices; None for one
  # Devices of "model" that a layer of what is trained is split over.
  size: int = 1


def check(config) -> None:
  """Raises an error of one line for settings that cannot be trained."""
  launch.check_used(
      config, masked_suffix="masked", head_layers="head", head_rank="head",
      head_vocab="head", keep_features="head", held_out_pairs="train_pairs",
      keyword_fraction="train_pairs", renamed_fraction="train_pairs",
      sample_rows="sample_fraction")
  if config.head:
    _check_head(config)
  else:
    launch.check_known("--config.preset", [config.preset],
                       ("", *presets.PRESETS))
  for name in ("workdir", "export", *(
      [] if config.teacher else ["tokenizer"])):
    if not config[name]:
      raise ValueError(f"--config.{name}='' must name a folder.")
  launch.check_positive(config, "steps", "batch_tokens", "log_every",
                        "eval_every", "eval_windows", "checkpoint_every",
                        *["head_depth"] * bool(config.head))
  for name in ("learning_rate", "matrix_learning_rate", "clip"):
    if not config[name] > 0:
      raise ValueError(f"--config.{name}={config[name]} must be positive.")
  for name in ("b2", "final_loss_from", "sample_fraction"):
    if not 0 <= config[name] <= 1:
      raise ValueError(f"--config.{name}={config[name]} is not in [0, 1].")
  if not 0 <= config.warmup_steps < config.steps:
    raise ValueError(f"--config.warmup_steps={config.warmup_steps} must be at "
                     f"least 0 and less than --config.steps={config.steps}.")
  for name, known in (("loss", _LOSSES), ("final_loss", _LOSSES),
                      ("optimizer", training_steps.OPTIMIZERS),
                      ("compute_dtype", _DTYPES), ("export_dtype", _DTYPES),
                      ("export_weights",
                       (quantization.DTYPE, quantization.INT8)),
                      ("teacher_dtype", ("", *_DTYPES))):
    launch.check_known(f"--config.{name}", [config[name]], known)
  for name in ("loss", "final_loss"):
    if config[name] in losses.PATHS and (
        not config.head or config.head_vocab):
      raise ValueError(f"--config.{name}={config[name]!r} follows the text "
                       "through the levels of a head: it needs a "
                       "--config.head that drafts all tokens.")
  if config.export_weights != quantization.DTYPE and not config.head:
    raise ValueError(f"--config.export_weights={config.export_weights!r}: "
                     "heads alone are written in 8 bits.")
  longest = architecture(config).max_length
  if not all(1 <= length <= longest for length in config.windows or (0,)):
    raise ValueError(f"--config.windows={tuple(config.windows)} must be "
                     f"lengths from 1 to {longest}.")
  _source(config).check(config)
  if config.masked and (config.preferences or config.teacher):
    raise ValueError("--config.masked=True: a masked-diffusion model is "
                     "trained on text alone, without --config.preferences and "
                     "--config.teacher.")
  if config.suffix_length:
    _check_pieces(config)
  if config.sample_fraction:
    if not config.teacher:
      raise ValueError("--config.sample_fraction="
                       f"{config.sample_fraction} needs a --config.teacher "
                       "that writes the samples.")
    launch.check_positive(config, "sample_rows", "sample_prompt",
                          "sample_batch")
  _check_export(config)


def _check_pieces(config):
  size = config.prefix_length + config.suffix_length
  if config.prefix_length < 1 or config.suffix_length < 4 or any(
      length % size for length in config.windows):
    raise ValueError(
        f"--config.prefix_length={config.prefix_length}, suffix_length="
        f"{config.suffix_length}: at least 1 and 4 are needed, and their sum "
        f"must divide --config.windows={tuple(config.windows)}.")
  if (config.teacher or config.preferences or config.train_pairs
      or config.canvas_tasks):
    raise ValueError("--config.suffix_length: a dual encoder is trained on "
                     "windows of text alone.")


def _check_head(config):
  launch.check_known("--config.head", [config.head], head_objectives.KINDS)
  if not config.teacher:
    raise ValueError(f"--config.head={config.head!r} reads the features of a "
                     "--config.teacher, its target.")
  for name, kinds in (("head_layers", ("dflash", "dspark", "domino",
                                       "dflash2")),
                      ("head_rank", ("dspark",))):
    if config[name] and (config[name] < 0 or config.head not in kinds):
      raise ValueError(f"--config.{name}={config[name]} must be positive, and "
                       f"is of --config.head={' or '.join(kinds)} alone.")
  for name in ("head_vocab", "keep_features"):
    if config[name] and not own_texts.is_source(config):
      raise ValueError(f"--config.{name}={config[name]} needs texts that stay "
                       "the same, of --config.own_texts or --config.prompts.")


def _check_export(config):
  export = pathlib.Path(config.export).resolve()
  # The export may replace the tokenizer's folder, as it includes the tokenizer.
  kept = {"workdir": pathlib.Path(config.workdir).resolve() / "run"}
  if config.tokenizer:
    kept["tokenizer"] = pathlib.Path(config.tokenizer).resolve()
  if config.teacher:
    kept["teacher"] = resolve.folder(config.teacher).resolve() / "model"
  for name, path in kept.items():
    if export in path.parents:
      raise ValueError(
          f"--config.export={config.export!r} would replace --config.{name}="
          f"{config[name]!r} at the end: another folder is needed.")
  try:
    checkpoints.check_replaceable(
        export, *([heads.PARTS] if config.head else []))
  except ValueError as e:
    raise ValueError(f"--config.export={config.export!r}: {e}") from e


def architecture(config) -> transformer.Config:
  """Returns the architecture, of the target with a head."""
  # Without a preset `dim`, `num_layers` and `num_heads` are needed; the other
  # sizes follow from them, or from the teacher.
  if config.head:
    return checkpoints.architecture(config.teacher)
  given = {name: size for name, size in config.sizes.items() if size}
  if config.preset:
    config_ = dataclasses.replace(presets.PRESETS[config.preset], **given)
  else:
    for name in ("dim", "num_layers", "num_heads"):
      if name not in given:
        raise ValueError(f"--config.sizes.{name}=0: at least 1 is needed, or a "
                         "--config.preset.")
    teacher = checkpoints.architecture(config.teacher) if (
        config.teacher) else None
    heads = given["num_heads"]
    config_ = transformer.Config(**{
        "vocab_size": teacher.vocab_size if teacher else _VOCABULARY,
        "num_kv_heads": heads, "head_dim": given["dim"] // heads,
        "hidden_dim": -(-8 * given["dim"] // 3 // _MULTIPLE) * _MULTIPLE,
        "max_length": (teacher.max_length if teacher else 0) or max(
            config.windows or (1,)), **given})
  try:
    return config_fields.architecture(dataclasses.asdict(config_))
  except ValueError as e:
    raise ValueError(f"--config.sizes: {e}") from e


def _objective(config):
  """Returns the task without a teacher, such as language modelling."""
  if config.masked:
    return training_steps.MASKED
  if config.suffix_length:
    return training_steps.continuations(
        config.prefix_length, config.suffix_length,
        # A vector of each side.
        2 * max(architecture(config).outputs // 2, 1))
  return (training_steps.PREFERENCE if config.preferences
          else training_steps.LANGUAGE)


def _source(config):
  if config.canvas_tasks:
    return canvas_tasks
  if config.preferences:
    return preference_pairs
  if not config.dialogues and own_texts.is_source(config):
    return own_texts
  pairs = config.train_pairs and not streams.has_file(config)
  return parallel_text if pairs else streams


def prepare(config, mesh=None, size: int = 1) -> Run:
  """Reads corpus and teacher; trains the tokenizer if the folder has none."""
  model = architecture(config)
  source = _source(config)
  teacher = teacher_params = None
  if config.teacher:
    teacher, teacher_params = on_mesh.load(
        config.teacher, mesh, dtype=config.teacher_dtype or None)
  task = _objective(config)
  if model.outputs != task.outputs:
    raise ValueError(
        f"--config.preset={config.preset!r} has outputs="
        f"{model.outputs}; what is trained needs {task.outputs}.")
  tokenizer = _tokenizer(config, source, model.vocab_size)
  sizes = (tokenizers.size(tokenizer), model.vocab_size,
           (teacher or model).vocab_size)
  if sizes[0] > sizes[1] or sizes[1] != sizes[2]:
    raise ValueError(
        "Vocabularies do not fit: --config.tokenizer has %d entries, "
        "--config.preset %d, --config.teacher %d." % sizes)
  if (config.sample_fraction or own_texts.is_source(config)) and (
      0 < teacher.max_length < config.sample_length):
    raise ValueError(
        f"--config.sample_length={config.sample_length} must be at most "
        f"{teacher.max_length}, the max_length of --config.teacher.")
  arguments = [on_mesh.teacher(teacher, teacher_params, tokenizer, mesh)
               ] if source is own_texts else []
  data = source.data(config, tokenizer, *arguments)
  run = Run(model, tokenizer, task,
            masking.masked(config, data) if config.masked else data,
            None if config.head else _start(config, model, mesh, size),
            teacher, teacher_params, pathlib.Path(config.workdir).resolve(),
            mesh=mesh, size=size)
  return _with_head(config, run) if config.head else run


def _with_head(config, run):
  """Returns the run of a head, whose parameters are kept in float32."""
  target = dataclasses.replace(run.architecture, dtype=config.compute_dtype)
  params = jax.tree.map(lambda x: x.astype(target.dtype), run.teacher_params)
  start = heads.load(resolve.folder(config.start), target, "float32",
                     target_params=params).params if config.start else {}
  tokens = start.pop("tokens", None) if start else _frequent(config, run.data)
  start.pop("output", None)
  head = head_objectives.choose(
      config.head, target, config.head_depth, tokens,
      layers=config.head_layers, markov_rank=config.head_rank)
  if start:
    _check_start(config, head, start)
  data = feature_shards.with_features(
      config, head, run.data, params, run.mesh) if (
          config.keep_features) else run.data
  return run._replace(head=head, data=data, teacher_params=params,
                      start=start or None)


def _check_start(config, head, params):
  shapes = jax.eval_shape(
      lambda: head_objectives.init(jax.random.key(0), head))
  kinds = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)
  if kinds(params) != kinds(shapes):
    raise ValueError(f"--config.start={config.start!r} is another head than "
                     f"--config.head={config.head!r} with --config.head_depth="
                     f"{config.head_depth} of --config.teacher="
                     f"{config.teacher!r}.")


def _frequent(config, data):
  """Returns the most frequent tokens of the texts; None for all tokens."""
  if not config.head_vocab:
    return None
  tokens, _ = data.rows
  counts = np.bincount(tokens[tokens != types.PAD])
  return np.sort(np.argsort(-counts, kind="stable")[:config.head_vocab]).astype(
      np.int32)


def first_state(config, run: Run) -> training_steps.State:
  """Returns the state before the first step."""
  if run.mesh is None:
    return _begin(config, run, run.start, run.teacher_params)
  split = shardings(config, run)
  start = run.start and on_mesh.put(run.start, split.params)
  # As one program, so that no device has what others have alone.
  return jax.jit(functools.partial(_begin, config, run),
                 out_shardings=split)(start, run.teacher_params)


def _begin(config, run, params, target_params=None):
  if not run.head:
    return training_steps.init(config, run.architecture, params)
  if params is None:
    params = head_objectives.init(jax.random.key(config.seed), run.head,
                                  target_params)
  return training_steps.of_params(config, params)


def shardings(config, run: Run):
  """Returns how the state is split over the mesh: a tree of `NamedSharding`."""
  state = jax.eval_shape(lambda: _begin(config, run, None))
  params = on_mesh.of_head(
      run.mesh, run.size, run.architecture.vocab_size, state.params) if (
          run.head) else sharding.shardings(run.architecture, run.mesh,
                                            run.size)(state.params)
  return on_mesh.of_state(run.mesh, params, state)


def export(config, run: Run, params, metadata) -> None:
  """Writes what has been trained: a model, or a head as it is published."""
  if not run.head:
    checkpoints.save(config.export, run.architecture, params, run.tokenizer,
                     metadata)
    return
  params = jax.tree.map(lambda x: x.astype(config.export_dtype), params)
  if run.mesh is not None:
    params = jax.tree.map(on_mesh.on_host, params)
  if run.head.tokens is not None:
    params["tokens"] = run.head.tokens
  multihost.from_first(lambda: heads.save(
      config.export, run.head.kind.module, run.head.config, params,
      run.head.kept, metadata, config.export_weights))


def _tokenizer(config, source, vocab_size):
  """Reads the tokenizer; trains it, if the folder that is named has none."""
  if not config.tokenizer:
    return tokenizers.load(config.teacher)

  def write():
    try:
      has_tokenizer = tokenizers.has(resolve.folder(config.tokenizer))
    except FileNotFoundError:
      has_tokenizer = False
    if not has_tokenizer:
      tokenizers.save(canvas_tasks.tokenizer() if config.canvas_tasks else
                      tokenizers.train(source.texts(config), vocab_size),
                      config.tokenizer)

  multihost.from_first(write, ValueError)
  return tokenizers.load(config.tokenizer)


def fingerprint(config, run: Run) -> str:
  """Returns a short digest of texts and parameters that a run reads."""
  texts = [run.tokenizer.to_str(), *_source(config).texts(config)]
  digest = hashlib.sha256(json.dumps(texts).encode())
  digest.update(run.data.held_out(sys.maxsize).tokens.tobytes())
  for leaf in jax.tree.leaves((run.start, run.teacher_params)):
    digest.update(on_mesh.on_host(leaf).tobytes())
  return digest.hexdigest()[:16]


def _start(config, architecture, mesh, size):
  """Reads the parameters of `config.start`; None without one."""
  if not config.start:
    return None
  start = checkpoints.load_config(resolve.folder(config.start))
  if start != architecture:
    raise ValueError(f"--config.start={config.start!r} has another "
                     f"architecture than --config.preset={config.preset!r}: "
                     f"{start}.")
  return on_mesh.load(config.start, mesh, size)[1]


def updates(config, run: Run):
  """Returns `(step, state, batch) -> (state, loss)`, one update."""
  mesh, split = run.mesh, None
  if mesh is not None:
    split = shardings(config, run), NamedSharding(mesh, PartitionSpec())
  make = lambda objective: training_steps.make_step(config, objective, split)
  if run.head:
    objective = functools.partial(head_objectives.objective, run.head)
  else:
    lm = training_steps.mixed(transformer.language_model(dataclasses.replace(
        run.architecture, dtype=config.compute_dtype)), config.compute_dtype)
    if run.teacher is None:
      update = make(training_steps.objective(run.task, lm, mesh))
      return lambda _, state, batch: update(
          state, on_mesh.put_rows(mesh, batch))
    objective = functools.partial(training_steps.distillation, lm, run.teacher)
  by_name = {name: make(objective(_LOSSES[name], mesh))
             for name in (config.loss, config.final_loss)}
  return lambda step, state, batch: by_name[training_steps.loss_at(
      config, step)](state, on_mesh.put_rows(mesh, batch), run.teacher_params)


def teacher_samples(config, run: Run) -> np.ndarray | None:
  """Returns texts of the teacher, `[R, L]` int32; None if none are used."""
  if not config.sample_fraction:
    return None
  return own_texts.samples(
      run.workdir / SAMPLES, config, run.data, on_mesh.teacher(
          run.teacher, run.teacher_params, run.tokenizer, run.mesh))


def evaluator(run: Run):
  """Returns `(params, rows) -> metrics` on at most `rows` held-out rows."""
  if run.head:
    compiled = head_objectives.evaluator(run.head, run.mesh)
  else:
    lm = transformer.language_model(run.architecture)
    compiled = training_steps.evaluator(run.task, lm, run.teacher, run.mesh)

  def evaluate(params, rows):
    return training_steps.evaluate(compiled, params, run.data.held_out(rows),
                                   run.teacher_params, run.mesh)

  return evaluate
