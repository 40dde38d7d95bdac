"""The page of results of `experiments.device_check`."""

from experiments.app import text_tables


def markdown(records) -> str:
  """Returns the page of records, each with the name of its `check`."""
  done = {x["check"]: x for x in records if "error" not in x}
  parts = ["# Device check", _verdict(records)]
  if "device" in done:
    parts.append(_device(done["device"]))
  parts.append(("Greedy texts and distributions", _rights(done.values())))
  if "forwards" in done:
    parts.append(("Forwards of the target",
                  _forwards(done["forwards"], done.get("device"))))
  parts.append(("Rates; of plain: over the first method of as many rows",
                _rates(done.values())))
  if "profile" in done:
    parts += ["## Longest operations", f"Of {done['profile']['method']}:",
              f"```\n{done['profile']['table']}\n```"]
  return text_tables.render(parts, text_tables.markdown) + "\n"


def _verdict(records):
  wrong = [f"- {x['check']}: {x.get('error', 'not right')}"
           for x in records if not x.get("right", True)]
  tested = sum("right" in x for x in records)
  return ("Failed:\n\n" + "\n".join(wrong) if wrong else
          f"All {tested} tests of texts and distributions passed.")


def _device(device):
  memory = (f"{device['bytes'] / 2**30:.1f} GiB" if device["bytes"]
            else "memory unknown")
  flops = ", ".join(f"{x / 1e12:.2f} TFLOP/s in {dtype}"
                    for dtype, x in device["flops"].items())
  return (f"{device['count']} x {device['kind']}, {memory}; reads "
          f"{device['bandwidth'] / 1e9:,.0f} GB/s, multiplies {flops}.")


def _rights(records):
  return [["test", "p", "right"], *(
      [x["check"], "-" if x.get("p") is None else f"{x['p']:.2g}",
       "yes" if x["right"] else "NO"] for x in records if "right" in x)]


def _forwards(forwards, device):
  read = device and forwards["weight_bytes"] / device["bandwidth"]
  return [["tokens", "ms", "of a token", "share of bandwidth"], *(
      [str(tokens), f"{1e3 * seconds:.3f}",
       f"{seconds / forwards['seconds'][0]:.2f}",
       f"{read / seconds:.0%}" if device else ""]
      for tokens, seconds in zip(forwards["tokens"], forwards["seconds"]))]


def _rates(records):
  lines = [["rows", "method", "tokens/s", "of plain", "tokens a step",
            "ms a step", "s to compile"]]
  plain = {}
  for x in (x for x in records if "compile_seconds" in x):
    rate = x["tokens"] / x["seconds"]
    plain.setdefault(x["rows"], rate)
    lines.append([
        str(x["rows"]), x["method"], f"{rate:,.1f}",
        f"{rate / plain[x['rows']]:.2f}",
        f"{x['tokens'] / x['rows'] / x['steps']:.2f}",
        f"{1e3 * x['seconds'] / x['steps']:.2f}",
        f"{x['compile_seconds']:.1f}"])
  return lines
