"""Tables as text, for terminals and Markdown."""


def plain_table(lines):
  """Formats aligned columns, the first to the left, with a ruled-off head."""
  widths = [max(map(len, column)) for column in zip(*lines)]
  text = ["  ".join([line[0].ljust(widths[0]),
                     *(x.rjust(w) for x, w in zip(line[1:], widths[1:]))])
          for line in lines]
  return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def markdown_table(lines):
  """Formats a Markdown table; the first line is its head."""
  text = ["| " + " | ".join(line) + " |" for line in lines]
  return "\n".join([text[0], "|---" * len(lines[0]) + "|", *text[1:]])
