"""Searches over texts of a tabular model, and what they find in plain Python.

A distribution is a table `[V, V]` of the next token by the last one; a text a
tuple of tokens.
"""

import collections

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import tiny_models as tiny

V, LENGTH, EOS = 4, 3, 2
ROWS = 40_000


def table(seed=0, zeros=0, size=V):
  return exactness.random_table(np.random.default_rng(seed), size, zeros)


def search(method, distributions, rows=3, length=LENGTH, new_key=0, **kwargs):
  """Texts after tokens 0, 1, ...; the statistics on the host."""
  firsts = np.arange(rows, dtype=np.int32)[:, None] % min(
      rows, len(distributions))
  out = tiny.generate(
      method, tiny.tables(distributions), key=jax.random.key(new_key),
      prompts=firsts, lengths=np.ones(rows, np.int32), new=length,
      **{"eos_id": EOS, **kwargs})
  return jax.tree.map(np.asarray, out)


def beams(out, row):
  """The beams of a row as tuples of tokens."""
  extra = out.stats.extra
  return [tuple(tokens[:length].tolist()) for tokens, length in zip(
      extra["beams"][row], extra["beam_lengths"][row])]


def texts(distributions, first, length=LENGTH, eos=EOS):
  """dict from each text that can follow to its probability."""
  if not length:
    return {(): 1.0}
  results = {}
  for token in np.flatnonzero(distributions[first]):
    rest = {(): 1.0} if token == eos else texts(distributions, token, length -
                                                1, eos)
    results.update({(int(token), *text): distributions[first, token] * p
                    for text, p in rest.items()})
  return results


def grown(distributions, first, width, length=LENGTH, penalty=0.0, groups=1):
  """Beam search on the host: lists of (log-probability, text), best first."""
  groups_of = [[(0.0, ())]] * groups
  for _ in range(length):
    taken, next_groups = np.zeros(len(distributions)), []
    for beam in groups_of:
      options = []
      for total, text in beam:
        if text and text[-1] == EOS:
          options.append((total, total, text))
          continue
        probs = distributions[text[-1] if text else first]
        for token in np.flatnonzero(probs):
          longer = total + np.log(probs[token])
          options.append((longer - penalty * taken[token], longer,
                          (*text, int(token))))
      options = sorted(options, reverse=True)[:width // groups]
      kept = [(total, text) for _, total, text in options]
      fresh = {text for _, text in beam}
      for _, text in kept:
        if text not in fresh:
          taken[text[-1]] += 1
      next_groups.append(kept)
    groups_of = next_groups
  # A stable sort: of equal ones the earlier group's is the first.
  return sorted(sum(groups_of, []), key=lambda x: -x[0])


def grown_by_length(distributions, first, width, penalty, length=LENGTH):
  """Beams next to ended texts, by log-probability over length**penalty."""
  going, ended = [(0.0, ())], []
  for _ in range(length):
    options = sorted((
        (total + np.log(probs[token]), (*text, int(token)))
        for total, text in going
        for probs in [distributions[text[-1] if text else first]]
        for token in np.flatnonzero(probs)), reverse=True)
    ended += [x for x in options[:width] if x[1][-1] == EOS]
    going = [x for x in options if x[1][-1] != EOS][:width]
  worth = lambda x: x[0] / len(x[1])**penalty
  return sorted(ended + going, key=worth, reverse=True)[:width]


def draw(method, distributions, sampling, rows=ROWS, length=LENGTH, **kwargs):
  """Many rows after token 0."""
  lm, params = exactness.table_model(distributions)
  out = dj.generate(
      jax.random.key(2), jnp.zeros((rows, 1), jnp.int32),
      jnp.ones(rows, jnp.int32), method=method, target=lm, target_params=params,
      max_new_tokens=length, eos_id=EOS, sampling=sampling, **kwargs)
  return jax.tree.map(np.asarray, out)


def fit(out, probs):
  """The p-value of the texts of a generation, by a dict of probabilities."""
  counts = collections.Counter(
      tuple(tokens[1:length].tolist())
      for tokens, length in zip(out.tokens, out.lengths))
  known = {*probs, *counts}
  return exactness.p_value(np.array([counts[text] for text in known], float),
                           np.array([probs.get(text, 0.0) for text in known]))


def ordered_counts(out, known, width):
  """How often texts are the first, second, ... beam: `[texts] * width`."""
  extra = out.stats.extra
  index = {text: i for i, text in enumerate(known)}
  counts = np.zeros((len(known),) * width)
  lengths = extra["beam_lengths"]
  code = lambda tokens, length: tuple(tokens[:length].tolist())
  for tokens, length in zip(extra["beams"], lengths):
    counts[tuple(index[code(t, n)] for t, n in zip(tokens, length))] += 1
  return counts
