"""State, objectives, update step and evaluation of a training run."""

import functools
import math
from typing import Any, Callable, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from experiments.devices import mesh_shapes
from experiments.training import losses
from experiments.training import on_mesh
from models import transformer
from models.transformer import quantization

# Rows that are evaluated together, at least; an even number.
_EVALUATED = 8


@flax.struct.dataclass
class State:
  """Contents of a checkpoint; `step` is the number of updates made."""
  step: jax.Array
  params: Any
  opt_state: Any


def optimizer(config) -> optax.GradientTransformation:
  """Makes the optimizer, with clipped gradients and a schedule."""
  # "adamw": Loshchilov and Hutter, arXiv 1711.05101. "muon" (Jordan et al.
  # 2024) updates kernels at `matrix_learning_rate`, and all else by AdamW.
  return optax.chain(optax.clip_by_global_norm(config.clip),
                     OPTIMIZERS[config.optimizer](config))


def _schedule(config, rate):
  return optax.warmup_cosine_decay_schedule(
      0.0, rate, config.warmup_steps, config.steps)


def _adamw(config):
  return optax.adamw(
      _schedule(config, config.learning_rate), b2=config.b2,
      weight_decay=config.weight_decay,
      # Norm scales and biases are not decayed.
      mask=functools.partial(
          jax.tree_util.tree_map_with_path,
          lambda path, _: not path[-1].key.endswith(("scale", "bias"))))


def _muon(config):
  def dimensions(path, leaf):
    # `[out, in]`, with an axis of layers before it or without.
    return optax.contrib.MuonDimensionNumbers(leaf.ndim - 1, leaf.ndim - 2) if (
        path[-1].key == "kernel") else None

  return optax.contrib.muon(
      _schedule(config, config.matrix_learning_rate),
      weight_decay=config.weight_decay, adam_b2=config.b2,
      adam_learning_rate=_schedule(config, config.learning_rate),
      muon_weight_dimension_numbers=functools.partial(
          jax.tree_util.tree_map_with_path, dimensions))


OPTIMIZERS = {"adamw": _adamw, "muon": _muon}


def init(config, architecture: transformer.Config, params=None) -> State:
  """Returns the state before the first step, random without `params`."""
  quantization.check_whole(architecture.weights, "trained")
  if params is None:
    params = transformer.init(jax.random.key(config.seed), architecture)
  return of_params(config, params)


def of_params(config, params) -> State:
  """Returns the state before the first step with these parameters."""
  return State(jnp.int32(0), params, optimizer(config).init(params))


def make_step(config, objective, shardings=None):
  """Compiles `(state, batch, *extra) -> (state, loss)`, one update."""
  # It donates the memory of the old state. `objective` is `(params, batch,
  # *extra) -> loss`; `shardings` are the state's and the loss's, None for one
  # device.
  optim = optimizer(config)

  def step(state, batch, *extra):
    loss, grads = jax.value_and_grad(objective)(state.params, batch, *extra)
    if shardings is not None:
      # Else a part of an update may be computed by each device, and gathered.
      grads = jax.lax.with_sharding_constraint(grads, shardings[0].params)
    updates, opt_state = optim.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return State(state.step + 1, params, opt_state), loss

  return jax.jit(step, donate_argnums=0, out_shardings=shardings)


def mixed(lm, dtype):
  """Makes a model compute in `dtype`; gradients keep the parameters' type."""
  def forward(params, *args):
    return lm.forward(jax.tree.map(lambda x: x.astype(dtype), params), *args)

  return lm._replace(forward=forward)


def rounded(params, dtype):
  """Rounds parameters to the precision of `dtype`, in their own type."""
  # Files are compressed: rounded to bfloat16 they take half the space.
  return jax.tree.map(lambda x: x.astype(dtype).astype(x.dtype), params)


class Task(NamedTuple):
  """An objective without a teacher, and what is reported of it."""
  # `metrics` is `(lm, mesh) -> ((params, batch) -> metrics)`; their
  # `held_out_loss` is what training minimises.
  metrics: Callable[..., Any]
  outputs: int = 0  # of the architecture, see `transformer.Config`


def _language(lm, mesh):
  causal_logits = on_mesh.logits(lm, mesh)
  return lambda params, batch: {"held_out_loss": losses.cross_entropy(
      causal_logits(params, batch.tokens[:, :-1]), batch.tokens[:, 1:],
      batch.weights)}


def _masked(lm, mesh):
  """Masked diffusion, see `experiments.data.masking`."""
  # The last token is the mask. The loss is the mean over rows and masked
  # tokens, the bound on -log p in nats a token.
  mask_id = lm.vocab_size - 1
  whole_logits = on_mesh.logits(lm, mesh, transformer.bidirectional_logits)

  def metrics(params, batch):
    targets = batch.tokens[:, 1:]
    inputs = jnp.asarray(batch.tokens).at[:, 1:].set(
        jnp.where(batch.weights > 0, mask_id, targets))
    logits = whole_logits(params, inputs)[:, 1:]
    return {"held_out_loss": losses.cross_entropy(logits, targets,
                                                  batch.weights)}

  return metrics


