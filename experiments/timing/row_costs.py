"""What steps of many rows cost: timed on this device, or by saved cycles."""

import numpy as np

from decoding_jax.speculation import tree
from decoding_jax.speculation import tree_planning
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import draft_levels
from experiments.timing import forward_cost

# Of a token in each row: what costs are relative to.
PLAIN = ("target", 1, 0)
_ROUNDS = 9


def forwards(spec, method, rows) -> list[tuple]:
  """Returns the forwards of a step at temperature 0.

  Args:
    spec: of the method.
    method: a `dj.Method` with draft trees.
    rows: B.

  Returns:
    list of (model, T, packed), see `forward_cost.timer`.
  """
  drafter = method.greedy.drafter
  _, sizes = method_specs.parse(spec)
  # Of best-first trees the draft model grows a whole beam.
  levels = ((sizes["width"],) * sizes["depth"] if "width" in sizes else
            draft_levels.widths(drafter))
  packed = rows + drafter.budget(rows) if drafter.budget else 0
  return [("target", 1 + tree.num_nodes(drafter.layout), packed),
          *(("draft", n, 0) for n in tree_planning.draft_tokens(levels))]


def timed(pair, live, slots, rows, kinds) -> dict:
  """Times forwards in turn: the least seconds of each kind.

  Args:
    pair: a `ModelPair` with parameters.
    live: committed tokens of each row, as of `forward_cost.timer`.
    slots: see there.
    rows: B.
    kinds: of `forwards`, each once.
  """
  models = {"target": (pair.target, pair.target_params),
            "draft": (pair.draft, pair.draft_params)}
  timers = [forward_cost.timer(*models[model], rows, live, slots, *sizes)
            for model, *sizes in kinds]
  found = [[timer() for timer in timers] for _ in range(_ROUNDS)]
  return dict(zip(kinds, np.min(found, axis=0).tolist()))


def saved(lines, rows, kinds) -> dict:
  """Finds the cycles of each kind; those of a draft are 0.

  Args:
    lines: list of records that `experiments.forward_cycles` writes. What is
      between two is on the line between them; of packed tokens, between one
      token, packed ones of the same room, and the whole room.
    rows: B.
    kinds: of `forwards`.

  Raises:
    UserError: if they say nothing of a kind.
  """
  found = {}
  for model, room, packed in kinds:
    size = packed / rows if packed else room
    known = dict(sorted((x["tokens"], x["cycles"]) for x in lines
                        if x["rows"] == rows and (
                            x["tokens"] == 1
                            or packed and x["tokens"] == room
                            or x["room"] == (room if packed else 0))))
    if model == "target" and not (
        min(known, default=np.inf) <= size <= max(known, default=0)):
      raise launch.UserError(
          f"--costs: no cycles of {size:g} tokens in each of {rows} rows"
          f"{f', with room for {room}' if packed else ''}.")
    found[model, room, packed] = float(np.interp(
        size, list(known), list(known.values()))) if model == "target" else 0.0
  return found
