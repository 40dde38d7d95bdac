"""Grammar-aligned decoding: samples of a model, given that a text is valid.

A mask forbids tokens one by one. What is sampled then is p(x) times, at each
token, one over the probability of the tokens that were allowed: not p(x) given
that x is valid, in which a token also counts for how probable it is that the
text can be finished after it. ASAp (Park et al. 2024, arXiv 2405.21047,
algorithm 1) samples again and again. It keeps an upper bound of the probability
that a text which begins so is valid, 1 at first, and the mass of tokens which
are allowed once a beginning was seen, less what was lost after it. The bounds
only fall, and with them the samples approach the conditional distribution.
"""

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import programs
from decoding_jax.generate import generate
from decoding_jax.grammars import sparse_automaton
from decoding_jax.grammars.sparse_automaton import SparseAutomaton
from decoding_jax.processors import model_wrapper
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Array, LogitsProcessor, NONE
from decoding_jax.validation import values

# Bounds are never smaller, so that no token that may come is forbidden.
_LEAST = 1e-30


class Asap(NamedTuple):
  """Samples of all rounds."""
  tokens: np.ndarray  # `[R, B, P + max_new_tokens]` int32, as in `Generation`
  lengths: np.ndarray  # `[R, B]` int32
  # `[R]` float64, upper bounds of the probability that a text of the model is
  # valid, after each round
  validity: np.ndarray


@flax.struct.dataclass
class _Bounds:
  """Bounds of the beginnings that were seen: a trie."""
  arcs: SparseAutomaton
  log_bounds: Array  # `[E]` float32, of the beginning after each arc
  grammar: Any  # parameters of the grammar's processor


def asap(key, prompt, *, grammar: LogitsProcessor, grammar_params, target,
         target_params, method, eos_id, rounds: int, rows: int,
         max_new_tokens: int, draft=None, draft_params=None) -> Asap:
  """Draws texts that approach the model's distribution of valid texts.

  Args:
    key: a random key.
    prompt: `[P]` int32.
    grammar: `dj.processors.automaton()` or `dj.processors.host_grammar()`.
    grammar_params: its parameters.
    target: the model; its distribution at temperature 1 counts.
    target_params: its parameters.
    method: any `dj.Method` that samples.
    eos_id: the token that ends a text, or several such tokens.
    rounds: R, each with a further forward over its texts.
    rows: B, texts of a round; they share the prompt, and what was learned.
    max_new_tokens: of each text. A text that is cut counts as valid.
    draft: a drafter that may draft anything, or None.
    draft_params: its parameters.

  Returns:
    The texts of all rounds, of which the last is the closest.

  Raises:
    ValueError: for numbers that are not positive, a grammar that reads prompts,
      and as `generate`.
  """
  check(grammar, "prompt", rounds=rounds, rows=rows)
  prompt = np.asarray(prompt, np.int32)
  ends = frozenset(np.atleast_1d(eos_id).tolist())
  trie = [Node()]
  texts, validity = [], []
  for step in range(rounds):
    size = rounds * rows * max_new_tokens + 1
    bounds = _Bounds(*pack(trie, size, min(target.vocab_size, rounds * rows),
                           target.vocab_size), grammar_params)
    lm, params = model_wrapper.apply(_processor(grammar), bounds, target,
                                     target_params)
    out = generate(
        jax.random.fold_in(key, step), np.tile(prompt, (rows, 1)),
        np.full(rows, len(prompt), np.int32), method=method, target=lm,
        target_params=params, draft=draft, draft_params=draft_params,
        max_new_tokens=max_new_tokens, eos_id=eos_id)
    log_probs, log_masses = _score(
        grammar, target, len(prompt), target_params,
        jax.tree.map(jnp.asarray, grammar_params),
        jnp.maximum(out.tokens, 0))
    tokens, lengths = np.asarray(out.tokens), np.asarray(out.lengths)
    for row, length, *logs in zip(tokens, lengths, np.asarray(log_probs),
                                  np.asarray(log_masses)):
      learn(trie, row[len(prompt):length].tolist(), *logs, ends)
    texts.append((tokens, lengths))
    validity.append(trie[0].bound)
  return Asap(*map(np.stack, zip(*texts)), np.array(validity))


def check(grammar: LogitsProcessor, before: str, **counts):
  """Raises ValueError for counts below 1, a grammar that reads prompts."""
  values.check_positives(**counts)
  if grammar.reads_prompt:
    raise ValueError(f"grammar reads prompts: one that begins after the "
                     f"{before} is needed.")


