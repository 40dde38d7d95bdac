"""Constrained decoding: CDSL (arXiv 2412.10418), CDLH and other methods.

  python -m experiments.cdsl --config=configs/cdsl.py
  python -m experiments.cdsl --config=configs/cdsl.py:smoke
  python -m experiments.cdsl --config=configs/cdsl.py:commongen \\
      --config.examples=176 --config.corpus=<folder of CommonGen> \\
      --workdir=runs/commongen
  python -m experiments.cdsl --config=configs/cdsl.py:harmless \\
      --config.corpus=<folder of dialogues> --workdir=runs/harmless

`methods.cdsl` is a reconstruction: what could not be read in the paper is a
choice of this repository. "no S3", "to rise" and trees are its own variants,
`methods.cdsl_extended`.

The default needs no download: the shipped Python pair continues held-out
modules, and must use identifiers that the real continuation uses. `commongen`
makes sentences of the words of CommonGen's dev split (arXiv 1911.03705) with
the pair that is shipped for it; its folder holds dev.src_alpha.txt, dev.tgt.txt
and dev.constraint.json, as in the repository of NeuroLogic decoding. `harmless`
answers in dialogues (arXiv 2204.05862), as a reward model likes it, with a pair
that is shipped for it; `configs/train.py` says what its folder holds. Add
`,sweep` to any for the trade-off over lookahead lengths and thresholds,
`,trees` for lookaheads that are trees, `,readings` for what the abstract may
mean, or `,search` for searches of beams and of trees, samples and particles
that the same reward guides.

Hardware: two cores of an x86 server, no GPU.
Minutes, on 24 November 2026: `commongen` with 128 examples 4, `harmless` 3.
To expect, all words present and target calls a token:

    default              CDLH 51.6 %, 7.12        CDSL 45.3 %, 6.92
    commongen, 176 sets  CDLH 16x4 97.2 %, 4.05   CDSL to rise 16x4 96.6 %, 1.30

and for `harmless` a reward of 1.647 by CDLH and 1.615 by CDSL, greedy 1.304.
"""

import ml_collections

from configs import common

# A label is a line of the table.
_SEARCH = {"num_candidates": 8, "lookahead": 8, "reward_weight": 10.0}
# Beyond the reconstruction of CDSL: a search commits the roll-out that it has
# found, and nothing commits more than it takes for the reward to rise.
_TO_RISE = {"name": "cdsl_extended", "commit": "rise", "commit_rollout": True,
            "low_acceptance": "search"}
_METHODS = (
    {"label": "greedy", "name": "autoregressive"},
    {"label": "nucleus", "name": "autoregressive", "temperature": 1.0,
     "top_p": 0.9},
    {"label": "beam", "name": "beam_search", "num_beams": 8},
    {"label": "best of n", "name": "best_of_n", "num_samples": 16,
     "temperature": 1.0},
    {"label": "CDLH", "name": "cdlh", **_SEARCH},
    {"label": "CDLH, draft roll-outs", "name": "cdlh", "rollout": "draft",
     **_SEARCH},
    {"label": "CDSL", "name": "cdsl", **_SEARCH},
    {"label": "CDSL, no S3", "name": "cdsl_extended",
     "low_acceptance": "search", **_SEARCH},
    {"label": "CDSL to rise", **_TO_RISE, **_SEARCH},
)
# Of CommonGen: many candidates with short roll-outs, for both; and as few
# searches as will do, since all that is verified may be committed.
_WIDE = {**_SEARCH, "num_candidates": 16, "lookahead": 4,
         "reward_weight": 30.0}
_COMMONGEN = (
    *_METHODS[:-1], {"label": "CDLH 16x4", "name": "cdlh", **_WIDE},
    {"label": "CDSL to rise 16x4", **_TO_RISE, **_WIDE},
    {"label": "CDSL to rise 16x4, a=0, slack 1", **_TO_RISE, **_WIDE,
     "acceptance_threshold": 0.0, "slack": 1.0})
