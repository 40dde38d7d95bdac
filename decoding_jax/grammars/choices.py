"""Tries of texts, of which a completion is one: labels, names, a catalogue."""

from collections.abc import Callable, Sequence

from decoding_jax import token_text
from decoding_jax.grammars import sparse_automaton, token_automaton
from decoding_jax.grammars.sparse_automaton import SparseAutomaton
from decoding_jax.validation import values


def choice(texts: Sequence[str], pieces: Sequence[bytes], eos_id,
           encode: Callable[[str], Sequence[int]] | None = None
           ) -> SparseAutomaton:
  """Returns the automaton that allows some texts.

  With `encode` there is one sequence of tokens for each text, so that the
  probability of a sequence is the item's, and beams are items. Without
  it, a text may be spelled in any way that the vocabulary has.

  Args:
    texts: none of them empty; the end may come after one that others go on
      from. The name of a special token in them means that token, which must not
      be one that ends texts.
    pieces: the bytes of V tokens, from `tokenizers.pieces`.
    eos_id: the token that ends a text, or several such tokens.
    encode: text -> its tokens, as in `lambda text: tokenizer.encode(text,
      add_special_tokens=False).ids`; None for all spellings.

  Returns:
    The parameters of `automaton()`.

  Raises:
    ValueError: without texts, for an empty one, for one that the vocabulary
      cannot spell or that names a token which ends texts, or if there is no
      `eos_id`.
  """
  name = f"texts={values.shortened(texts)}"
  _check(name, texts, str)
  token_automaton.check_pieces(pieces)
  ends = token_automaton.end_tokens(eos_id, len(pieces))
  if encode is not None:
    return token_choice([list(encode(text)) for text in texts], len(pieces),
                        eos_id)
  for text in texts:
    values.utf8(name, text)
  names = token_text.special(pieces)
  words = [token_text.symbols(text, names) for text in texts]
  for end in set(ends).intersection(
      x - token_text.NUM_BYTES for word in words for x in word):
    raise ValueError(f"{name}: {pieces[end].name} is a token that ends texts: "
                     "leave it out, it comes after each of them.")
  children, finals = _trie(words)
  arcs = _spellings(children, pieces, ends)
  # Numbers rise along a path: the last ones are decided first.
  live = [False] * len(arcs)
  for state in reversed(range(len(arcs))):
    arcs[state] = {x: to for x, to in arcs[state].items() if live[to]}
    live[state] = state in finals or bool(arcs[state])
  if not live[0]:
    raise ValueError(f"{name}: the vocabulary cannot spell any of them.")
  return _ended(arcs, finals, ends, len(pieces))


def token_choice(sequences: Sequence[Sequence[int]], vocab_size: int,
                 eos_id) -> SparseAutomaton:
  """Returns the automaton that allows some sequences of tokens.

  Args:
    sequences: such as semantic identifiers of items, none of them empty.
    vocab_size: V.
    eos_id: the token that ends a sequence, or several such tokens.

  Returns:
    The parameters of `automaton()`.

  Raises:
    ValueError: without sequences, for an empty one or a token that is not in
      the vocabulary or ends texts, or if there is no `eos_id`.
  """
  name = f"sequences={values.shortened(sequences)}"
  _check(name, sequences, (list, tuple))
  ends = token_automaton.end_tokens(eos_id, vocab_size)
  for token in {int(x) for sequence in sequences for x in sequence}:
    if not 0 <= token < vocab_size or token in ends:
      raise ValueError(f"{name}: it has token {token}: 0 to {vocab_size - 1} "
                       f"but for those that end texts, {list(ends)}, are "
                       "allowed.")
  children, finals = _trie(sequences)
  return _ended(children, finals, ends, vocab_size)


def _check(name, items, types):
  if isinstance(items, (str, bytes)) or not len(items) or not all(
      isinstance(x, types) and len(x) for x in items):
    raise ValueError(f"{name}: a list of at least one is needed, none of them "
                     "empty.")


def _trie(sequences):
  """Returns the children of each prefix, and the prefixes that are whole."""
  children, finals = [{}], set()
  for sequence in sequences:
    node = 0
    for x in sequence:
      child = children[node].setdefault(int(x), len(children))
      if child == len(children):
        children.append({})
      node = child
    finals.add(node)
  return children, finals


def _spellings(children, pieces, ends):
  """Returns the arcs of a trie of symbols by tokens: of each node, a dict."""
  tokens, wholes = [{}], [[]]
  for token, piece in enumerate(pieces):
    if piece and token not in ends:
      node = 0
      for byte in piece:
        child = tokens[node].setdefault(byte, len(tokens))
        if child == len(tokens):
          tokens.append({})
          wholes.append([])
        node = child
      wholes[node].append(token)
  arcs = []
  for start in range(len(children)):
    moves, waiting = {}, [(start, 0)]
    for prefix, node in waiting:
      moves.update(dict.fromkeys(wholes[node], prefix))
      waiting += [(to, tokens[node][byte])
                  for byte, to in children[prefix].items()
                  if byte in tokens[node]]
    moves.update((x - token_text.NUM_BYTES, to)
                 for x, to in children[start].items()
                 if x >= token_text.NUM_BYTES)
    arcs.append(moves)
  return arcs


def _ended(arcs, finals, ends, vocab_size):
  """Returns the automaton with a last state, in which a text is over."""
  over = len(arcs)
  last = dict.fromkeys(ends, over)
  return sparse_automaton.from_arcs(
      [{**x, **(last if state in finals else {})}
       for state, x in enumerate(arcs)] + [last], vocab_size)
