"""Notices about a completion, printed after its statistics."""

import functools

from experiments.app import launch
from models.text import tokenizer_files

_FILE = tokenizer_files.GENERATION


def unfinished(tokens, eos_id, max_new_tokens):
  """Returns a line if a text that was to have a form is not complete.

  Args:
    tokens: of the completion, the end included.
    eos_id: tokens that end a text.
    max_new_tokens: the budget.

  Returns:
    A line; "" if the text has ended.
  """
  if len(tokens) and tokens[-1] in eos_id:
    return ""
  return (f"stopped at --max_new_tokens={max_new_tokens}: the text is not "
          "complete.")


def recommended(target, sampling, penalties):
  """Returns the settings that a target's authors recommend.

  Args:
    target: its folder, or its name.
    sampling: dict from names of flags to the values in use, such as
      temperature; the names are those of `generation_config.json`.
    penalties: the same of flags that greedy decoding reads too.

  Returns:
    A line; "" if they recommend no other values.
  """
  folder = launch.model_folder(target)
  setting = functools.partial(tokenizer_files.setting, folder, _FILE)
  with launch.user_errors(ValueError):
    # Without it transformers decodes greedily and ignores these fields.
    used = {**(sampling if setting("do_sample") else {}), **penalties}
    found = {name: setting(name) for name in used}
  wanted = [f"--{name}={value}" for name, value in found.items()
            if value is not None and value != used[name]]
  if not wanted:
    return ""
  return f"{_FILE} of the target recommends {' '.join(wanted)}."
