"""Makes prompts of records, by the formats of `configs/tasks.py`."""

from experiments.data import records

SIDES = ("left", "right", "leave_out")


def layout(task, record):
  """Returns the format of a task that fits the first record of a file."""
  # Of the formats whose fields are all present, that with the most fields; the
  # only format of a task in any case.
  formats = sorted(task.formats.values(), key=lambda x: -len(x.fields))
  if len(formats) == 1:  # Missing fields are reported when they are read.
    return formats[0]
  for format_ in formats:
    if all(records.has(record, path) for path in format_.fields.values()):
      return format_
  wanted = " or ".join(
      "(" + ", ".join(repr(path) for path in x.fields.values()) + ")"
      for x in formats)
  raise ValueError(f"{record.where} has none of the formats of the task: "
                   f"fields {wanted} are needed ('' is all of a record); "
                   f"{records.contents(record.value)}.")


def values(form, record) -> dict[str, str]:
  """Returns the fields of a record, by their names in the templates."""
  return {name: records.field(record, path)
          for name, path in form.fields.items()}


def plain(form, layout_) -> str:
  """Makes a prompt for a model that continues text; examples come first."""
  shots = [question(form, shot) + answer(form, shot) + form.get("between", "")
           for shot in form.get("shots", ())]
  return "".join([*shots, question(form, layout_)])


def messages(form, layout_, system="") -> list[dict[str, str]]:
  """Makes messages for a chat model; examples are earlier turns."""
  chat = [{"role": "system", "content": system}] if system else []
  for shot in form.get("shots", ()):
    chat += [{"role": "user", "content": question(form, shot).strip()},
             {"role": "assistant", "content": answer(form, shot).strip()}]
  return [*chat, {"role": "user", "content": question(form, layout_).strip()}]


def question(form, layout_) -> str:
  """Makes the prompt of one record, without examples."""
  return _filled("template", form.template, form, layout_)


def answer(form, layout_) -> str:
  """Makes the answer to one record; "" if the format has no answers."""
  return _filled("answer", form.get("answer", ""), form, layout_)


def reference(form, layout_) -> str:
  """Makes what the text after a prompt is compared with, or tested by."""
  if not form.get("reference"):
    return answer(form, layout_).strip()
  return _filled("reference", form.reference, form, layout_)


def shorten(encoding, longest, side):
  """Returns at most `longest` tokens of an encoding; None: left out."""
  # Special tokens at its beginning are kept.
  ids = encoding.ids
  if longest is None or len(ids) <= longest:
    return ids
  if side == "leave_out":
    return None
  if side == "right":
    return ids[:longest]
  special = (encoding.special_tokens_mask + [0]).index(0)
  head = ids[:special][:longest - 1]
  return head + ids[len(ids) - longest + len(head):]


def _filled(what, template, form, layout_):
  """Fills in a template; an empty field is dropped together with its frame."""
  frames = form.get("frames", {})
  framed = {name: frames[name].format(text) if text and name in frames else text
            for name, text in layout_.items()}
  try:
    return template.format_map(framed)
  except (KeyError, IndexError, ValueError) as e:
    raise ValueError(f"{what}={template!r} is not a template of the fields "
                     f"{', '.join(layout_)}: {e!r}.") from e
