"""The checks of a new device; each returns a record of its results."""

import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax.testing import exactness
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import model_pair
from experiments.evaluation import exactness_cases
from experiments.timing import forward_cost
from experiments.timing import profile
from experiments.timing import roofline
from experiments.timing import stopwatch
from models import transformer
from models.huggingface import config_fields

# The pair that comes along, and what decodes greedily on CPU and device.
_SHIPPED = ("python-target", "python-draft")
_GREEDY = ("autoregressive", "speculative(3, traversal)", "rsd_s(2, 3)")
# Distributions of the pair of set overlap: one by the last token's remainder.
_ROWS_OF_TABLE = 64
_SPREAD = 3.0
_DTYPES = ("float32", "bfloat16")
# Of the exactness tests.
_VOCAB, _LENGTH = 6, 4


def of_config(config, workdir):
  """Returns the checks by name, cheap ones first.

  Each returns a record of JSON values, with `right` where something can be
  wrong. The workdir gets the trace of the profiler.
  """
  if not config.methods:
    raise ValueError("--config.methods is empty: one is needed.")
  if config.dtype not in _DTYPES:
    raise ValueError(f"--config.dtype={config.dtype!r} is not one of "
                     f"{', '.join(_DTYPES)}.")
  for name in ("target", "draft"):
    try:
      config_fields.architecture(dataclasses.asdict(
          _architecture(config, config[name])))
    except (ArithmeticError, TypeError, ValueError) as e:
      raise ValueError(f"--config.{name}: {e}") from e
  checks = {"device": functools.partial(_device, config)}
  checks |= {f"greedy texts of {x}": functools.partial(_greedy, x, config)
             for x in _GREEDY}
  checks["forwards"] = functools.partial(_forwards, config)
  decoder = functools.cache(functools.partial(_decoder, config))
  for rows in config.rows:
    for spec in config.methods:
      method = method_specs.read(spec, "--config.methods")
      checks[f"{method.name}, {rows} rows"] = functools.partial(
          _rate, config, decoder, method, rows)
  last = method_specs.read(config.methods[-1])
  checks["profile"] = functools.partial(_profile, decoder, last, workdir)
  tested = [method_specs.read(x, "--config.exactness_methods")
            for x in config.exactness_methods] or exactness.tested_methods()
  checks |= {f"exactness of {method.name}, {case}": functools.partial(
      _exactness, method, case, config.exactness_rows)
             for method, case in exactness_cases.of_methods(tested)}
  return checks


def _device(config):
  device = jax.devices()[0]
  rates = roofline.measure((config.dtype,))
  return {"kind": device.device_kind, "count": jax.device_count(),
          "bytes": (device.memory_stats() or {}).get("bytes_limit"),
          "bandwidth": rates.bandwidth, "flops": rates.flops}


def _greedy(spec, config):
  """Compares greedy texts in float32 with those that the CPU writes."""
  folders = tuple(map(str, map(launch.model_folder, _SHIPPED)))
  pair = model_pair.with_params(
      model_pair.open_pair(*folders, dtype="float32"))
  prompts = np.random.default_rng(config.seed).integers(
      pair.target.vocab_size, size=(8, 16), dtype=np.int32)

  def texts(device):
    with jax.default_device(device):
      params = jax.device_put((pair.target_params, pair.draft_params), device)
      out = dj.generate(
          jax.random.key(0), jnp.asarray(prompts), jnp.full(8, 16, jnp.int32),
          method=method_specs.read(spec), target=pair.target, draft=pair.draft,
          target_params=params[0], draft_params=params[1], max_new_tokens=64,
          sampling=dj.Sampling(temperature=0.0))
      return np.asarray(out.tokens)

  first, other = map(texts, (jax.devices("cpu")[0], jax.devices()[0]))
  differing = int((first != other).any(axis=1).sum())
  return {"right": not differing, "texts": len(prompts),
          "differing": differing}


