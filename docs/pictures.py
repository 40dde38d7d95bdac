"""Draws the pictures of README and docs, from steps of the shipped pair.

    python docs/pictures.py
"""

import html
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from models import checkpoints
from models.text import batching, tokenizers

_FOLDER = pathlib.Path(__file__).parent
_TOKENIZER = tokenizers.load("python-target")
_GREY, _GREEN, _BLUE, _WHITE = "#e8e8e8", "#b7e1b0", "#b5d3f2", "#ffffff"


def words(token):
  return _TOKENIZER.decode([token])


def step(method, seed):
  """Returns the info of the first step of a text."""
  target, target_params = checkpoints.load("python-target")
  draft, draft_params = checkpoints.load("python-draft")
  prompts, lengths = batching.encode(_TOKENIZER, ["def main("])
  run = dj.begin(
      jax.random.key(seed), prompts, lengths, method=method, target=target,
      target_params=target_params, draft=draft, draft_params=draft_params,
      max_new_tokens=16)
  return dj.step(run, log_probs=True)[1]


def write(name, width, height, parts):
  (_FOLDER / f"{name}.svg").write_text(
      f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
      f'width="{width}" font-family="monospace" font-size="11">'
      f'<rect width="100%" height="100%" fill="{_WHITE}"/>{"".join(parts)}'
      "</svg>\n", "utf-8")


def label(x, y, text, **style):
  style = "".join(f' {key.replace("_", "-")}="{value}"'
                  for key, value in style.items())
  return f'<text x="{x}" y="{y}"{style}>{html.escape(text)}</text>'


def box(x, y, width, lines, fill=_WHITE, height=0):
  return (f'<rect x="{x}" y="{y}" width="{width}" rx="5" fill="{fill}" '
          f'height="{height or 8 + 14 * len(lines)}" stroke="#555555"/>'
          + "".join(label(x + 5, y + 15 + 14 * i, line)
                    for i, line in enumerate(lines)))


def arrow(x, y, to_x, to_y):
  return (f'<path d="M{x} {y} L{to_x} {to_y}" stroke="#555555"/>'
          f'<circle cx="{to_x}" cy="{to_y}" r="3" fill="#555555"/>')


def drawn(info, x, y, title):
  """Returns the library's drawing of a tree below a title, moved to x, y."""
  image = dj.drawing.svg(info, words).replace("Step 1", title)
  return image.replace("<svg", f'<svg x="{x}" y="{y}"', 1)


def draw_step():
  info = step(dj.methods.rsd_s(3, 3), 22)
  captions = (("1 draft", "a tree of tokens;", "d: the draft's", "probability"),
              ("2 one target call", "scores every node;", "t: the target's",
               "probability"),
              ("3 accept", "a rejection rule", "accepts a path", "(green)"),
              ("4 commit", "the path, and one", "more token that the",
               "target draws (blue)"))
  write("step", 680, 328, [
      *(box(4 + 172 * i, 4, 148, lines, _GREY)
        for i, lines in enumerate(captions)),
      *(arrow(152 + 172 * i, 36, 173 + 172 * i, 36) for i in range(3)),
      drawn(info, 0, 78, "rsd_s(3, 3)")])


def draw_mask():
  info = step(dj.methods.rsd_s(2, 3), 2)
  parents = np.asarray(info.tree.parents[0]).tolist()
  tokens = [repr(words(x)) for x in np.asarray(info.tree.tokens[0]).tolist()]
  parts = [drawn(info.replace(count=jnp.zeros_like(info.count)), 0, 0,
                 "The tree").replace(": 0 committed", "", 1)]
  left, top, size = 760, 40, 18
  parts.append(label(664, 17, "Its ancestor mask", font_weight="bold"))
  for i, token in enumerate(tokens):
    parts.append(label(664, top + size * i + 13, token[:15]))
    ancestors, node = {i}, i
    while node:
      node = parents[node]
      ancestors.add(node)
    parts += [f'<rect x="{left + size * j}" y="{top + size * i}" '
              f'width="{size}" height="{size}" stroke="#555555" '
              f'fill="{_BLUE if j in ancestors else _WHITE}"/>'
              for j in range(len(tokens))]
  write("mask", 890, 170, parts)


def draw_rules():
  parts = []
  for i, rule in enumerate(("recursive", "traversal", "layer")):
    parts.append(drawn(step(dj.methods.rsd_c((2, 1, 1), rule), 53), 0, 162 * i,
                       rule))
  write("rules", 828, 486, parts)


def draw_roles():
  parts = [label(4, 30, "draft devices"), label(4, 100, "target devices")]
  for i in range(4):
    x = 120 + 180 * i
    parts.append(box(x, 10, 150, [f"draft chains {i + 1}", "for every outcome"],
                     _GREEN))
    if i:
      parts += [box(x, 80, 150, [f"verify chain {i}", "in one target call"],
                    _BLUE), arrow(x - 30, 46, x, 77)]
    if i > 1:
      parts.append(arrow(x - 30, 80, x, 49))
  write("roles", 820, 146, parts + [
      label(120, 138, "Down: a chain. Up: its outcome, the accepted tokens and "
            "the one after them.")])


def draw_mesh():
  parts = [label(4, 20, "--mesh=data:2,model:4", font_weight="bold")]
  for row in range(2):
    y = 36 + 76 * row
    parts.append(label(4, y + 36, f"rows {8 * row} to {8 * row + 7}"))
    parts += [box(110 + 162 * i, y, 152, [
        f"device {4 * row + i}", f"heads, units: {i + 1} of 4",
        f"KV cache: {i + 1} of 4", f"vocabulary: {i + 1} of 4"],
                  (_GREEN, _BLUE)[row]) for i in range(4)]
  write("mesh", 760, 220, parts + [
      label(110, 194, "Devices of a row exchange sums after each layer, and "
            "the largest tokens of each shard."),
      label(110, 210, "The two rows of devices exchange nothing.")])


if __name__ == "__main__":
  for draw in (draw_step, draw_mask, draw_rules, draw_roles, draw_mesh):
    draw()
