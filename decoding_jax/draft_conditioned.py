"""Draft-conditioned constrained decoding: think freely, then follow a grammar.

A mask gives what is valid the probability of what is not, token by token: where
the model would rather have said something else, it is pushed to texts that it
finds improbable. DCCD (arXiv 2603.03305) has it say that first: a draft without
a grammar, then the text under the grammar, with the draft before it. What the
mask costs, the sum of -log(probability of all that was allowed) over the text,
the paper's projection tax, falls if the draft has made the valid text probable.
Of several drafts the one with the least tax is kept.

Written from the abstract: the prompts of the paper, which ask for the second
text, are the caller's `bridge`, and how it selects drafts is not known.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import grammar_aligned, programs
from decoding_jax import sampling as sampling_lib
from decoding_jax.generate import generate
from decoding_jax.processors import model_wrapper
from decoding_jax.types import LogitsProcessor


class Dccd(NamedTuple):
  """The chosen texts."""
  # `[B, P + draft_tokens + S + max_new_tokens]` int32: prompt, draft, bridge of
  # S tokens, text
  tokens: np.ndarray
  starts: np.ndarray  # `[B]` int32, the first token of the text
  lengths: np.ndarray  # `[B]` int32, all included
  taxes: np.ndarray  # `[B, K]` float32, nats, of the texts after all drafts


def dccd(key, prompts, prompt_lengths, *, grammar: LogitsProcessor,
         grammar_params, bridge, target, target_params, method, eos_id,
         draft_tokens: int, max_new_tokens: int, num_drafts: int = 1,
         sampling=sampling_lib.Sampling(), planner=None, planner_params=None,
         **drafting) -> Dccd:
  """Drafts without a grammar, then writes under it.

  Args:
    key: a random key.
    prompts: `[B, P]` int32, right-padded.
    prompt_lengths: `[B]` int32.
    grammar: a processor that does not read prompts, such as
      `dj.processors.automaton()`.
    grammar_params: its parameters.
    bridge: `[S]` int32, tokens between draft and text: "so the JSON is".
    target: the model that writes.
    target_params: its parameters.
    method: any `dj.Method`.
    eos_id: the token that ends a draft or a text, or several such tokens; that
      of a draft is left out.
    draft_tokens: of a draft at most.
    max_new_tokens: of a text at most.
    num_drafts: K, of each prompt; of several a temperature above 0 is needed.
    sampling: of drafts and texts.
    planner: the model that drafts; None for the target.
    planner_params: its parameters.
    **drafting: of `generate`, such as `draft` and `draft_params`, for both.

  Returns:
    For each prompt the text of the least tax. Given its draft, a text has the
    masked distribution, if K is 1.

  Raises:
    ValueError: for numbers that are not positive, a grammar that reads prompts,
      and as `generate`.
  """
  grammar_aligned.check(grammar, "bridge", num_drafts=num_drafts,
                        draft_tokens=draft_tokens)
  first, then = jax.random.split(key)
  prompts, lengths = (np.repeat(np.asarray(x, np.int32), num_drafts, axis=0)
                      for x in (prompts, prompt_lengths))
  plan = (target, target_params) if planner is None else (planner,
                                                          planner_params)
  drafts = generate(first, prompts, lengths, method=method, target=plan[0],
                    target_params=plan[1], max_new_tokens=draft_tokens,
                    eos_id=eos_id, sampling=sampling, **drafting)
  joined, starts = _join(drafts, np.asarray(bridge, np.int32),
                         np.atleast_1d(eos_id))
  lm, params = model_wrapper.apply(grammar, grammar_params, target,
                                   target_params)
  out = generate(then, joined, starts, method=method, target=lm,
                 target_params=params, max_new_tokens=max_new_tokens,
                 eos_id=eos_id, sampling=sampling, **drafting)
  tokens, ends = np.asarray(out.tokens), np.asarray(out.lengths)
  taxes = np.asarray(_taxes(
      grammar, target, target_params,
      jax.tree.map(jnp.asarray, grammar_params),
      jnp.asarray(np.maximum(tokens, 0)), jnp.asarray(starts),
      jnp.asarray(ends))).reshape(-1, num_drafts)
  best = taxes.argmin(axis=1) + num_drafts * np.arange(len(taxes))
  return Dccd(tokens[best], starts[best], ends[best], taxes)


def _join(drafts, bridge, ends):
  """Prompts and drafts without their end, then the bridge; and their lengths.
  """
  tokens, lengths = np.asarray(drafts.tokens), np.asarray(drafts.lengths)
  joined = np.zeros((len(tokens), tokens.shape[1] + len(bridge)), np.int32)
  starts = np.zeros(len(tokens), np.int32)
  for row, text, length in zip(range(len(tokens)), tokens, lengths):
    text = text[:length - int(text[length - 1] in ends)]
    starts[row] = len(text) + len(bridge)
    joined[row, :starts[row]] = (*text, *bridge)
  return joined, starts


@functools.partial(programs.jit, static_argnums=(0, 1))
def _taxes(grammar, lm, params, grammar_params, tokens, starts, ends):
  """`[B]`, what a grammar costs the texts from `starts` to `ends`, in nats."""
  logs = grammar_aligned.text_log_probs(lm, params, tokens)[:, :-1]
  places = jnp.arange(1, tokens.shape[1])[None]
  ours = (places >= starts[:, None]) & (places < ends[:, None])
  return -jax.vmap(functools.partial(
      grammar_aligned.log_masses, grammar, grammar_params))(
          tokens[:, 1:], logs, ours).sum(axis=1)
