"""Constrained tasks of one's own: a file of prompts and constraints.

Each record, a line of a .jsonl file, has texts for the fields of the prompt's
template, such as `prompt`, and any of

  words: what the text must contain, a list; an item may be a list of forms, of
    which one is enough.
  banned: what it must not contain, a list of words or phrases.
  reference: a good text.

    {"prompt": "Describe a kitchen.", "words": ["spoon", ["pan", "pans"]],
     "banned": ["knife"]}

Without words and banned ones in the whole file it is the reward model of the
config that scores the texts.
"""

from typing import NamedTuple

from experiments.data import records

WORDS, BANNED, REFERENCE = "words", "banned", "reference"


class Example(NamedTuple):
  """A record of the file."""
  # Texts by their names in the template; `words` are joined by commas.
  fields: dict[str, str]
  words: list[list[str]]  # forms of each word that the text must contain
  # The one list of forms that it must not contain; empty for none.
  banned: list[list[str]]
  reference: str  # a good text; "" if there is none


def load(path: str, count: int) -> list[Example]:
  """Reads the first `count` examples of a file, see `records.load`."""
  if not path:
    raise ValueError("corpus is empty: task='file' needs a file of examples.")
  entries = records.load(path, name="corpus")
  if len(entries) < count:
    raise ValueError(f"examples={count}: '{path}' has {len(entries)}.")
  return [_example(record) for record in entries[:count]]


def _example(record):
  if not isinstance(record.value, dict):
    raise ValueError(f"{record.where}: a record with fields is needed; "
                     f"{records.contents(record.value)}.")
  words = [[word] if isinstance(word, str) else word
           for word in _list(record, WORDS)]
  for forms in words:
    if not _texts(forms):
      raise ValueError(f"{record.where}: field '{WORDS}' has {forms!r}: a "
                       "word, or a list of its forms, is needed.")
  banned = _list(record, BANNED)
  if banned and not _texts(banned):
    raise ValueError(f"{record.where}: field '{BANNED}' is {banned!r}: a list "
                     "of words is needed.")
  fields = {name: value for name, value in record.value.items()
            if isinstance(value, str)}
  reference = fields.pop(REFERENCE, "")
  fields[WORDS] = ", ".join(forms[0] for forms in words)
  return Example(fields, words, [banned] if banned else [], reference)


def _list(record, name):
  value = record.value.get(name, [])
  if not isinstance(value, list):
    raise ValueError(f"{record.where}: field '{name}' is of type "
                     f"{type(value).__name__}: a list is needed.")
  return value


def _texts(values):
  """Returns whether it is a list of at least one text, none of them empty."""
  return isinstance(values, list) and bool(values) and all(
      isinstance(x, str) and x for x in values)
