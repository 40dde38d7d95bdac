"""The flag for a beginning that prompts have in common."""

from absl import flags

from experiments.devices import shared_prefix

_SHARE = flags.DEFINE_bool(
    "share_prefix", True, "Keep keys and values of a beginning that prompts "
    "have in common, such as examples or instructions, once for all rows.")
# More than any prompt has.
_ALL = 2**30


def apply(pair, prompts=None):
  """Returns the pair, with the prefix of all `prompts` that batches share, so
  that none needs a program of its own; None: each batch shares what it can.
  """
  if not _SHARE.value:
    return pair
  return pair._replace(share=_ALL if prompts is None
                       else shared_prefix.of_texts(prompts))