class Node:
  """A beginning of a text."""
  __slots__ = ("bound", "mass", "children")

  def __init__(self):
    # `bound`: of the probability that a text which begins so is valid.
    # `mass`: of the tokens allowed next; 1 if none was seen yet.
    # `children`: token -> (its probability, number of the beginning with it).
    self.bound, self.mass, self.children = 1.0, 1.0, {}


def learn(trie, text, log_probs, log_masses, ends):
  """Adds a text to a trie, and lowers the bounds of its beginnings."""
  end = next((i for i, token in enumerate(text) if token in ends), len(text))
  # Masses are of all tokens that are allowed at each position.
  *path, _ = insert(trie, text[:end + 1], log_probs)
  for node, log_mass in zip(path, log_masses.tolist()):
    trie[node].mass = float(np.exp(log_mass))
  lower(trie, path)


def insert(trie, text, log_probs) -> list[int]:
  """Adds a text's beginnings to a trie; returns them, the empty one first."""
  path = [0]
  for token, log_prob in zip(text, log_probs.tolist()):
    children = trie[path[-1]].children
    if token not in children:
      children[token] = float(np.exp(log_prob)), len(trie)
      trie.append(Node())
    path.append(children[token][1])
  return path


def lower(trie, path):
  """Brings bounds down to what mass and the beginnings below them leave."""
  for node in (trie[i] for i in reversed(path)):
    lost = sum(prob * (1 - trie[child].bound)
               for prob, child in node.children.values())
    node.bound = max(node.mass - lost, _LEAST)


def pack(trie, size, children, vocab_size):
  """Returns a trie as arcs and log-bounds, padded to E = `size`."""
  arcs = sparse_automaton.from_arcs(
      [{token: child for token, (_, child) in x.children.items()}
       for x in trie], vocab_size)
  logs = np.log([trie[child].bound for child in arcs.following.tolist()])
  pad = lambda x, count, value: np.pad(x, (0, count - len(x)),
                                       constant_values=value)
  return arcs.replace(
      starts=pad(arcs.starts, size + 1, arcs.starts[-1]),
      tokens=pad(arcs.tokens, size, 0),
      following=pad(arcs.following, size, NONE),
      order=np.arange(children, dtype=np.int32)), pad(
          logs.astype(np.float32), size, 0)


def add_bounds(arcs, log_bounds, node, logits):
  """Adds to logits `[V]` the log-bounds of what may follow a beginning."""
  after, theirs = sparse_automaton.arcs_of(arcs, node)
  return logits.at[jnp.where(theirs, arcs.tokens[after], len(logits))].add(
      log_bounds[after].astype(logits.dtype), mode="drop")


def text_log_probs(lm, params, tokens):
  """Returns a model's log-probabilities `[B, T, V]` after tokens `[B, T]`."""
  logits, _ = cache_lib.whole_pass(lm, params, tokens)
  return jax.nn.log_softmax(logits.astype(jnp.float32))


@functools.lru_cache(maxsize=None)
def _processor(grammar) -> LogitsProcessor:
  """Returns the grammar's processor, with bounds added to its logits."""
  def advance(params, states, token):
    inner, node = states
    return (grammar.advance(params.grammar, inner, token),
            sparse_automaton.advance(params.arcs, node, token))

  def process(params, states, logits):
    inner, node = states
    return add_bounds(params.arcs, params.log_bounds, node,
                      grammar.process(params.grammar, inner, logits))

  return LogitsProcessor(
      init=lambda params: (grammar.init(params.grammar), jnp.int32(0)),
      advance=advance, process=process)


@functools.partial(programs.jit, static_argnums=(0, 1, 2))
def _score(grammar, lm, width, params, grammar_params, tokens):
  """Returns log-probabilities `[B, N]` of tokens, and of all allowed there.
  `tokens [B, P + N]` begin with a prompt of `width` tokens."""
  logs = text_log_probs(lm, params, tokens)[:, width - 1:-1]
  text = tokens[:, width:]
  everywhere = jnp.ones(text.shape, bool)
  chosen = jnp.take_along_axis(logs, text[..., None], axis=-1)[..., 0]
  return chosen, jax.vmap(functools.partial(
      log_masses, grammar, grammar_params))(text, logs, everywhere)


def log_masses(grammar, params, text, logs, ours):
  """Returns `[T]`, log-mass that a grammar allows at each position.

  The grammar reads the tokens that are `ours`; elsewhere it is 0.
  """
  def step(state, x):
    token, row, ours = x
    mass = jax.nn.logsumexp(grammar.process(params, state, row))
    after = grammar.advance(params, state, token)
    return (jax.tree.map(functools.partial(jnp.where, ours), after, state),
            jnp.where(ours, mass, 0))

  return jax.lax.scan(step, grammar.init(params), (text, logs, ours))[1]
