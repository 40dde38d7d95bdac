"""Approximately aligned decoding: after an error, back by as much as is fair.

A text is drawn from the model as it is, until a token comes that its grammar
forbids. A mask would go back by that one token, and give what is improbable as
much weight as it can get; ASAp (`grammar_aligned`) would begin anew, and needs
many texts. AprAD (Melcer et al. 2024, arXiv 2410.01103) takes the text for a
draft, of the distribution P that it was drawn from, and the same with the error
known, P', for the target of speculative sampling: what is accepted stays.

With c(x) the bound of `grammar_aligned` on the probability that what begins
with x becomes valid, before and after the error was known, a token is kept with
the probability that c' / c has after it over what it has before it: so the
first i tokens are kept with c'(x_1..i) / c(x_1..i) over c' / c of the empty
text. The residual is what P has without the next token. The result is between
the masked and the aligned distribution: given that it failed, a text is no
sample of P.

Here an error yields all tokens that the grammar forbids at that position, and
all rows share it.
"""

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import grammar_aligned, programs, sampling
from decoding_jax.generate import generate
from decoding_jax.grammars import sparse_automaton
from decoding_jax.grammars.sparse_automaton import SparseAutomaton
from decoding_jax.kernels import random
from decoding_jax.processors import model_wrapper
from decoding_jax.types import Array, LogitsProcessor


class Aprad(NamedTuple):
  """Texts."""
  tokens: np.ndarray  # `[B, P + max_new_tokens]` int32; after a text 0
  lengths: np.ndarray  # `[B]` int32, the prompt included
  valid: np.ndarray  # `[B]` bool, whether some round drew a text
  # `[B]` int32, tokens that were drawn, those given up included
  drawn: np.ndarray


@flax.struct.dataclass
class _Known:
  """Errors so far, as a trie of prefixes; node 0 is the empty one."""
  arcs: SparseAutomaton
  log_bounds: Array  # `[E]` float32, of the beginning after each arc
  masked: Array  # `[Q]` bool, prefixes after which an error occurred
  skip: Array  # `[]` int32, P, tokens of the prompt
  ends: Array  # `[V]` bool, tokens that end a text
  grammar: Any  # parameters of the grammar's processor


def aprad(key, prompt, *, grammar: LogitsProcessor, grammar_params, target,
          target_params, method, eos_id, rows: int, max_new_tokens: int,
          rounds: int = 64, draft=None, draft_params=None) -> Aprad:
  """Draws valid texts, with less bias than under a mask.

  Other arguments and errors as in `asap`.

  Args:
    rows: B, texts; they share the prompt, and what was learned.
    max_new_tokens: N, of each text. A text that is cut counts as valid.
    rounds: the most errors of a row; each round goes on with all rows.
  """
  grammar_aligned.check(grammar, "prompt", rounds=rounds, rows=rows)
  prompt = np.asarray(prompt, np.int32)
  start, end = len(prompt), len(prompt) + max_new_tokens
  ends = np.isin(np.arange(target.vocab_size), np.atleast_1d(eos_id))
  trie, masked = [grammar_aligned.Node()], set()
  texts, drawn = [()] * rows, np.zeros(rows, np.int32)
  open_rows, uniforms = set(range(rows)), np.random.default_rng(
      np.asarray(jax.random.key_data(jax.random.fold_in(key, rounds))))
  for step in range(rounds):
    known = _pack(trie, masked, start, ends, grammar_params,
                  rounds * max_new_tokens)
    lm, params = model_wrapper.apply(_processor(grammar), known, target,
                                     target_params)
    prompts = np.zeros((rows, end), np.int32)
    for row, text in zip(prompts, texts):
      row[:start + len(text)] = (*prompt, *text)
    first, then = jax.random.split(jax.random.fold_in(key, step))
    out = generate(first, prompts, np.array(
        [start + len(text) for text in texts], np.int32), method=method,
                   target=lm, target_params=params, draft=draft,
                   draft_params=draft_params, max_new_tokens=max_new_tokens,
                   eos_id=eos_id)
    tokens = np.maximum(np.asarray(out.tokens)[:, :end], 0)
    scores = _Scores(*map(np.asarray, _score(
        grammar, target, start, target_params, jax.tree.map(jnp.asarray, known),
        jnp.asarray(tokens), random.split(then, rows))))
    errors = []
    for row in sorted(open_rows):
      text, wrong = _until_error(tokens[row, start:], scores.allowed[row], ends)
      drawn[row] += len(text) + wrong - len(texts[row])
      texts[row] = text
      if wrong:
        of_row = _Scores(*(x[row] for x in scores))
        kept = _kept(trie, masked, text, of_row, uniforms.random())
        texts[row] = (*text[:kept], int(of_row.others[kept]))
        errors.append((text, of_row))
      else:
        open_rows.discard(row)
    for text, of_row in errors:
      _learn(trie, masked, text, of_row)
    if not open_rows:
      break
  tokens = np.zeros((rows, end), np.int32)
  for row, text in zip(tokens, texts):
    row[:start + len(text)] = (*prompt, *text)
  valid = ~np.isin(np.arange(rows), sorted(open_rows))
  return Aprad(tokens, np.array([start + len(x) for x in texts], np.int32),
               valid, drawn)