# By the reward, without lookaheads; the last one by the drafter's segments.
_DRAWN = {"temperature": 1.0}
_SEARCHES = (
    *_METHODS[:1], *_METHODS[2:4],
    {"label": "beam by reward", "name": "beam_search", "num_beams": 16,
     "rank": "reward"},
    {"label": "conditional beams", "name": "conditional_beam_search",
     "num_beams": 8, "num_candidates": 8, "weight": 10.0},
    {"label": "segments", "name": "segment_search", "num_beams": 4,
     "num_samples": 4, "segment": 4, **_DRAWN},
    {"label": "particles 16", "name": "particles", "num_particles": 16,
     "reward_weight": 10.0, **_DRAWN},
    {"label": "particles 64", "name": "particles", "num_particles": 64,
     "reward_weight": 10.0, **_DRAWN},
    {"label": "GSI", "name": "gsi", "num_samples": 16, "segment": 4,
     "reward_weight": 10.0, **_DRAWN},
    {"label": "DeAL", "name": "deal", "num_beams": 4, "num_candidates": 4,
     "lookahead": 8, "reward_weight": 10.0},
    {"label": "A*", "name": "a_star", "num_children": 4, "step_length": 4,
     "expansions": 32, **_DRAWN},
    {"label": "LiteSearch", "name": "lite_search", "step_length": 8,
     "logits": True, **_DRAWN},
    {"label": "PG-TD", "name": "pg_td", "num_children": 8, "simulations": 64})
# As RankGen's paper: 2 beams of 10 samples of 20 tokens, or 20 whole samples.
_NUCLEUS = {"temperature": 1.0, "top_p": 0.9}
_RANKED = (
    {"label": "nucleus", "name": "autoregressive", **_NUCLEUS},
    {"label": "best of 20", "name": "best_of_n", "num_samples": 20, **_NUCLEUS},
    {"label": "RankGen, 2x10", "name": "segment_search", "num_beams": 2,
     "num_samples": 10, "segment": 20, **_NUCLEUS})
_BY_LABEL = {spec["label"]: spec for spec in _METHODS}
_LOOKAHEADS = (2, 4, 8, 12)
_THRESHOLDS = (0.0, 0.5, 0.75, 1.0)
# Of chains and trees.
_SLACKS, _DEPTHS = (0.0, 1.0), (4, 8)


def get_config(presets="default"):
  """Returns the configuration of `experiments.cdsl`.

  Args:
    presets: names separated by commas: "default", "smoke", "commongen",
      "harmless"; "sweep", CDSL at other lookaheads and thresholds; "trees";
      "readings", CDSL as its abstract may be read; "search", searches, samples
      and particles; "rankgen", samples of Python that a dual encoder reranks.

  Returns:
    A ConfigDict with the fields:
      task: "python", "commongen", "harmless"; "continue", Python scored by a
        reward model; or "file" of one's own, see
        `experiments.data.constraint_file`.
      corpus: folder of the task's files, or the file; "" for the standard
        library.
      split: commongen alone: of its files, "dev" or "test".
      prompt: commongen and file: what a model that is not trained for the task
        is told: `template`, `answer`, `shots` and `between` of a format, see
        `configs/tasks.py`. The field of commongen is {words}; fields of a file
        are those of its records. An empty template is the form of the shipped
        pair's training data.
      chat: whether prompts are written with the target's chat template.
      system: message before them in chats, or "".
      target, draft: folders, names of shipped models, or hub:owner/name; the
        draft may have another tokenizer; or be layers:N, the target's first N
        layers, or lookup, see `models.prompt_lookup`.
      dtype, draft_dtype: of parameters and activations; "" as they were saved,
        and of the draft as `dtype` says. It is the distribution in `dtype` that
        is kept.
      weights, draft_weights: of matrices, "dtype", "bfloat16" or "int8"; "" of
        the draft as `weights` says, and of a head saved in 8 bits "int8". It is
        the distribution with these `weights` that is kept.
      reward: harmless, continue, and a file without words: folder, or name, of
        the reward model.
      second_reward: likewise, or "": another reward model, which no method
        sees, and which scores the texts that it has written.
      reward_on_host: whether it scores texts on the host, where it may have
        another tokenizer than the target; the program waits for it.
      examples: prompts; of CommonGen the first ones of dev.
      concepts: python alone: identifiers of an example, at most.
      common: python alone: only the identifiers that most modules of the
        training split have, so many of them; 0: any.
      prompt_length: tokens of a prompt; of harmless at most, else any.
      max_new_tokens: the budget.
      batch: examples decoded together; a batch is the unit of time.
      seed: of prompts, tokens and bootstrap.
      compilation_cache: whether compiled programs are kept in the workdir.
      methods: label, name and sizes of each, and its sampling (temperature, 0
        if not given; top_p; top_k; min_p; typical_p); or a string,
        "cdlh(8, 4)".
      choice: an operating point that is chosen on the first `examples`, and
        reported with `methods` on the others alone: of `choice.methods` the
        fastest whose score is at most `within` points (of a reward: units)
        below that of the method labelled `reference`. No examples, no choice.
  """
  config = ml_collections.ConfigDict({
      "task": "python",
      "corpus": "",
      "target": "python-target",
      "draft": "python-draft",
      "dtype": "",
      "draft_dtype": "",
      "weights": "dtype",
      "draft_weights": "",
      "reward": "harmless-reward",
      "second_reward": "",
      "reward_on_host": False,
      "examples": 64,
      "concepts": 3,
      "common": 100,
      "prompt_length": 48,
      "max_new_tokens": 40,
      "batch": 1,
      "seed": 0,
      "compilation_cache": True,
      "methods": _METHODS,
      "split": "dev",
      "prompt": {"template": "", "answer": "", "shots": (), "between": "\n\n"},
      "chat": False,
      "system": "",
      "choice": {"examples": 0, "methods": (), "reference": "CDLH",
                 "within": 3.0},
  })
  for preset in presets.split(","):
    common.check_preset(preset, _PRESETS)
    config.update(_PRESETS[preset])
  return config


