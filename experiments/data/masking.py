"""Masked rows for the training of masked-diffusion language models.

Of the n tokens of a row that may be masked, m are, with m uniform from 1 to n.
The mean of their losses, times n, is an unbiased estimate of the bound on the
row's negative log-likelihood, of less variance than with each token masked by
itself: LLaDA (arXiv 2502.09992) evaluates likelihoods so.
"""

import numpy as np

from experiments.data import batches


def masked(config, data: batches.Data) -> batches.Data:
  """Masks the rows of a run, in another way at each step."""
  # Tokens of a weight may be masked; with `config.masked_suffix` the last ones
  # are, for a model that drafts. The tokens stay; the weights of a row are 1 /
  # m at its m masked tokens and 0 elsewhere.
  if config.masked_suffix:
    def last(batch):
      weights = np.zeros_like(batch.weights)
      weights[:, -config.masked_suffix:] = 1 / config.masked_suffix
      return batches.Batch(batch.tokens, weights)

    return batches.Data(lambda *step: last(data.train(*step)),
                        lambda count: last(data.held_out(count)))

  def train(step, samples):
    rng = np.random.default_rng((config.seed, 1, step))
    return mask(rng, data.train(step, samples))

  def held_out(count):
    # One generator a row: a row is masked alike however many there are.
    batch = data.held_out(count)
    rows = [mask(np.random.default_rng((config.seed, 2, i)),
                 batches.Batch(batch.tokens[i:i + 1], batch.weights[i:i + 1]))
            for i in range(len(batch.tokens))]
    return batches.joined(rows)

  return batches.Data(train, held_out)


def mask(rng: np.random.Generator, batch: batches.Batch) -> batches.Batch:
  """Masks m of the tokens of each row whose weight is not 0."""
  may = batch.weights > 0
  total = may.sum(axis=1, keepdims=True)
  count = rng.integers(1, np.maximum(total, 1) + 1)
  # The masked ones have the lowest ranks in a random order.
  order = np.where(may, rng.random(may.shape), 2.0)
  ranks = np.argsort(np.argsort(order, axis=1), axis=1)
  chosen = may & (ranks < count)
  return batches.Batch(batch.tokens, (chosen / count).astype(np.float32))
