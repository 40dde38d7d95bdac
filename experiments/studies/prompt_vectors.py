"""Trains and measures models that read vectors instead of tokens.

  python -m experiments.studies.prompt_vectors \\
      --config=configs/train.py:llm_to_slm
  python -m experiments.studies.prompt_vectors --config=configs/train.py:lud

`llm_to_slm` distils the small model of arXiv 2402.16844, which begins with what
the teacher says of the prompt, and for comparison the same model without that.
`lud` tunes the teacher itself to predict several tokens at pads (arXiv
2405.15208). Each prints a table on held-out texts, and saves nothing.
"""

import functools

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
import tqdm

import decoding_jax as dj
from decoding_jax import metrics
from experiments.app import launch
from experiments.app import text_tables
from experiments.training import losses
from experiments.training import run as training_run
from experiments.training import steps as training_steps
from models import checkpoints
from models import llm_to_slm
from models import transformer
from models.heads import prompt_tokens
from models.transformer import linear_ops

# Of LUD: pads after a token, tokens from one chain of them to the next, the
# probability by which a span is one that is learned, and thresholds.
_PADS = prompt_tokens.Config(4)
_STRIDE, _SURE, _CONFIDENCES = 8, 0.5, (0.99, 0.9, 0.7, 0.5)
_TEMPERATURES = {0.0: "tokens a call at 0", 1.0: "at 1"}
# Tokens of a prompt, and of what is written.
PROMPT, _NEW = 64, 48


def main():
  config = launch.config(CONFIG)
  if config.prompt_vectors not in SYSTEMS:
    raise launch.UserError(
        f"--config.prompt_vectors={config.prompt_vectors!r} is not one of "
        f"{', '.join(SYSTEMS)}.")
  if min(config.windows, default=0) < PROMPT + _STRIDE:
    raise launch.UserError(f"--config.windows={tuple(config.windows)}: at least"
                           f" {PROMPT + _STRIDE}, more than a prompt, is "
                           "needed.")
  with launch.user_errors(OSError, ValueError):
    training_run.check(config)
    run = training_run.prepare(config)
  held_out = run.data.held_out(PROMPTS.value)
  print(text_tables.plain_table(SYSTEMS[config.prompt_vectors](
      config, run, held_out)))


def train(config, run, params, objective):
  """Returns parameters after `steps` of `(params, batch, teacher) -> loss`."""
  # A step donates the memory of its state.
  state = training_steps.of_params(config, jax.tree.map(jnp.array, params))
  update = training_steps.make_step(config, objective)
  for step in tqdm.trange(config.steps, unit="step"):
    state, _ = update(state, run.data.train(step, None), run.teacher_params)
  return state.params


def compare_readers(config, run, held_out):
  """Trains `models.llm_to_slm`, and the same without the large model."""
  # Returns a table: loss and overlap with the teacher after the prompt, and
  # tokens a call of the teacher for which each model drafts.
  large = checkpoints.architecture(config.teacher)
  objective = functools.partial(_reader_loss, run.architecture, large)
  models = {"small": {"decoder": run.start}}
  models["small, as many steps more"] = train(config, run, models["small"],
                                              objective)
  models["LLM-to-SLM"] = train(config, run, llm_to_slm.init(
      jax.random.key(config.seed), large, run.start), objective)
  logits = jax.jit(functools.partial(_after_prompt, run.architecture, large))
  lines = [["model", "loss", "overlap", *_TEMPERATURES.values()]]
  for name, params in models.items():
    target, student = logits(params, held_out.tokens[:, :-1],
                             run.teacher_params)
    loss = losses.cross_entropy(student, held_out.tokens[:, PROMPT:])
    overlap = 1 - losses.total_variation(target, student)
    lines.append([name, f"{loss:.3f}", f"{overlap:.3f}", *(
        _drafted(run, large, params, held_out.tokens[:, :PROMPT], temperature)
        for temperature in _TEMPERATURES)])
  return lines


def _reader_loss(small, large, params, batch, teacher_params):
  return losses.forward_kl(*_after_prompt(
      small, large, params, batch.tokens[:, :-1], teacher_params))


def _after_prompt(small, large, params, tokens, teacher_params):
  """Returns logits of teacher and student from the end of the prompt on."""
  target, hidden = jax.lax.stop_gradient(
      llm_to_slm.features(large, teacher_params, tokens))
  prompts, model, own = _prompts(small, params, hidden[:, :PROMPT],
                                 tokens[:, :PROMPT])
  student = transformer.causal_logits(
      model, own, jnp.concatenate([prompts, tokens[:, PROMPT:]], axis=1))
  return target[:, PROMPT - 1:], student[:, PROMPT - 1:]