def _preference(lm, mesh):
  """Rewards of rows 0, 2, ... over rows 1, 3, ..., at their last tokens."""
  values_of = on_mesh.logits(lm, mesh)

  def metrics(params, batch):
    values = values_of(params, batch.tokens[:, :-1])[..., 0]
    rewards = jnp.sum(values * batch.weights, axis=1)
    chosen, rejected = rewards[::2], rewards[1::2]
    return {"held_out_loss": losses.bradley_terry(chosen, rejected),
            "accuracy": jnp.mean((chosen > rejected).astype(jnp.float32))}

  return metrics


def continuations(prefix_length: int, suffix_length: int, outputs: int) -> Task:
  """Returns the task of a dual encoder, see `reward_model`."""
  # Windows are cut into pieces, prefix and continuation. After each quarter of
  # it each prefix is compared with all continuations of the step, some of its
  # own window (the negatives "INBOOK" of arXiv 2205.09726; those that a model
  # has written are left out). `accuracy` is the share of prefixes whose whole
  # continuation is the first.
  ends = suffix_length * np.arange(1, 5) // 4 - 1

  def metrics(lm, mesh):
    del mesh  # Rows are compared with other devices' rows.

    def compare(params, batch):
      pieces = batch.tokens[:, :-1].reshape(-1, prefix_length + suffix_length)
      before, after = (
          transformer.causal_logits(lm, params, part).astype(jnp.float32)
          for part in (pieces[:, :prefix_length], pieces[:, prefix_length:]))
      products = jnp.einsum("ie,jte->tij", before[:, -1, :outputs // 2],
                            after[:, ends, outputs // 2:])
      order = jnp.arange(len(pieces))
      first = products[-1].argmax(axis=1) == order
      return {"held_out_loss": losses.cross_entropy(
          products, jnp.broadcast_to(order, products.shape[:-1])),
              "accuracy": first.mean(dtype=jnp.float32)}

    return compare

  return Task(metrics, outputs)


LANGUAGE, PREFERENCE, MASKED = Task(_language), Task(_preference, 1), Task(
    _masked)


def objective(task: Task, lm, mesh=None):
  """Returns `(params, batch) -> loss` of a task."""
  metrics = task.metrics(lm, mesh)
  return lambda params, batch: metrics(params, batch)["held_out_loss"]


def distillation(lm, teacher, loss, mesh=None):
  """Returns the objective of distillation: `loss` against the teacher."""
  causal_logits = on_mesh.logits(lm, mesh)
  target_logits = on_mesh.logits(teacher, mesh)

  def compare(params, batch, teacher_params):
    # The last token is only a target of language modelling.
    tokens = batch.tokens[:, :-1]
    target = target_logits(teacher_params, tokens)
    draft = causal_logits(params, tokens)
    return loss(target, draft, batch.weights)

  return compare


def loss_at(config, step: int) -> str:
  """Returns the name of the distillation loss of a step."""
  final = step >= config.final_loss_from * config.steps
  return config.final_loss if final else config.loss


def evaluator(task, lm, teacher=None, mesh=None):
  """Compiles `(params, batch, teacher_params) -> metrics`, means of rows."""
  # With a teacher also its `teacher_loss`, and `overlap`, sum_x min(t, d) at
  # temperature 1, the acceptance rate of a single draft token.
  metrics = task.metrics(lm, mesh)
  if teacher is None:
    return jax.jit(lambda params, batch, _: metrics(params, batch))
  causal_logits = on_mesh.logits(lm, mesh)
  target_logits = on_mesh.logits(teacher, mesh)

  @jax.jit
  def evaluate(params, batch, teacher_params):
    inputs, targets = batch.tokens[:, :-1], batch.tokens[:, 1:]
    logits = causal_logits(params, inputs)
    target = target_logits(teacher_params, inputs)
    loss, teacher_loss = (losses.cross_entropy(x, targets, batch.weights)
                          for x in (logits, target))
    overlap = 1 - losses.total_variation(target, logits, batch.weights)
    return {"held_out_loss": loss, "teacher_loss": teacher_loss,
            "overlap": overlap}

  return evaluate


def evaluate(evaluate_batch, params, data, teacher_params=None,
             mesh=None) -> dict[str, float]:
  """Averages an `evaluator` over a large batch, some rows at a time."""
  rows = math.lcm(_EVALUATED, mesh_shapes.multiple(mesh))
  parts = [jax.tree.map(lambda x: x[i:i + rows], data)
           for i in range(0, len(data.tokens), rows)]
  # Wait for each batch: on a CPU, two programs with collectives that run at a
  # time can block all threads of the client, each waiting for the other.
  results = [jax.tree.map(float, evaluate_batch(
      params, on_mesh.put_rows(mesh, part), teacher_params)) for part in parts]
  weights = [part.weights.sum() for part in parts]
  return {name: float(np.average([r[name] for r in results], weights=weights))
          for name in results[0]}
