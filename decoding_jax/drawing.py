"""Trees of a step as text and as SVG: what was drafted, what was accepted.

    run, info = dj.step(run, log_probs=True)
    words = lambda token: tokenizer.decode([token])
    print(drawing.text(info, words))
    drawing.svg(info, words)                    # which a notebook shows
"""

from collections.abc import Callable, Sequence
import html
from typing import NamedTuple, Optional

import numpy as np

from decoding_jax.loop import Info
from decoding_jax.types import NONE

# Of a node in an SVG, in pixels.
_WIDTH, _HEIGHT, _GAP, _BETWEEN, _TITLE = 128, 34, 10, 44, 26
_FILLS = {"root": "#e8e8e8", "accepted": "#b7e1b0", "extra": "#b5d3f2",
          "rejected": "#ffffff"}
_MARKS = {"root": " ", "accepted": "*", "extra": "+", "rejected": " "}


class Svg(str):
  """An image as text, which a notebook shows."""

  def _repr_svg_(self):
    return str(self)


class Node(NamedTuple):
  """A token of a tree."""
  token: int  # Its number in the vocabulary
  parent: int  # Index of its parent among the nodes; `NONE` for the root
  depth: int  # 0 for the root
  # "root"; "accepted" or "rejected" drafts; or "extra", the token after the
  # accepted path. Drafts that come after the end of the text count as rejected.
  kind: str
  # Its probability after its parent by the drafter; None if unknown
  draft: Optional[float]
  target: Optional[float]  # Its probability by the target, warped


def nodes(info: Info, row: int = 0) -> list[Node]:
  """Returns the nodes of a tree, each followed by what is below it.

  Args:
    info: of `dj.step`, with log-probabilities or without.
    row: of the batch.

  Returns:
    Nodes that are valid, and the token after the accepted path.

  Raises:
    ValueError: if there is no tree, or no such row.
  """
  if info.tree is None:
    raise ValueError("info.tree=None: the method drafts no tree that could be "
                     "drawn.")
  if not 0 <= row < len(info.count):
    raise ValueError(f"row={row}: 0 to {len(info.count) - 1} is needed.")
  tokens, parents, valid = (np.asarray(x[row]) for x in (
      info.tree.tokens, info.tree.parents, info.tree.valid))
  drafted, scored = (None if x is None else np.asarray(x[row])
                     for x in (info.tree.log_probs, info.log_probs))
  count, accepted = int(info.count[row]), int(info.verdict.num_accepted[row])
  path = np.asarray(info.verdict.path[row]).tolist()
  kept, drawn = path[1:1 + min(accepted, count)], []

  def add(i, token, parent, status, above):
    depth = drawn[parent].depth + 1 if drawn else 0
    drawn.append(Node(int(token), parent, depth, status, *(
        _probability(x, above, token) for x in (drafted, scored))))
    here = len(drawn) - 1
    if i == path[accepted] and accepted < count:
      # Not drafted here: the drafter's probability says nothing.
      add(None, info.verdict.token[row], here, "extra", i)
      drawn[-1] = drawn[-1]._replace(draft=None)
    below = valid & (parents == i) if i is not None else ()
    for child in np.flatnonzero(below):
      add(child, tokens[child], here,
          "accepted" if child in kept else "rejected", i)

  add(0, tokens[0], NONE, "root", None)
  return drawn


def _probability(log_probs, node, token):
  """Returns a token's probability after a node; None if unknown."""
  if log_probs is None or node is None or node >= len(log_probs):
    return None
  return float(np.exp(log_probs[node, int(token)]))


def text(info: Info, words: Callable[[int], str], row: int = 0) -> str:
  """Draws a tree as lines, a node each, indented by depth.

  Args:
    info: of `dj.step`.
    words: the text of a token.
    row: of the batch.

  Returns:
    Lines. `*` marks a draft that was accepted, `+` the token after the path.

  Raises:
    ValueError: as `nodes` does.
  """
  rows = nodes(info, row)
  labels = [f"{_MARKS[x.kind]} {'  ' * x.depth}{words(x.token)!r}"
            for x in rows]
  width = max(map(len, labels))
  return "\n".join(f"{label:{width}}  {_numbers(x)}".rstrip()
                   for label, x in zip(labels, rows))


def _numbers(node: Node) -> str:
  return "  ".join(f"{name} {value:.3f}" if value is not None else " " * (
      len(name) + 6) for name, value in (("draft", node.draft),
                                         ("target", node.target)))


def svg(infos: Info | Sequence[Info], words: Callable[[int], str],
        row: int = 0) -> Svg:
  """Draws the trees of one or several steps, from left to right.

  Args:
    infos: of `dj.step`; steps stand one below the other.
    words: the text of a token.
    row: of the batch.

  Returns:
    The image: accepted drafts are green, the tokens after them blue.

  Raises:
    ValueError: as `nodes` does.
  """
  infos = [infos] if isinstance(infos, Info) else infos
  parts, top, right = [], 0, _WIDTH
  for number, info in enumerate(infos, 1):
    drawn = nodes(info, row)
    parts.append(f'<text x="4" y="{top + 17}" font-weight="bold">Step {number}:'
                 f' {int(info.count[row])} committed</text>')
    shapes, bottom = _shapes(drawn, words, top + _TITLE)
    parts += shapes
    top = bottom + _GAP
    right = max(right, *(_left(x) + _WIDTH for x in drawn))
  return Svg(
      f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 4}" '
      f'height="{top}" font-family="monospace" font-size="11">'
      f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(parts)}'
      '</svg>\n')


def _left(node):
  return 4 + node.depth * (_WIDTH + _BETWEEN)


def _shapes(drawn, words, top):
  """Returns lines and boxes of a tree, and where it ends."""
  middles, bottom = [0.0] * len(drawn), top
  # Leaves one below the other, and a parent in the middle of its children.
  for i in reversed(range(len(drawn))):
    below = [middles[j] for j, x in enumerate(drawn) if x.parent == i]
    middles[i] = (min(below) + max(below)) / 2 if below else bottom + (
        _HEIGHT / 2)
    bottom += 0 if below else _HEIGHT + _GAP
  # The first of all is at the top, though it was placed last.
  middles = [top + bottom - _GAP - middle for middle in middles]
  lines, boxes = [], []
  for node, middle in zip(drawn, middles):
    if node.parent != NONE:
      lines.append(_line(_left(drawn[node.parent]) + _WIDTH,
                         middles[node.parent], _left(node), middle,
                         node.kind != "rejected"))
    boxes.append(_box(node, words(node.token), middle))
  return lines + boxes, bottom


def _line(x, y, to_x, to_y, thick):
  return (f'<path d="M{x} {y:.0f} L{to_x} {to_y:.0f}" stroke="#555555" '
          f'stroke-width="{2.5 if thick else 0.8}"/>')


def _box(node, word, middle):
  x, y = _left(node), middle - _HEIGHT / 2
  word = repr(word) if len(repr(word)) <= 17 else f"{repr(word)[:15]}.."
  lines = [word, "  ".join(
      f"{name} {value:.3f}" for name, value in (("d", node.draft),
                                                ("t", node.target))
      if value is not None)]
  return (f'<rect x="{x}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" '
          f'rx="5" fill="{_FILLS[node.kind]}" stroke="#555555"/>' + "".join(
              f'<text x="{x + 5}" y="{y + 14 + 14 * i:.0f}" '
              f'xml:space="preserve">{html.escape(line)}</text>'
              for i, line in enumerate(lines)))
