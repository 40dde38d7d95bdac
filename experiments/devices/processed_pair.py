"""Logits processors on both models of a pair."""

import decoding_jax as dj
from experiments.devices import mesh


def apply(pair, processors):
  """Applies (processor, parameters) pairs to target and draft.

  A head has no state of its tokens: what it drafts may be refused.
  """
  for processor, params in processors:
    params = mesh.on_all(pair.mesh, params)
    target, target_params = dj.processors.apply(
        processor, params, pair.target, pair.target_params)
    pair = pair._replace(target=target, target_params=target_params)
    if isinstance(pair.draft, dj.LanguageModel):
      draft, draft_params = dj.processors.apply(
          processor, params, pair.draft, pair.draft_params)
      pair = pair._replace(draft=draft, draft_params=draft_params)
  return pair
