"""The flags `--show_tree` and `--tree_svg`: drafts of each step."""

import pathlib

from absl import flags

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import model_pair

_SHOW = flags.DEFINE_bool(
    "show_tree", False, "Print the tree of each step, with the probabilities "
    "of draft and target; * marks the drafts that are accepted, + the token "
    "after them. On one device, for methods that draft trees or chains.")
_SVG = flags.DEFINE_string(
    "tree_svg", "", "File such as trees.svg, for the same as an image; '' for "
    "none.")


def is_enabled() -> bool:
  """Tells whether trees are to be shown."""
  return _SHOW.value or bool(_SVG.value)


def check(methods, sampling, streams: bool):
  """Checks that trees can be shown, if the flags ask for it.

  Args:
    methods: list of `dj.Method`.
    sampling: a `dj.Sampling`.
    streams: whether the text is to be printed while it grows.

  Raises:
    UserError: naming a method that has no tree, or flags that exclude each
      other.
  """
  if not is_enabled():
    return
  flag = "--show_tree" if _SHOW.value else "--tree_svg"
  if streams:
    raise launch.UserError(f"{flag} and --stream: either trees or the text is "
                           "shown while it grows.")
  for method in methods:
    kind = method.sampled if sampling.temperature else method.greedy
    if not isinstance(kind, dj.Pair):
      raise launch.UserError(f"{flag}: method {method.name} drafts no tree.")
  if _SVG.value and not pathlib.Path(_SVG.value).absolute().parent.is_dir():
    raise launch.UserError(f"--tree_svg={_SVG.value}: there is no such folder.")


def show(pair, keys, prompts, lengths, **arguments):
  """Decodes step by step, and shows the tree of each.

  Args:
    pair: a `model_pair.ModelPair`, on one device.
    keys: `[1]` random keys.
    prompts: `[1, P]` int32.
    lengths: `[1]` int32.
    **arguments: further ones of `dj.begin`, `method` among them.

  Returns:
    The `dj.Generation`, and a phrase about its steps.

  Raises:
    UserError: for a mesh, logits that are NaN, or a file that cannot be
      written.
  """
  if pair.mesh is not None:
    raise launch.UserError("--show_tree and --mesh: trees are shown on one "
                           "device.")
  pair = model_pair.for_method(pair, arguments["method"])
  run = dj.begin(keys, prompts, lengths, target=pair.target,
                 target_params=pair.target_params, draft=pair.draft,
                 draft_params=pair.draft_params, **arguments)
  words = lambda token: pair.tokenizer.decode([token],
                                              skip_special_tokens=False)
  infos = []
  while not run.done.all():
    run, info = dj.step(run, log_probs=True)
    infos.append(info)
    if _SHOW.value:
      accepted, count = info.verdict.num_accepted[0], info.count[0]
      print(f"step {len(infos)}: {accepted} drafts accepted, {count} tokens "
            "committed")
      print(dj.drawing.text(info, words), flush=True)
  out = dj.result(run)
  model_pair.check_logits(out)
  if _SVG.value:
    image = dj.drawing.svg(infos, words)
    with launch.user_errors(OSError):
      pathlib.Path(_SVG.value).write_text(image, "utf-8")
  return out, f"{len(infos)} steps"
