"""Tests generated texts of a model of any size by the model itself.

Given the tokens before it, the log-probability of a sampled token has a known
mean, minus the entropy, and a known variance; so has the indicator of the most
probable token. Summed over all tokens of all texts, the differences from these
means are normal, whatever the texts are about: no other texts are needed, and
no enumeration. Tokens are scored by plain forwards of each text alone, so that
an error of the tree, of the verification or of the caches is seen.
"""

import functools
import math
import statistics
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import programs
from decoding_jax import sampling as sampling_lib
from decoding_jax.runtime import cache as cache_lib, prefill
from decoding_jax.testing import assertions
from decoding_jax.types import Generation, LanguageModel, Params

# Tokens scored at once: their logits are `[CHUNK, V]`, of one row.
_CHUNK = 64
# Share of tokens that may have probability zero when they are scored again: in
# 16 bits another token may be at the edge of top-p, or be the greedy one.
_MOST_IMPOSSIBLE = 0.02


class Scores(NamedTuple):
  """Sums over the generated tokens of each text, all `[B]` float32."""
  tokens: np.ndarray  # How many there are.
  impossible: np.ndarray  # Of probability zero; in none of the sums below.
  log_prob: np.ndarray  # Log-probability less its mean, nats
  log_prob_variance: np.ndarray
  most_probable: np.ndarray  # Most probable tokens less their mean
  most_probable_variance: np.ndarray


def score(out: Generation, prompts, prompt_lengths, *, target: LanguageModel,
          target_params: Params, sampling=sampling_lib.Sampling()) -> Scores:
  """Scores the tokens of `dj.generate` again, by the arguments it was given.

  Args:
    out: the texts, `[B, P + max_new_tokens]`.
    prompts: `[B, P]`.
    prompt_lengths: `[B]`.
    target, target_params, sampling: those of the generation. Needs memory for
      the cache of one row and for logits `[64, V]`.

  Returns:
    The sums of each text. Sums of several batches may be joined.
  """
  warper = sampling_lib.make_warper(sampling, len(prompts), target.vocab_size)
  rows = jax.tree.map(jnp.asarray, (
      out.tokens, np.asarray(prompt_lengths, np.int32), out.lengths, warper))
  return jax.tree.map(np.asarray, _score(
      target, np.shape(prompts)[1], target_params, rows))


def report(name: str, scores: Scores) -> assertions.Report:
  """Returns whether texts of these scores are samples of the target."""
  tokens, impossible, *sums = (float(x.sum()) for x in scores)
  case = f"{tokens:.0f} tokens"
  tests = [_finding(case, test, *some, tokens) for test, some in (
      ("log-probability", sums[:2]), ("most probable token", sums[2:]))]
  if impossible > _MOST_IMPOSSIBLE * tokens:
    tests.append(assertions.Finding(
        case, f"{impossible:.0f} of probability zero", 0.0, math.inf))
  return assertions.Report(name, (), tuple(tests), math.nan)


def check_texts(out: Generation, prompts, prompt_lengths, *,
                name: str = "texts", **models) -> assertions.Report:
  """Tests whether the texts of `dj.generate` are samples of its target.

    out = dj.generate(key, prompts, lengths, method=method, **models)
    print(dj.testing.check_texts(out, prompts, lengths, target=target,
                                 target_params=target_params))

  Args:
    out, prompts, prompt_lengths: see `score`; a few thousand tokens tell much.
    name: what the report calls them.
    **models: `target`, `target_params` and `sampling`, see `score`.

  Returns:
    The report. Its `smallest_bias` is the least of two: nats of the mean
    log-probability of a token, and share of most probable tokens. In 16 bits
    the forward of a text rounds otherwise than that of a tree.
  """
  return report(name, score(out, prompts, prompt_lengths, **models))


def _finding(case, test, sum_, variance, tokens):
  """A two-sided test of a sum of mean 0, one of two."""
  deviation = math.sqrt(variance)
  if not deviation:  # Each token is certain, or of probability zero.
    return assertions.Finding(case, test, 1.0, math.inf)
  p_value = min(1.0, 2 * math.erfc(abs(sum_) / deviation / math.sqrt(2)))
  least = statistics.NormalDist().inv_cdf(1 - assertions.MIN_P_VALUE / 4)
  return assertions.Finding(case, f"{test} {sum_ / tokens:+.4f}", p_value,
                            (least + 2) * deviation / tokens)


@functools.partial(programs.jit, static_argnums=(0, 1))
def _score(target, prompt_length, params, rows):
  """Sums of rows, one after the other: each has its cache and logits alone."""
  width = rows[0].shape[1]
  size = min(_CHUNK, max(1, width - prompt_length))
  slots = prefill.capacity(prompt_length, width - prompt_length + size)

  def row(of_row):
    text, start, end, warper = of_row
    cache = prefill.prefill(
        slots, prefill.CHUNK, target, params,
        prompts=text[None, :prompt_length], lengths=start[None])

    def chunk(carry):
      cache, sums = carry
      # Past the end the last token is read again, and not counted.
      at = jnp.minimum(cache.length + jnp.arange(size), end - 1)
      logits, block = target.forward(
          params, text[None, at], at[None], cache,
          cache_lib.init_block(cache, size), 0, jnp.tri(size, dtype=bool)[None])
      count = jnp.minimum(end - 1 - cache.length, size)
      more = _token_sums(sampling_lib.log_probs(warper, logits[0]),
                         text[jnp.minimum(at + 1, end - 1)],
                         jnp.arange(size) < count)
      cache = cache_lib.commit(cache, block, jnp.arange(size)[None], count)
      return cache, jax.tree.map(jnp.add, sums, more)

    zeros = Scores(*[jnp.float32(0)] * len(Scores._fields))
    return jax.lax.while_loop(lambda carry: carry[0].length[0] < end - 1, chunk,
                              (cache, zeros))[1]

  return jax.lax.map(row, rows)


def _token_sums(log_probs, tokens, counted):
  """Sums over tokens `[T]` drawn from `log_probs [T, V]`, where counted."""
  probs = jnp.exp(log_probs)
  logs = jnp.where(probs > 0, log_probs, 0)
  mean = (probs * logs).sum(-1)
  variance = (probs * jnp.square(logs - mean[:, None])).sum(-1)
  best, most = sampling_lib.most_probable(log_probs), probs.max(-1)
  own = jnp.take_along_axis(log_probs, tokens[:, None], -1)[:, 0]
  possible = counted & (own > -jnp.inf)
  of_possible = lambda x: jnp.where(possible, x, 0).sum(dtype=jnp.float32)
  return Scores(
      counted.sum(dtype=jnp.float32),
      (counted & ~possible).sum(dtype=jnp.float32),
      *map(of_possible, (own - mean, variance, (best == tokens) - most,
                         most * (1 - most))))