def _forwards(config):
  """Times forwards of the target by their number of tokens."""
  lm, params = _random(config, config.target)
  sizes = roofline.sizes(_architecture(config, config.target), params)
  slots = config.prompt_length + max(config.tokens)
  tokens = sorted(set(config.tokens))
  return {"tokens": tokens, "seconds": forward_cost.measure(
      lm, params, 1, config.prompt_length, slots, tokens),
          "weight_bytes": sizes.weights, "parameters": sizes.multiplied}


def _exactness(method, case, rows):
  result = exactness_cases.find(method, case, _VOCAB, rows, _LENGTH)
  return {"right": result.right,
          "p": result.report and result.report.p_value}


def _rate(config, decoder, method, rows):
  """Decodes once to compile, and once on the clock."""
  run = functools.partial(decoder(), method, rows)
  _, first = stopwatch.decoded(run, 0)
  out, seconds = stopwatch.decoded(run, 1)
  new = int(np.sum(np.asarray(out.lengths))) - rows * config.prompt_length
  return {"rows": rows, "method": method.name, "tokens": new,
          "seconds": seconds, "steps": int(out.steps),
          "compile_seconds": max(0.0, first - seconds)}


def _profile(decoder, method, workdir):
  run = functools.partial(decoder(), method, 1, 1)
  steps = int(stopwatch.decoded(run)[0].steps)
  return {"method": method.name, "table": profile.profile(
      run, steps, pathlib.Path(workdir) / "profile")}


def _decoder(config):
  """Returns `(method, rows, seed) -> dj.Generation` of two random models.

  Every forward is computed; then what it gives is added, too small to change a
  bit, to the logits of a table, one row by the last token's remainder.
  """
  (target, target_params), (draft, draft_params) = [
      (_with_table(lm), (params, jnp.asarray(table)))
      for (lm, params), table in zip(
          (_random(config, config.target), _random(config, config.draft)),
          _tables(config))]

  def decode(method, rows, seed):
    prompts = jax.random.randint(
        jax.random.key(config.seed), (rows, config.prompt_length), 0,
        config.vocab_size, jnp.int32)
    return dj.generate(
        jax.random.key(seed), prompts,
        jnp.full(rows, config.prompt_length, jnp.int32), method=method,
        target=target, draft=draft, target_params=target_params,
        draft_params=draft_params, max_new_tokens=config.max_new_tokens)

  return decode


def _tables(config):
  """Returns `[64, V]` logits of both; the draft mixes in tokens of its own."""
  rng = np.random.default_rng(config.seed)
  logits = _SPREAD * rng.standard_normal((_ROWS_OF_TABLE, config.vocab_size))
  probs = np.exp(logits - logits.max(axis=1, keepdims=True))
  probs /= probs.sum(axis=1, keepdims=True)
  other = np.roll(probs, config.vocab_size // 2, axis=1)
  least, most = 0.0, 1.0
  for _ in range(30):
    share = (least + most) / 2
    mixed = share * probs + (1 - share) * other
    overlap = np.minimum(mixed, probs).sum(axis=1).mean()
    least, most = (share, most) if overlap < config.overlap else (least, share)
  return [np.log(x).astype(np.float32) for x in (probs, mixed)]


def _with_table(lm):
  """Returns the model with the distributions of a table in its parameters."""
  def forward(params, tokens, *rest):
    logits, block = lm.forward(params[0], tokens, *rest)
    rows = jnp.mod(tokens, _ROWS_OF_TABLE)
    return params[1][rows] + 1e-30 * logits.astype(jnp.float32), block

  return dj.LanguageModel(lm.init_cache, forward, lm.vocab_size, lm.max_length)


def _architecture(config, sizes):
  return transformer.Config(
      vocab_size=config.vocab_size, tie_embeddings=False, dtype=config.dtype,
      max_length=config.prompt_length + max(
          config.max_new_tokens, max(config.tokens)), **sizes)


def _random(config, sizes):
  architecture = _architecture(config, sizes)
  return (transformer.language_model(architecture),
          transformer.init(jax.random.key(config.seed), architecture))
