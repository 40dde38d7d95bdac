"""The beginning that prompts have in common, which caches keep once."""

from absl import flags
import numpy as np

from experiments.devices import mesh_shapes

_SHARE = flags.DEFINE_bool(
    "share_prefix", True, "Keep keys and values of a beginning that prompts "
    "have in common, such as examples or instructions, once for all rows.")
# More than any prompt has.
_ALL = 2**30
# Fewer tokens would hardly save anything.
_LEAST = 32
# A number is rounded down to a multiple of this part of its power of two: each
# is a program of its own.
_PART = 8


def apply(pair, prompts=None):
  """Returns the pair, with the prefix of all `prompts` that batches share, so
  that none needs a program of its own; None: each batch shares what it can.
  """
  return pair._replace(share=_ALL if prompts is None else of_texts(
      prompts)) if _SHARE.value else pair


def length(prompts, lengths) -> int:
  """Returns how many first tokens `[B, P]` share, < `lengths`; 0 if few."""
  prompts, most = np.asarray(prompts), int(np.min(lengths)) - 1
  if len(prompts) < 2:
    return 0
  same = (prompts[:, :most] == prompts[:1, :most]).all(axis=0)
  return _rounded(most if same.all() else int(np.argmin(same)))


def of_texts(prompts) -> int:
  """Returns the same of a list of the tokens of each prompt."""
  first, last = min(map(tuple, prompts)), max(map(tuple, prompts))
  width = min(map(len, prompts))
  return length(np.array([first[:width], last[:width]], np.int32),
                [width, width]) if len(prompts) > 1 else 0


def of_batch(pair, prompts, lengths, rows=None) -> int:
  """Returns how many tokens of a batch caches keep once; 0 if they cannot."""
  together = min(rows or len(prompts), len(prompts))
  if not pair.share or not pair.target.reads_shared or getattr(
      pair.draft, "target_view", None) or (
      together < 2 * mesh_shapes.multiple(pair.mesh)):
    return 0
  return min(pair.share, length(prompts, lengths))


def _rounded(count) -> int:
  """Returns 0, 32, 64, ..., 256, 288, ..., 512, 576, ..., 1024, 1152, ..."""
  step = max(_LEAST, 2**count.bit_length() // 2 // _PART)
  return count // step * step
