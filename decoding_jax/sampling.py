"""Logits warping, and samples of the resulting distributions."""

from typing import Optional

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import kernels
from decoding_jax.kernels import vocabulary
from decoding_jax.types import Array
from decoding_jax.validation import values as values_lib

# A residual of less mass is rounding noise: the distribution before is kept.
MIN_MASS = 1e-12
# Bounds of temperatures and top-p, with room in float32 for quotients.
_LEAST, _MOST = 1e-30, 1e30
# Parts of an interval in which a threshold of split distributions is sought.
_PARTS = 16
# The exponential of less is subnormal in float32, or 0.
_LEAST_LOG = -87.0

top_k, gumbel_top_k = vocabulary.top_k, vocabulary.gumbel_top_k
most_probable = vocabulary.most_probable


@flax.struct.dataclass
class Sampling:
  """Parameters of the distribution that logits are warped to.

  They apply in this order, as in other libraries: token mask, temperature,
  top-k, top-p, min-p, typical-p. Tokens that tie with the last one kept are
  kept too.
  """
  # `[]` or `[B]`, 1e-30 to 1e30; or one 0, which is greedy decoding
  temperature: float | Array = 1.0
  # Keep this many of the most probable tokens; 0 keeps all
  top_k: int = flax.struct.field(pytree_node=False, default=0)
  # `[]` or `[B]` in (0, 1], keep the smallest set of most probable tokens whose
  # mass reaches this; 1 keeps all
  top_p: float | Array = 1.0
  # `[V]` or `[B, V]` bool, tokens that may occur; None for all
  token_mask: Optional[Array] = None
  # `[]` or `[B]` in [0, 1], drop tokens whose probability is less than this
  # share of the largest one (arXiv 2407.01082); 0 keeps all
  min_p: float | Array = 0.0
  # `[]` or `[B]` in (0, 1], keep the smallest set of tokens whose mass reaches
  # this, those first whose surprise is closest to the entropy (locally typical
  # sampling, arXiv 2202.00666); 1 keeps all
  typical_p: float | Array = 1.0


@flax.struct.dataclass
class LogitsWarper:
  """A checked `Sampling` in the form of compiled programs; see `make_warper`.

  Attributes:
    temperature: `[B]` float32; has no effect if greedy.
    top_p: `[B]` float32, or None for all.
    min_p: `[B]` float32, or None for 0.
    token_mask: `[B, V]` bool, or None for all.
    top_k: static; 0 for all.
    greedy: static; the distribution is one-hot.
    typical_p: `[B]` float32, or None for all.
  """
  temperature: Array
  top_p: Optional[Array]
  min_p: Optional[Array]
  token_mask: Optional[Array]
  top_k: int = flax.struct.field(pytree_node=False)
  greedy: bool = flax.struct.field(pytree_node=False)
  typical_p: Optional[Array] = None


def make_warper(sampling: Sampling, batch: int, vocab_size: int,
                name: str = "sampling") -> LogitsWarper:
  """Returns the warper of a `Sampling` for B rows, after checking it.

  Whether decoding is greedy, and whether top-p, min-p and typical-p drop any
  tokens, is static, so that each of them costs nothing where it is off.

  Raises:
    ValueError: for a value outside its range or a mask of a wrong shape.
  """
  temperature, top_p, min_p = (sampling.temperature, sampling.top_p,
                               sampling.min_p)
  _check(f"{name}.temperature", temperature,
         lambda x: (x >= _LEAST) & (x <= _MOST) | (x.ndim == 0) & (x == 0),
         f"a number from {_LEAST} to {_MOST}, one for each row, or 0 "
         "(greedy) for all rows")
  for field, x in (("top_p", top_p), ("typical_p", sampling.typical_p)):
    _check(f"{name}.{field}", x, lambda x: (x >= _LEAST) & (x <= 1),
           f"a number from {_LEAST} to 1, or one for each row,")
  _check(f"{name}.min_p", min_p, lambda x: (x >= 0) & (x <= 1),
         "a number from 0 to 1, or one for each row,")
  if not values_lib.is_integer(sampling.top_k) or sampling.top_k < 0:
    raise ValueError(f"{name}.top_k={sampling.top_k!r}: 0 (all) or a positive "
                     "integer is needed.")
  mass = lambda field, x: (
      None if _is(x, 1) else _per_row(f"{name}.{field}", x, batch))
  return LogitsWarper(
      _per_row(f"{name}.temperature", temperature, batch),
      mass("top_p", top_p),
      None if _is(min_p, 0) else _per_row(f"{name}.min_p", min_p, batch, 0, 1),
      _token_mask(sampling.token_mask, batch, vocab_size, name),
      0 if sampling.top_k >= vocab_size else int(sampling.top_k),
      _is(temperature, 0), mass("typical_p", sampling.typical_p))


