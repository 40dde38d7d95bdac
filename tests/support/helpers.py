"""Oracles in float64, and other processes.

A negative control has to fail by a margin that chance cannot explain.
"""

import functools
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from decoding_jax.testing import exactness
from experiments.devices import model_pair
from models import transformer
from models.text import chat_template, tokenizers

MAX_P_VALUE_OF_CONTROL = 1e-12
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def warped(table, temperature=1.0, top_k=0, top_p=1.0, token_mask=None,
           min_p=0.0, typical_p=1.0):
  """The rows of `table` after `Sampling`, in float64 and by sorting."""
  masked = np.where(True if token_mask is None else token_mask, table, 0.0)
  if token_mask is not None:
    none = ~masked.any(axis=-1, keepdims=True)
    masked = np.where(none, token_mask, masked)
  return np.stack([_warped_row(row, temperature, top_k, top_p, min_p, typical_p)
                   for row in masked])


def _warped_row(row, temperature, top_k, top_p, min_p, typical_p):
  probs = (row / row.max())**(1 / temperature)
  probs /= probs.sum()
  if top_k:
    probs = _first(probs, -probs, lambda mass, rank: rank < top_k)
  if top_p < 1:
    probs = _first(probs, -probs, lambda mass, rank: mass < top_p)
  probs = np.where(probs >= min_p * probs.max(), probs, 0)
  probs /= probs.sum()
  if typical_p == 1:
    return probs
  surprise = -np.log(probs, where=probs > 0, out=np.full(len(probs), np.inf))
  entropy = probs[probs > 0] @ surprise[probs > 0]
  return _first(probs, abs(surprise - entropy),
                lambda mass, rank: mass < typical_p)


def _first(probs, cost, is_kept):
  """Keeps the cheapest tokens, and all that tie with the last one kept."""
  order = np.argsort(cost, kind="stable")
  before = np.cumsum(probs[order]) - probs[order]
  kept = is_kept(before, np.arange(len(probs)))
  probs = np.where(cost <= cost[order][kept].max(), probs, 0)
  return probs / probs.sum()


def acceptance_bound(target, inside):
  """The best acceptance of any rule that keeps `target` (arXiv 2502.18779): the
  least 1 + t(H) - Q(H) of sets H, `inside` being Q, that all children lie in H.
  """
  order = range(len(target))
  return min(1 + target[list(chosen)].sum() - inside(chosen) for size in (
      *order, len(target)) for chosen in itertools.combinations(order, size))


def spied(drafter, table, prompt, new):
  """A greedy text of a table, which drafts for itself where a model does; and
  trees, what is pending, tokens and lengths of each time that `drafter`
  proposes."""
  result, (lm, params) = [], exactness.table_model(table)

  def propose(keys, context, state):
    tree, pending = drafter.propose(keys, context, state)
    jax.debug.callback(lambda *x: result.append(jax.tree.map(np.asarray, x)),
                       tree, pending, state.tokens, state.length)
    return tree, pending

  pair = verifiers.pair(drafter._replace(propose=propose), verifiers.match())
  draft = dict(draft=lm, draft_params=params) if drafter.calls else {}
  out = dj.generate(
      jax.random.key(0), np.array([prompt], np.int32), np.array([len(prompt)]),
      method=dj.Method("spied", pair, pair), target=lm, target_params=params,
      max_new_tokens=new, sampling=dj.Sampling(0.0), **draft)
  jax.effects_barrier()
  return out, result


def first_tree(drafter, table):
  """The tree that is drafted after token 0."""
  return spied(drafter, table, [0], 1)[1][0][0]


def paths(tree, row=0):
  """The tokens from the root to each valid node of a tree but the root."""
  return [tuple(tree.tokens[row, np.flatnonzero(mask)[1:]].tolist())
          for mask in tree.mask[row][tree.valid[row]][1:]]


def best_paths(table, number, depth):
  """The most probable texts of up to `depth` tokens after token 0."""
  every = [path for length in range(1, depth + 1)
           for path in itertools.product(range(len(table)), repeat=length)]
  return set(sorted(every, key=lambda path: -np.prod(
      table[(0, *path[:-1]), path]))[:number])


def check_wrong(decoder, vocab_size, rows, length):
  """Asserts that texts of a pair or decoder are not those of the target."""
  result = dj.testing.check(
      dj.Method("wrong", decoder, None), *exactness.random_tables(vocab_size),
      rows=rows, length=length)
  assert result.p_value < MAX_P_VALUE_OF_CONTROL


@functools.lru_cache(maxsize=None)
def load_pair(target, draft):
  """Two models that share a tokenizer, from folders that do not change."""
  return model_pair.with_params(model_pair.open_pair(target, draft))


def joint_of_model(model, prompt, count):
  """Returns `[V] * count`, the distribution of the tokens after a prompt."""
  size = model.lm.vocab_size
  texts = np.array([*itertools.product(range(size), repeat=count)], np.int32)
  before = np.tile(prompt, (len(texts), 1))
  logits = transformer.causal_logits(model.lm, model.params, np.concatenate(
      [before, texts[:, :-1]], axis=1))[:, len(prompt) - 1:]
  probs = np.asarray(jax.nn.softmax(logits, axis=-1), np.float64)
  probs /= probs.sum(axis=-1, keepdims=True)
  values = np.take_along_axis(probs, texts[..., None], 2)[..., 0].prod(axis=1)
  return values.reshape((size,) * count)


def p_value_of_model(model, prompt, tokens):
  """How texts `[B, P + L]` that begin with a prompt fit a model."""
  texts = tokens[:, len(prompt):]
  return exactness.p_value(
      exactness.count(texts, model.lm.vocab_size),
      joint_of_model(model, np.array(prompt, np.int32), texts.shape[1]))


def found_by(program, *names, devices=8):
  """Returns what a file of Python with these arguments prints last, as JSON."""
  output, errors = start(program, *names, devices=devices).communicate()
  assert output, errors
  return json.loads(output.splitlines()[-1])


def start(*command, devices=1, **environment):
  """Starts Python in the repository: a process whose output is read as text."""
  paths = [REPOSITORY, REPOSITORY / "tests", os.environ.get("PYTHONPATH", "")]
  environment = {
      **os.environ, "JAX_PLATFORMS": "cpu",
      "PYTHONPATH": os.pathsep.join(map(str, paths)),
      "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} "
                   f"--xla_force_host_platform_device_count={devices}",
      **environment}
  return subprocess.Popen(
      [sys.executable, *map(str, command)], env=environment, text=True,
      cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def free_address():
  """Returns a host and port at which nobody listens."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    return f"localhost:{free.getsockname()[1]}"


def of_rows(out, rows):
  """What there is about some rows of a generation."""
  return jax.tree.map(lambda x: np.asarray(x)[rows], out.replace(steps=None))


def check_same(actual, expected, rows=slice(None)):
  """Asserts that a generation is that of some rows, but for their steps."""
  expected = of_rows(expected, rows)
  for name in ("tokens", "lengths"):
    np.testing.assert_array_equal(getattr(actual, name),
                                  getattr(expected, name))
  np.testing.assert_allclose(actual.log_probs, expected.log_probs, atol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
               actual.stats, expected.stats)


def chat_model(folder):
  """Writes a chat template; the tokenizer of a few words that goes with it."""
  (folder / chat_template.FILE).write_text(
      "{% for m in messages %}[{{ m.role }}]{{ m.content + '' }}{% endfor %}"
      "[assistant]")
  return tokenizers.train(["Hi there [user] [system] [assistant]"] * 2, 280)