class _Scores(NamedTuple):
  """Scores of texts by the model and the grammar, of shape `[B, N]`."""
  log_probs: Array  # float32, of each token by the model
  log_masses: Array  # float32, of all tokens the grammar allows there
  allowed: Array  # bool, whether it does
  others: Array  # int32, a sample of the residual without that token


def _until_error(tokens, allowed, ends):
  """A text without what the grammar forbids, and whether there is that."""
  for i, (token, fits) in enumerate(zip(tokens.tolist(), allowed)):
    if not fits:
      return tuple(tokens[:i].tolist()), True
    if ends[token]:
      return tuple(tokens[:i + 1].tolist()), False
  return tuple(tokens.tolist()), False


def _kept(trie, masked, text, scores, uniform):
  """Returns how many tokens of a text that ended in an error are kept."""
  node, bounds = 0, []
  for token in (*text, None):
    bounds.append(1.0 if node is None else trie[node].bound)
    last = node
    node = None if node is None else trie[node].children.get(token,
                                                             (0, None))[1]
  # Drawn before another row met that error: its loss is counted already.
  if last in masked:
    return len(text)
  # Less than before by what is forbidden at the error.
  drop = 1 - float(np.exp(scores.log_masses[len(text)]))
  ratios = []
  for bound, log_prob in zip(reversed(bounds), (*scores.log_probs[:len(text)][
      ::-1].tolist(), 0.0)):
    ratios.append(max(1 - drop / bound, 0))
    drop *= float(np.exp(log_prob))
  ratios.reverse()
  return max(i for i, x in enumerate(ratios)
             if i == 0 or uniform * ratios[0] < x)


def _learn(trie, masked, text, scores):
  """Adds what is forbidden after a text, and lowers bounds."""
  path = grammar_aligned.insert(trie, text, scores.log_probs)
  masked.add(path[-1])
  trie[path[-1]].mass = float(np.exp(scores.log_masses[len(text)]))
  grammar_aligned.lower(trie, path)


def _pack(trie, masked, skip, ends, grammar_params, size) -> _Known:
  """Returns what is known as arrays, of few shapes."""
  size = max(size, 1 << (2 * len(trie)).bit_length())
  arcs, logs = grammar_aligned.pack(trie, size, min(len(ends), size), len(ends))
  return _Known(arcs, logs, np.isin(np.arange(size + 1), sorted(masked)),
                np.int32(skip), ends, grammar_params)


@functools.lru_cache(maxsize=None)
def _processor(grammar) -> LogitsProcessor:
  """Returns what lets errors happen that are not known, and ends after them."""
  def init(params):
    return (jnp.int32(0), grammar.init(params.grammar), jnp.int32(0),
            jnp.bool_(False))

  def advance(params, states, token):
    count, inner, node, ended = states
    fits = grammar.process(params.grammar, inner, jnp.zeros(
        params.ends.shape, jnp.float32))[token] > -jnp.inf
    now = (count + 1, grammar.advance(params.grammar, inner, token),
           sparse_automaton.advance(params.arcs, node, token),
           ended | ~fits | params.ends[token])
    return jax.tree.map(
        lambda new, old: jnp.where(count < params.skip, old, new), now,
        (count + 1, inner, node, ended))

  def process(params, states, logits):
    _, inner, node, ended = states
    logits = _expected(grammar, params, inner, node, logits)
    return jnp.where(ended & ~params.ends, -jnp.inf, logits)

  return LogitsProcessor(init, advance, process, reads_prompt=True)


def _expected(grammar, params: _Known, inner, node, logits, mask=False):
  """Logits with the bounds that are known, under a mask where it is."""
  logits = jnp.where(mask | (node >= 0) & params.masked[node],
                     grammar.process(params.grammar, inner, logits), logits)
  return grammar_aligned.add_bounds(params.arcs, params.log_bounds, node,
                                    logits)


@functools.partial(programs.jit, static_argnums=(0, 1, 2))
def _score(grammar, lm, start, params, known: _Known, tokens, keys) -> _Scores:
  """Scores texts `[B, P + N]` by the model, and by what is known of them."""
  logs = grammar_aligned.text_log_probs(lm, params, tokens)[:, start - 1:-1]

  def of_row(key, text, logs):
    def step(states, x):
      inner, node = states
      key, token, row = x
      allowed = grammar.process(known.grammar, inner, row)
      fits = allowed[token] > -jnp.inf
      rest = _expected(grammar, known, inner, node, row, ~fits)
      states = (grammar.advance(known.grammar, inner, token),
                sparse_automaton.advance(known.arcs, node, token))
      return states, _Scores(
          row[token], jax.nn.logsumexp(allowed), fits,
          sampling.draw(key, rest.at[token].set(-jnp.inf)))

    begin = grammar.init(known.grammar), jnp.int32(0)
    return jax.lax.scan(step, begin, (random.split(key, len(text)), text,
                                      logs))[1]

  return jax.vmap(of_row)(keys, tokens[:, start:], logs)