def without_temperature(warper: LogitsWarper) -> LogitsWarper:
  """Returns a warper of temperature 1 that keeps only the token mask."""
  ones = np.ones(warper.temperature.shape, np.float32)
  return LogitsWarper(ones, None, None, warper.token_mask, 0, False)


def log_probs(warper: LogitsWarper, logits):
  """Returns log-probabilities `[..., V]` float32 of the next token, of one row.

  They are normalised; -inf for dropped tokens. Logits may be of any float type.
  """
  logits = vocabulary.split(logits.astype(jnp.float32))
  zero = jnp.float32(0)  # 0.0 would be a float64 under x64.
  if warper.token_mask is not None:
    masked = jnp.where(warper.token_mask, logits, -jnp.inf)
    # If a processor forbids all tokens of the mask, they are equally probable.
    logits = jnp.where(masked.max(-1, keepdims=True) == -jnp.inf,
                       jnp.where(warper.token_mask, zero, -jnp.inf), masked)
  if warper.greedy:
    best = most_probable(logits)[..., None]
    tokens = jax.lax.broadcasted_iota(best.dtype, logits.shape, logits.ndim - 1)
    return jnp.where(tokens == best, zero, -jnp.inf)
  # Subtract the largest first: fused with the division, the difference would
  # not be exactly 0 at the largest logit if logits are large.
  largest, log_mass = kernels.log_normalizer(logits, warper.temperature)
  logits = (logits - largest) / warper.temperature
  if warper.top_k:
    # Not [..., -1:]: XLA turns a sliced top-k into a full sort.
    lowest = top_k(logits, warper.top_k)[0].min(-1, keepdims=True)
    logits = vocabulary.split(jnp.where(logits >= lowest, logits, -jnp.inf))
    _, log_mass = kernels.log_normalizer(logits)
  log_probs = logits - log_mass
  if warper.top_p is not None:
    probs = jnp.exp(log_probs)
    log_probs = _keep(probs >= nucleus_threshold(probs, warper.top_p),
                      log_probs)
  if warper.min_p is not None:
    # The largest logit is 0, so that logits are logarithms of these shares,
    # whatever was dropped before.
    log_probs = _keep(~(logits < jnp.log(warper.min_p)), log_probs)
  if warper.typical_p is not None:
    probs, distance = jnp.exp(log_probs), distance_from_entropy(log_probs)
    log_probs = _keep(distance <= typical_threshold(
        distance, probs, warper.typical_p), log_probs)
  return log_probs


def _keep(kept, log_probs):
  """Returns the distribution of some of the tokens."""
  kept = vocabulary.split(jnp.where(kept, log_probs, -jnp.inf))
  if vocabulary.shards() == 1:
    return jax.nn.log_softmax(kept)
  # A program of its own within this one could gather its argument.
  largest, log_mass = kernels.log_normalizer(kept)
  return vocabulary.split(kept - largest - log_mass)


def drop_underflowing(log_probs):
  """Removes tokens whose probability is 0 in float32, from `[..., V]`.

  By its log-probability such a token could still be drawn, as a later sibling
  of one with nearly all the mass. A rule that compares probabilities would then
  see a token that the draft never proposes, and always accept it.
  """
  return jnp.where(log_probs < _LEAST_LOG, -jnp.inf, log_probs)


def nucleus_threshold(probs, top_p):
  """Returns the least probability that top-p keeps, `[..., 1]`, without a sort.

  It is the largest threshold whose survivors of `probs [..., V]` have at least
  mass `top_p`; 0 if by rounding even all of them have less. A sort of a
  vocabulary takes a hundred times as long as one sum over it.
  """
  def is_enough(threshold):
    kept = jnp.where(probs >= threshold, probs, 0)
    return jnp.sum(kept, -1, keepdims=True) >= top_p

  return _largest(is_enough, probs[..., :1], 2)


def distance_from_entropy(log_probs):
  """Returns `[..., V]`, |-log p - H| in nats, H the entropy; inf if p is 0."""
  possible = log_probs > -jnp.inf
  surprise = jnp.where(possible, -log_probs, 0)
  entropy = jnp.sum(jnp.exp(log_probs) * surprise, -1, keepdims=True)
  return jnp.where(possible, jnp.abs(surprise - entropy), jnp.inf)


def typical_threshold(distance, probs, typical_p):
  """Returns the largest distance that typical-p keeps, `[..., 1]`; no sort.

  It is the smallest threshold whose survivors have at least mass `typical_p`;
  the largest float if by rounding even all of them have less.
  """
  def is_too_little(bound):
    closer = jnp.where(distance < bound, probs, 0)
    return jnp.sum(closer, -1, keepdims=True) < typical_p

  return _largest(is_too_little, probs[..., :1], jnp.inf)


