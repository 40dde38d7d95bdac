"""Trains and measures models that read vectors instead of tokens.

  python -m experiments.prompt_vectors --config=configs/train.py:llm_to_slm
  python -m experiments.prompt_vectors --config=configs/train.py:lud

`llm_to_slm` distils the small model of arXiv 2402.16844, which begins with what
the teacher says of the prompt, and for comparison the same model without that.
`lud` tunes the teacher itself to predict several tokens at pads (arXiv
2405.15208). Both print a table on held-out texts; trainings take minutes, and
leave nothing.
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
from experiments.app import preemption
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
# Tokens that are written.
_NEW = 48


def main():
  config = launch.config(CONFIG, "preset")
  if config.prompt_vectors not in SYSTEMS:
    raise launch.UserError(
        f"--config.prompt_vectors={config.prompt_vectors!r} is not one of "
        f"{', '.join(SYSTEMS)}.")
  preemption.listen()
  with launch.user_errors(OSError, ValueError):
    training_run.check(config)
    run = training_run.prepare(config)
  if config.windows[-1] <= PROMPT.value:
    raise launch.UserError(f"--config.windows={tuple(config.windows)}: more "
                           f"than --prompt_length={PROMPT.value} is needed.")
  print(text_tables.plain_table(SYSTEMS[config.prompt_vectors](config, run)))


def train(config, run, params, objective):
  """Returns the parameters after `config.steps` updates.

  Args:
    config: see `configs/train.py`.
    run: of `training_run.prepare`.
    params: to begin with.
    objective: `(params, batch, teacher_params) -> loss`.
  """
  # A step donates the memory of its state.
  state = training_steps.of_params(config, jax.tree.map(jnp.array, params))
  update = training_steps.make_step(config, objective)
  with tqdm.tqdm(range(config.steps), unit="step", dynamic_ncols=True) as bar:
    for step in bar:
      state, loss = update(state, run.data.train(step, None),
                           run.teacher_params)
      preemption.check()
      if step % config.log_every == 0:
        bar.set_postfix(loss=float(loss))
  return state.params


def compare_readers(config, run):
  """Trains `models.llm_to_slm`, and the same without the large model.

  Args:
    config: see `configs/train.py`.
    run: of `training_run.prepare`.

  Returns:
    The lines of a table: loss and overlap with the teacher after the prompt,
    and tokens a call of the teacher for which it drafts.
  """
  sizes = llm_to_slm.Sizes(checkpoints.architecture(config.teacher),
                           run.architecture)
  objective = functools.partial(_reader_loss, sizes)
  begin = llm_to_slm.init(jax.random.key(config.seed), sizes, run.start)
  models = {"small": {"decoder": run.start}}
  models["small, as many steps more"] = train(config, run, models["small"],
                                              objective)
  models["LLM-to-SLM"] = train(config, run, begin, objective)
  held_out = run.data.held_out(PROMPTS.value)
  lines = [["model", "loss", "overlap", *_TEMPERATURES.values()]]
  for name, params in models.items():
    target, student, weights = jax.jit(functools.partial(_after_prompt, sizes))(
        params, held_out, run.teacher_params)
    found = losses.cross_entropy(student, held_out.tokens[:, PROMPT.value:])
    overlap = 1 - losses.total_variation(target, student, weights)
    lines.append([name, f"{found:.3f}", f"{overlap:.3f}", *(
        _drafted(sizes, params, run, held_out, temperature)
        for temperature in _TEMPERATURES)])
  return lines


def _reader_loss(sizes, params, batch, teacher_params):
  return losses.forward_kl(*_after_prompt(sizes, params, batch, teacher_params))


def _after_prompt(sizes, params, batch, teacher_params):
  """Returns logits of teacher and student after the prompts, and weights."""
  tokens, length = batch.tokens[:, :-1], PROMPT.value
  hidden, target = jax.lax.stop_gradient(
      llm_to_slm.features(sizes, teacher_params, tokens))
  prompts, lm, own = _prompts(sizes, params, hidden[:, :length],
                              tokens[:, :length])
  student = transformer.causal_logits(
      lm, own, jnp.concatenate([prompts, tokens[:, length:]], axis=1))
  return tuple(x[:, length - 1:] for x in (target, student, batch.weights))


def _prompts(sizes, params, hidden, tokens):
  """Returns prompts that a small model reads, the model and its parameters."""
  if "projector" not in params:
    return tokens, transformer.language_model(sizes.small), params["decoder"]
  ids, own = llm_to_slm.with_vectors(params, hidden, tokens)
  return ids, llm_to_slm.language_model(sizes, ids), own


def _drafted(sizes, params, run, held_out, temperature):
  """Returns tokens a call of the teacher for which a small model drafts.

  The teacher reads the same ids, which name its own embeddings: so its text is
  what it would be without them.
  """
  tokens = held_out.tokens[:, :PROMPT.value]
  hidden, _ = jax.jit(functools.partial(llm_to_slm.features, sizes))(
      run.teacher_params, tokens)
  ids, draft, own = _prompts(sizes, params, hidden, jnp.asarray(tokens))
  target = transformer.with_prompts(sizes.large, ids.size)
  out = dj.generate(
      jax.random.key(0), ids, np.full(len(ids), ids.shape[1]),
      method=dj.methods.speculative(4), target=target,
      target_params={**run.teacher_params, "prompts": linear_ops.lookup(
          run.teacher_params["embedding"], tokens.ravel())},
      draft=draft, draft_params=own, max_new_tokens=_NEW,
      sampling=dj.Sampling(temperature))
  return _per_call(out)


def tune_for_pads(config, run):
  """Tunes the teacher for pads, and decodes with several thresholds.

  Args:
    config: see `configs/train.py`.
    run: of `training_run.prepare`.

  Returns:
    The lines of a table: tokens a call, mean log-probability of a token under
    the teacher as it was, and the share of texts that are its greedy ones.
  """
  key, architecture = jax.random.key(config.seed), run.architecture
  params = train(config, run, {**run.start, **prompt_tokens.init(
      key, _PADS, architecture)}, functools.partial(_pads_loss, architecture))
  prompts = run.data.held_out(PROMPTS.value).tokens[:, :PROMPT.value]
  plain, expected = dj.methods.autoregressive(), None
  lines = [["model", "method", "tokens a call", "log-probability", "equal, %"]]
  own = run.teacher, run.teacher_params
  tuned = prompt_tokens.target(_PADS, architecture), params
  for name, (target, target_params), method in (
      ("as it was", own, plain), ("tuned", tuned, plain),
      ("tuned", tuned, dj.methods.ppd((1,) * _PADS.prompts, 1, 1)),
      *(("tuned", tuned, dj.methods.lud(_PADS.prompts, confidence))
        for confidence in _CONFIDENCES)):
    out = dj.generate(
        key, prompts, np.full(len(prompts), prompts.shape[1]), method=method,
        target=target, target_params=target_params, max_new_tokens=_NEW,
        sampling=dj.Sampling(temperature=0.0))
    tokens = np.asarray(out.tokens)[:, :PROMPT.value + _NEW]
    expected = tokens if expected is None else expected
    logits = transformer.causal_logits(run.teacher, run.teacher_params,
                                       tokens[:, :-1])
    found = -losses.cross_entropy(logits[:, PROMPT.value - 1:],
                                  tokens[:, PROMPT.value:])
    lines.append([name, method.name, _per_call(out), f"{found:.3f}",
                  f"{100 * (tokens == expected).all(axis=1).mean():.0f}"])
  return lines


def _pads_loss(architecture, params, batch, teacher_params):
  """Returns the distance from the teacher, and of pads that from the text.

  Of the text after a token a pad learns what the teacher is sure of, up to the
  first token that it is not sure of.
  """
  tokens = jnp.asarray(batch.tokens[:, :-1])
  reach = _PADS.prompts + 1
  anchors = tuple(range(_STRIDE - 1, tokens.shape[1] - reach, _STRIDE))
  logits, guesses = prompt_tokens.with_chains(_PADS, architecture, params,
                                              tokens, anchors)
  teacher = jax.lax.stop_gradient(transformer.causal_logits(
      transformer.language_model(architecture), teacher_params, tokens))
  # `[A, prompts]`, the positions whose next tokens the pads are to predict.
  at = np.asarray(anchors)[:, None] + 1 + np.arange(_PADS.prompts)
  targets = tokens[:, at + 1]
  probs = jnp.take_along_axis(jax.nn.softmax(teacher[:, at]),
                              targets[..., None], axis=-1)[..., 0]
  sure = jnp.cumprod(probs >= _SURE, axis=-1)
  return losses.forward_kl(teacher, logits) + losses.cross_entropy(
      guesses, targets, sure + 1e-6)


def _per_call(out) -> str:
  emitted, calls = out.stats.emitted, out.stats.target_calls
  return text_tables.interval(metrics.ratio(emitted, calls),
                              *metrics.ratio_interval(emitted, calls))


SYSTEMS = {"llm_to_slm": compare_readers, "lud": tune_for_pads}


# Flags are defined where they are parsed, see `experiments.rsd`.
if __name__ == "__main__":
  CONFIG = launch.define_config("train:llm_to_slm", "train:llm_to_slm")
  PROMPTS = flags.DEFINE_integer("prompts", 128, "Held-out texts.",
                                 lower_bound=1)
  PROMPT = flags.DEFINE_integer(
      "prompt_length", 64, "Tokens of a prompt, at most half of a window.",
      lower_bound=1)
  launch.run(main)
