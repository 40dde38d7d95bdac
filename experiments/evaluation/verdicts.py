"""Sentences about speed: what is faster than plain decoding, what slower."""

from experiments.evaluation import result_rows

# Methods that a sentence names, at most.
_NAMED = 6
# Parameters below which the weights of a target are read in no time.
_SMALL = 20e6
WHERE_TREES_PAY = "python -m experiments.benchmark"


def lines(rows) -> list[str]:
  """Tells of each temperature the fastest method, and all that are slower.

  Args:
    rows: of `result_rows.rows`.

  Returns:
    A sentence or two a temperature; none where nothing was timed.
  """
  found = []
  for temperature in dict.fromkeys(row.temperature for row in rows):
    timed = [row for row in _overall(rows, temperature) if _ratio(row)]
    if timed:
      found.append(f"Temperature {temperature:g}: {_fastest(timed)}"
                   f"{_slower(timed)}")
  return found


def why_slow(rows, parameters) -> str:
  """Tells why trees lose on a small target, and where they pay.

  Args:
    rows: of `result_rows.rows`.
    parameters: of the target.

  Returns:
    A sentence; "" where no tree is slower, and for a target that is not small.
  """
  trees = [row for row in rows if row.nodes > row.depth
           and result_rows.against_plain(row) == result_rows.SLOWER]
  if not trees or parameters >= _SMALL:
    return ""
  return ("Where trees are slower here it is because reading "
          f"{parameters / 1e6:.1f} M parameters takes no time: each node that "
          "the target scores, and each draft level, costs its own. Where trees "
          f"pay: {WHERE_TREES_PAY}")


def _overall(rows, temperature):
  """Returns rows of all prompts, with short names."""
  names = result_rows.short_names(rows)
  return [row._replace(method=names[row.method]) for row in rows
          if row.category == result_rows.ALL and row.temperature == temperature
          and row.method != result_rows.PLAIN]


def _ratio(row):
  return row.figures.get("token_rate_ratio", [None])[0]


def _fastest(timed):
  best = max(timed, key=_ratio)
  verdict = result_rows.against_plain(best)
  _, low, high = best.figures["token_rate_ratio"]
  ends = "" if low is None else f" [{low:.2f}, {high:.2f}]"
  text = (f"{best.method} is the fastest, at {_ratio(best):.2f}{ends} times "
          "the rate of plain decoding "
          f"({best.figures['token_rate'][0]:.0f} tokens/s)")
  if verdict == result_rows.FASTER:
    return f"{text}."
  return f"no method is measurably faster than plain decoding; {text}."


def _slower(timed):
  slower = sorted((row for row in timed if result_rows.against_plain(row)
                   == result_rows.SLOWER), key=_ratio)
  if not slower:
    return ""
  if len(slower) > _NAMED:
    return (f" Slower than plain decoding: {len(slower)} of {len(timed)} "
            f"methods, down to {_named(slower[0])}.")
  return f" Slower than plain decoding: {', '.join(map(_named, slower))}."


def _named(row):
  return f"{row.method} ({_ratio(row):.2f})"
