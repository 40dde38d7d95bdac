"""Trees as text and as images, by hand."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import decoding_jax as dj

# Node 4 is not valid; tokens are letters, of which the drafter knows 8.
TOKENS, PARENTS = [0, 1, 2, 3, 7, 4], [-1, 0, 0, 1, 1, 2]
DRAFTED = np.log(np.full((1, 3, 8), 1 / 8, np.float32))
LINES = """\
  'a'
*   'b'    draft 0.125  target 0.250
*     'd'  draft 0.125  target 0.250
+       'f'             target 0.250
    'c'    draft 0.125  target 0.250
      'e'  draft 0.125  target 0.250"""


def words(token):
  return "abcdefgh"[token]


def info(accepted=2, count=3, scored=True):
  valid = np.array([[True] * 4 + [False, True]])
  tree = dj.DraftTree(*(np.array([x]) for x in (TOKENS, PARENTS)), valid,
                      mask=None, log_probs=DRAFTED)
  path = np.array([[0, *[1, 3][:accepted], *[[0, 1, 3][accepted]] * (
      2 - accepted)]])
  verdict = dj.Verdict(path, np.array([accepted]), np.array([5]), None, None)
  return dj.Info(tree, verdict, None, np.array([count]), np.log(np.full(
      (1, 6, 8), 1 / 4, np.float32)) if scored else None)


def marks(result):
  return [line[0] for line in dj.drawing.text(result, words).splitlines()]


def test_lines():
  lines = dj.drawing.text(info(), words).splitlines()
  assert [line.split() for line in lines] == [
      line.split() for line in LINES.splitlines()]
  # Indented by depth; numbers stand one below the other.
  assert [line.index("'") for line in lines] == [2, 4, 6, 8, 4, 6]
  assert len({line.index("target") for line in lines[1:]}) == 1


def test_what_is_accepted():
  assert marks(info()) == [*" **+  "]
  assert marks(info(accepted=0, count=1)) == [*" +    "]
  assert marks(info(accepted=2, count=1)) == [*" *   "]
  assert marks(info(accepted=2, count=0)) == [*"     "]


def test_probabilities_that_are_not_known():
  text = dj.drawing.text(info(scored=False), words)
  assert "target" not in text and text.count("draft 0.125") == 4


def test_image():
  image = dj.drawing.svg([info(), info(accepted=0, count=1)],
                         lambda token: "<&>" if token else "long" * 9)
  root = ElementTree.fromstring(image)
  tags = [x.tag.split("}")[1] for x in root]
  # A background; six boxes of each step, and a line to all but its root.
  assert tags.count("rect") == 1 + 2 * 6 and tags.count("path") == 2 * 5
  texts = [x.text for x in root if x.text]
  assert texts.count("'<&>'") == 10 and texts.count("'longlonglonglo..") == 2
  assert "d 0.125  t 0.250" in texts and "Step 2: 1 committed" in texts
  assert image._repr_svg_() == image
  for box in root.iter("{http://www.w3.org/2000/svg}rect"):
    if box.get("x"):
      for at, size in (("x", "width"), ("y", "height")):
        end = float(box.get(at)) + float(box.get(size))
        assert 0 <= float(box.get(at)) and end <= float(root.get(size))


def test_what_cannot_be_drawn():
  with pytest.raises(ValueError, match="info.tree=None: the method drafts no"):
    dj.drawing.text(info().replace(tree=None), words)
  with pytest.raises(ValueError, match="row=1: 0 to 0 is needed"):
    dj.drawing.svg(info(), words, row=1)
