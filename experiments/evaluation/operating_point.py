"""The choice of a method's settings on examples that are not reported."""

from experiments.app import launch
from experiments.scoring import task_rewards


def check(config, entries):
  """Checks the choice of a config.

  Args:
    config: `examples` and `choice`, see `configs/cdsl.py`.
    entries: of `choice.methods`, by label.

  Raises:
    UserError: naming the field.
  """
  choice = config.choice
  if not 0 < choice.examples < config.examples:
    raise launch.UserError(
        f"choice.examples={choice.examples}: from 1 to examples - 1 = "
        f"{config.examples - 1} are needed; the others are reported.")
  if choice.reference not in entries or len(entries) < 2:
    raise launch.UserError(
        f"choice.reference={choice.reference!r}: a label of choice.methods is "
        f"needed, and others to choose from: there are {', '.join(entries)}.")


def choose(records, reference: str, within: float) -> str:
  """Returns the label of the fastest method that is about as good as another.

  Args:
    records: of `constrained_run.run`, with `label` and `metrics`.
    reference: the label of the other one.
    within: how far below its score, in points of the score, one may be.

  Returns:
    The label of the fastest of the records that are, and of the best one if
    none is; never the reference.
  """
  name = task_rewards.first(records[0]["metrics"])
  score = {r["label"]: r["metrics"][name][0] for r in records}
  seconds = {r["label"]: r["metrics"]["slowdown"][0] for r in records}
  others = [label for label in score if label != reference]
  good = [x for x in others if score[x] >= score[reference] - within]
  return min(good, key=seconds.get) if good else max(others, key=score.get)


def describe(records, chosen: str, config) -> str:
  """Returns a line that says what was chosen, and from what.

  Args:
    records: of `choose`.
    chosen: the label that it returned.
    config: `examples` and `choice`.
  """
  name = task_rewards.first(records[0]["metrics"])
  digits = task_rewards.SCORES[name].digits
  each = "; ".join(
      f"{r['label']} {r['metrics'][name][0]:.{digits}f} at "
      f"{r['metrics']['slowdown'][0]:.1f} x greedy" for r in records)
  return (f"Chosen on the first {config.choice.examples} of {config.examples} "
          f"examples, reported on the others: {chosen}, the fastest within "
          f"{config.choice.within:g} of {config.choice.reference}, if any is "
          f"({each}).")