def _prompts(small, params, hidden, tokens):
  """Returns prompts that a small model reads, the model and its parameters."""
  if "projector" not in params:
    return tokens, transformer.language_model(small), params["decoder"]
  ids, own = llm_to_slm.with_vectors(params, hidden, tokens)
  return ids, transformer.with_prompts(small, ids.size), own


def _drafted(run, large, params, tokens, temperature):
  """Returns tokens a call of the teacher, for which a small model drafts."""
  # The teacher reads the same ids, which name its own embeddings: so its text
  # is what it would be without them.
  _, hidden = llm_to_slm.features(large, run.teacher_params, tokens)
  ids, draft, own = _prompts(run.architecture, params, hidden,
                             jnp.asarray(tokens))
  own_vectors = linear_ops.lookup(run.teacher_params["embedding"],
                                  tokens.ravel())
  return _per_call(_generate(
      dj.methods.speculative(4), transformer.with_prompts(large, ids.size),
      {**run.teacher_params, "prompts": own_vectors}, ids,
      dj.Sampling(temperature), draft=draft, draft_params=own))


def tune_for_pads(config, run, held_out):
  """Tunes the teacher for pads, and decodes with several thresholds."""
  # Returns a table: tokens a call, mean log-probability of a token under the
  # teacher as it was, and the share of texts that are its greedy ones.
  architecture, prompts = run.architecture, held_out.tokens[:, :PROMPT]
  params = train(config, run, {**run.start, **prompt_tokens.init(
      jax.random.key(config.seed), _PADS, architecture)},
                 functools.partial(_pads_loss, architecture))
  plain, expected = dj.methods.autoregressive(), None
  tuned = "tuned", prompt_tokens.target(_PADS, architecture), params
  lines = [["model", "method", "tokens a call", "log-probability", "equal, %"]]
  for name, target, target_params, method in (
      ("as it was", run.teacher, run.teacher_params, plain), (*tuned, plain),
      (*tuned, dj.methods.ppd((1,) * _PADS.prompts, 1, 1)),
      *((*tuned, dj.methods.lud(_PADS.prompts, x)) for x in _CONFIDENCES)):
    out = _generate(method, target, target_params, prompts, dj.Sampling(0.0))
    tokens = np.asarray(out.tokens)[:, :PROMPT + _NEW]
    expected = tokens if expected is None else expected
    logits = transformer.causal_logits(run.teacher, run.teacher_params,
                                       tokens[:, :-1])
    loss = losses.cross_entropy(logits[:, PROMPT - 1:], tokens[:, PROMPT:])
    equal = (tokens == expected).all(axis=1).mean()
    lines.append([name, method.name, _per_call(out), f"{-loss:.3f}",
                  f"{100 * equal:.0f}"])
  return lines


def _pads_loss(architecture, params, batch, teacher_params):
  """Returns the distance from the teacher, and of pads from the text."""
  # Of the text after a token a pad learns what the teacher is sure of, up to
  # the first token that it is not sure of.
  tokens = jnp.asarray(batch.tokens[:, :-1])
  anchors = np.arange(_STRIDE - 1, tokens.shape[1] - _PADS.prompts - 1, _STRIDE)
  logits, guesses = prompt_tokens.with_chains(_PADS, architecture, params,
                                              tokens, tuple(anchors))
  teacher = jax.lax.stop_gradient(transformer.causal_logits(
      transformer.language_model(architecture), teacher_params, tokens))
  # `[A, prompts]`, the positions whose next tokens the pads are to predict.
  at = anchors[:, None] + 1 + np.arange(_PADS.prompts)
  targets = tokens[:, at + 1]
  probs = jnp.take_along_axis(jax.nn.softmax(teacher[:, at]),
                              targets[..., None], axis=-1)[..., 0]
  sure = jnp.cumprod(probs >= _SURE, axis=-1)
  return losses.forward_kl(teacher, logits) + losses.cross_entropy(
      guesses, targets, sure + 1e-6)


def _generate(method, target, target_params, prompts, sampling, **draft):
  return dj.generate(
      jax.random.key(0), prompts, np.full(len(prompts), PROMPT), method=method,
      target=target, target_params=target_params, max_new_tokens=_NEW,
      sampling=sampling, **draft)


def _per_call(out) -> str:
  counts = out.stats.emitted, out.stats.target_calls
  return text_tables.interval(metrics.ratio(*counts),
                              *metrics.ratio_interval(*counts))


SYSTEMS = {"llm_to_slm": compare_readers, "lud": tune_for_pads}


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  CONFIG = launch.define_config("train:llm_to_slm", "train:llm_to_slm")
  PROMPTS = flags.DEFINE_integer("prompts", 128, "Held-out texts.",
                                 lower_bound=1)
  launch.run(main)