def _sweep():
  """Returns CDSL by lookahead and threshold, and CDLH by lookahead."""
  options = {"num_candidates": 8, "reward_weight": 10.0}
  return (_METHODS[0], *(
      {"label": f"CDLH n={n}", "name": "cdlh", "lookahead": n, **options}
      for n in _LOOKAHEADS), *(
      {"label": f"CDSL n={n} a={a:g}", "lookahead": n,
       "acceptance_threshold": a, **_TO_RISE, **options}
      for n in _LOOKAHEADS for a in _THRESHOLDS))


def _trees():
  """Returns chains and trees of the same depths and slacks."""
  kept, shapes = _BY_LABEL["CDSL to rise"], {
      "chain": {}, "rsd_c": {"width": 3, "tree": "rsd_c"},
      "rsd_s": {"width": 3, "tree": "rsd_s"}}
  return (_BY_LABEL["greedy"], _BY_LABEL["CDLH"], *(
      {**kept, "label": f"{name} {depth}, slack {slack:g}", "slack": slack,
       "lookahead": depth, **shape}
      for depth in _DEPTHS for slack in _SLACKS
      for name, shape in shapes.items()))


def _readings():
  """Returns CDSL as its abstract may be read at low acceptance."""
  kinds = {"continue": "target continues", "search": "search",
           "prefix": "prefix", "regenerate": "regenerate"}
  return (_BY_LABEL["greedy"], _BY_LABEL["CDLH"], *(
      {**_SEARCH, "label": f"{label}, a={a:g}", "name": "cdsl_extended",
       "low_acceptance": kind, "acceptance_threshold": a}
      for kind, label in kinds.items() for a in (0.25, 0.5, 1.0)))


_PRESETS = {
    "default": {},
    "smoke": {"examples": 8, "max_new_tokens": 16, "batch": 4,
              "methods": tuple(_BY_LABEL[label] for label in (
                  "greedy", "CDLH", "CDSL"))},
    "commongen": {"task": "commongen", "corpus": "data/commongen",
                  "target": "commongen-target", "draft": "commongen-draft",
                  "examples": 200, "max_new_tokens": 32,
                  "methods": _COMMONGEN},
    "harmless": {"task": "harmless", "corpus": "data/harmless",
                 "target": "harmless-target", "draft": "harmless-draft",
                 "prompt_length": 64},
    "sweep": {"methods": _sweep()},
    "readings": {"methods": _readings()},
    "trees": {"methods": _trees()},
    "search": {"methods": _SEARCHES},
    "rankgen": {"task": "continue", "reward": "runs/rankgen/export",
                "prompt_length": 64, "max_new_tokens": 60,
                "methods": (_BY_LABEL["greedy"], *_RANKED)},
}