def _largest(holds, like, bound):
  """Finds the largest float for which a condition holds, by bisection. It holds
  of 0, and not of `bound`. Bits of non-negative floats, read as integers, have
  the order of the floats: 31 halvings of an integer interval find an exact
  threshold `[..., 1]`, or 9 divisions into 16 parts."""
  holds_at = lambda x: holds(jax.lax.bitcast_convert_type(x, jnp.float32))

  def halve(_, bounds):
    low, high = bounds
    middle = low + (high - low) // 2
    held = holds_at(middle)
    return jnp.where(held, middle, low), jnp.where(held, high, middle)

  def part(_, bounds):
    low, high = (x[None] for x in bounds)
    step = jnp.maximum((high - low) // _PARTS, 1)
    order = jnp.arange(1, _PARTS).reshape(-1, *(1,) * like.ndim)
    middles = jnp.minimum(low + step * order, high)
    held = jax.vmap(holds_at)(middles) & (middles < high)
    return (jnp.where(held, middles, low).max(axis=0),
            jnp.where(held, high, middles).min(axis=0))

  def bits(x):
    return jnp.full_like(like, x).view(jnp.int32)

  # Devices that have a part each would wait 31 times for each other.
  rounds, narrow = (31, halve) if vocabulary.shards() == 1 else (9, part)
  low, _ = jax.lax.fori_loop(0, rounds, narrow, (bits(0), bits(bound)))
  return jax.lax.bitcast_convert_type(low, jnp.float32)


def draw(key, log_probs):
  """Draws one token `[]` int32 of `log_probs [V]`."""
  return gumbel_top_k(key, log_probs, 1)[1].squeeze(0)


def truncate_gumbel(perturbed, peak, bound):
  """Conditions Gumbels on their maximum (Kool et al. 2019, appendix B).

  Args:
    perturbed: `[..., K]` perturbed log-probabilities.
    peak: `[..., 1]`, the maximum over the family of each value.
    bound: `[..., 1]`, the maximum to condition on.

  Returns:
    `[..., K]`, in the order of `perturbed`; -inf where `perturbed` or `bound`
    is.
  """
  # A family of probability 0 would give -inf minus -inf.
  alive = (perturbed > -jnp.inf) & (bound > -jnp.inf)
  perturbed, peak, bound = (
      jnp.where(alive, x, 0.0) for x in (perturbed, peak, bound))
  u = bound - perturbed + jnp.log1p(-jnp.exp(perturbed - peak))
  moved = bound - jnp.maximum(0, u) - jnp.log1p(jnp.exp(-jnp.abs(u)))
  return jnp.where(alive, moved, -jnp.inf)


def residual(target, draft):
  """Returns norm(max(target - draft, 0)), or `target` if that has no mass.

  All are distributions `[V]` float32.
  """
  rest = jnp.maximum(target - draft, 0)
  mass = jnp.sum(rest)
  kept = mass > MIN_MASS
  return jnp.where(kept, rest / jnp.where(kept, mass, 1), target)


def _is(value, constant):
  """Returns whether all rows have this one number; False if traced."""
  value = _on_host(value)
  return value is not None and value.ndim == 0 and value == constant


def _per_row(name, value, batch, low=_LEAST, high=_MOST):
  numpy = jnp if isinstance(value, jax.Array) else np
  value = numpy.asarray(value, np.float32)
  if isinstance(value, jax.core.Tracer):
    # Traced values cannot be checked. The least value is as good as greedy,
    # where 0 / 0 would be NaN.
    value = jnp.clip(value, low, high)
  if value.shape not in ((), (batch,)):
    raise ValueError(f"{name} has shape {value.shape}: a number or one for "
                     f"each of {batch} rows is needed.")
  return numpy.broadcast_to(value, (batch,))


def _check(name, value, allowed, what):
  host = _on_host(values_lib.array(name, value))
  if host is not None and not (jnp.issubdtype(host.dtype, jnp.number) and
                               np.all(allowed(host))):
    raise ValueError(f"{name}={value!r}: {what} is needed.")


def _on_host(value):
  """Returns a number or an array of the host; None if it is traced."""
  return None if isinstance(value, jax.core.Tracer) else np.asarray(value)


def _token_mask(mask, batch, vocab_size, name):
  if mask is None:
    return None
  mask = values_lib.array(f"{name}.token_mask", mask)
  if mask.dtype != bool or mask.shape not in ((vocab_size,),
                                              (batch, vocab_size)):
    raise ValueError(
        f"{name}.token_mask has shape {mask.shape} and type {mask.dtype}: "
        f"bool of shape {(vocab_size,)} or {(batch, vocab_size)} is needed.")
  # Of the host: inside jit even a known array's `any` would be traced.
  host = _on_host(mask)
  if host is not None and not host.any(axis=-1).all():
    raise ValueError(f"{name}.token_mask forbids every token of a row.")
  return jnp.broadcast_to(mask, (batch, vocab_size))
