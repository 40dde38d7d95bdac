"""What is to be remarked of a completion, beside its statistics."""

from experiments.app import launch
from models.text import tokenizer_files

_FILE = tokenizer_files.GENERATION


def unfinished(tokens, eos_id, max_new_tokens):
  """What is to be said of a text that was to have a form.

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


def recommended(target, used):
  """What the authors of a target say of its sampling, if it is not used.

  Args:
    target: its folder, or its name.
    used: dict from names of flags to values, such as temperature; the file
      calls them the same.

  Returns:
    A line; "" if they recommend nothing else.
  """
  folder = launch.model_folder(target)
  # Else the rest is not meant, and transformers decodes greedily.
  if tokenizer_files.setting(folder, _FILE, "do_sample") is not True:
    return ""
  found = {name: tokenizer_files.setting(folder, _FILE, name) for name in used}
  wanted = [f"--{name}={value}" for name, value in found.items()
            if type(value) in (int, float) and value != used[name]]
  if not wanted:
    return ""
  return f"{_FILE} of the target recommends {' '.join(wanted)}."
