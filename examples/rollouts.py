"""GRPO (arXiv 2402.03300) whose rollouts are drafted, and exact samples.

  python examples/rollouts.py    # from the repository; a few minutes on a CPU

A group of texts of one prompt per step; the reward likes short lines of Python.
Parameters are arguments of `dj.generate`: each step has other ones, and none
compiles anything after the first. The draft model learns from the same texts.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import decoding_jax as dj
from models import checkpoints, transformer
from models.text import batching, tokenizers

PROMPT = 'class Stack:\n  """A stack of items."""\n\n  def __init__(self'
METHODS = {"drafted": dj.methods.speculative(4, "traversal"),
           "plain": dj.methods.autoregressive()}


def text_log_probs(model, params, tokens):
  """Returns `[B, T - 1]`, of each token of `[B, T]` after those before it."""
  logits = transformer.causal_logits(model, params, tokens[:, :-1])
  return jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None],
                             axis=2)[..., 0]


def main(steps=12, group=16, new_tokens=64, rate=2e-4, rounds=3):
  """Trains policy and drafter; returns a dict of figures for each step."""
  models, both = zip(*map(checkpoints.load, ("python-target", "python-draft")))
  tokenizer = tokenizers.load("python-target")
  prompts, lengths = batching.encode(tokenizer, [PROMPT] * group)
  optimizer, compiled, history = optax.adam(rate), [], []
  # On the device, as parameters are: the first update is then like the others.
  state = jax.device_put(optimizer.init(both), jax.devices()[0])
  jax.monitoring.register_event_duration_secs_listener(
      lambda name, *_, **__: name.endswith("backend_compile_duration")
      and compiled.append(name))

  def rollouts(method, both, step):
    # All rows begin with the same tokens, whose keys and values are kept once.
    return jax.block_until_ready(dj.generate(
        jax.random.key(step), prompts[:, -1:], np.ones_like(lengths),
        shared_prefix=prompts[0, :-1], method=METHODS[method],
        target=models[0], target_params=both[0], draft=models[1],
        draft_params=both[1], max_new_tokens=new_tokens))

  @jax.jit
  def update(both, state, tokens, advantages):
    def loss(both):
      policy, draft = (text_log_probs(model, params, tokens)[:, -new_tokens:]
                       for model, params in zip(models, both))
      # The ratio of GRPO is 1 for texts of the policy itself, so that this is
      # its gradient; the drafter's is that of KL(policy, draft).
      return -(advantages[:, None] * policy).mean() - draft.mean(), policy

    grads, log_probs = jax.grad(loss, has_aux=True)(both)
    changes, state = optimizer.update(grads, state)
    return optax.apply_updates(both, changes), state, log_probs

  for step in range(steps):
    before = len(compiled)
    out = rollouts("drafted", both, step)
    texts = batching.decode(tokenizer, out, lengths)
    rewards = np.array([text.count("\n") / len(text) for text in texts])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    both, state, log_probs = update(both, state, out.tokens, advantages)
    history.append({
        "reward": rewards.mean(), "log_prob_error": np.abs(
            out.log_probs[:, -new_tokens:] - log_probs).max(),
        "tokens_per_call": (out.stats.emitted / out.stats.target_calls).mean(),
        "compiled": len(compiled) - before})
    print(step, *(f"{key} {x:.3g}" for key, x in history[-1].items()))
  for method in METHODS:
    seconds = []
    for _ in range(1 + rounds):  # The first one compiles plain sampling.
      start = time.perf_counter()
      out = rollouts(method, both, steps)
      seconds.append(time.perf_counter() - start)
    history[-1][method] = out.stats.emitted.sum() / min(seconds[1:])
    print(f"{method}: {history[-1][method]:.0f} tokens/s")
  return history


if __name__ == "__main__":
  main()
