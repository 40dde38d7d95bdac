"""Records of an experiment: two methods, three prompts, a batch for each."""

from experiments.evaluation import tree_figures

# Of the prompts, "qa" and "rag".
CATEGORIES = ["rag", "qa", "rag"]
# Parameters of their draft over those of the target.
RATIO = 0.25


def record(method, seconds, calls=(6, 6, 4), *, temperature=0.0, drafts=0,
           nodes=0, accepted=((6,), (6,), (4,))):
  """A record of texts of 6, 6 and 4 tokens; plain decoding takes 1 s."""
  tokens = [6, 6, 4]
  results = {
      "method": method, "temperature": temperature, "depth": drafts,
      "tree_nodes": nodes, "emitted": tokens, "target_calls": list(calls),
      "draft_calls": [drafts * x for x in calls],
      "accepted_by_depth": [list(x) for x in accepted], "tokens": tokens,
      "seconds": list(seconds), "baseline_rate": 16 / 3,
      "prompt_seconds": list(seconds), "plain_tokens": tokens,
      "plain_seconds": [1.0, 1.0, 1.0], "log_prob": [-6.0, -5.0, -4.0],
      "row_steps": list(calls), "compile_seconds": 1.0}
  return {**results, "metrics": tree_figures.of_record(results, RATIO)}


def records():
  """Plain decoding, a chain that is faster, and a tree that is slower."""
  counts = ((0, 0, 2), (1, 3, 0), (4, 0, 0))
  return [
      record("autoregressive", [1.0, 1.02, 0.98]),
      record("speculative(2)", [0.5, 0.6, 0.8], (2, 4, 4), drafts=2, nodes=2,
             accepted=counts),
      record("rsd_c(2-1)", [2.0, 1.5, 1.25], (2, 4, 4), drafts=2, nodes=4,
             accepted=counts)]


def cells(records_=None, categories=tuple(CATEGORIES)):
  """The long records of `records`, or of others."""
  return tree_figures.long_records(records_ or records(),
                                   categories and list(categories), RATIO)
