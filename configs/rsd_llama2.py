"""The paper's comparison on Llama 2: draft length and target budget, by task.

  python -m experiments.rsd --config=configs/rsd_llama2.py:7b,xsum \\
      --workdir=runs/llama2-7b-xsum
  python -m experiments.rsd --config=configs/rsd_llama2.py:7b-chat,dolly \\
      --config.data=databricks-dolly-15k.jsonl \\
      --workdir=runs/llama2-7b-chat-dolly
  python -m experiments.rsd --config=configs/rsd_llama2.py:spechub \\
      --workdir=runs/spechub

Presets are a model (7b, 13b, 70b, 7b-chat, 13b-chat, 70b-chat) and a task:
those of the paper (arXiv 2402.14160), xsum, wmt18_de_en and dolly, or another
of `configs/tasks.py`. Without `--config.data` the package `datasets` loads it
(`pip install -e '.[tasks]'`). Models are those of the Hugging Face hub:
Llama 2's licence is accepted there once, and `HF_TOKEN` shows who has. With
`--config.target` and `--config.draft` they are others, or folders. The drafter,
JackFram/llama-68m, has Llama 2's tokenizer; the paper's was not published, and
`configs/train.py:llama2_draft` trains one of its sizes.

Hardware: an accelerator. The weights of the target alone, in 16 bits as
published, are 13.5 GB (7b), 26 GB (13b) and 138 GB (70b); a position of the
cache is 0.5, 0.8 and 0.3 MiB. So at batch 1 a device of 24 GB should do for 7b
and one of 40 GB for 13b; 70b needs more than 141 GB, or `--mesh=model:8` of
devices of 24 GB. These are sums, not measurements.
Minutes: never run.
To expect: the paper's abstract says that RSD outperforms the baselines
consistently at a fixed draft length, and in most cases at a fixed budget of the
target. Figures will not be the paper's digit by digit: templates, examples,
numbers of prompts and the drafter are not its own.

`spechub` has figures to hit: block efficiency of binary trees without
replacement, RSD-C's rule, of depth 1 to 4 in the runs of SpecHub
(arXiv 2411.05289), 200 articles of CNN/DailyMail cut to 128 tokens and
continued by 128 more, at temperature 0.6:

    rsd_c(2) 1.600  rsd_c(2-2) 1.969  rsd_c(2-2-2) 2.169  rsd_c(2-2-2-2) 2.315

Its prompts are other articles of the same data set.
"""

from configs import rsd

_MODELS = {f"{size}{kind}": f"hub:meta-llama/Llama-2-{size}{kind}-hf"
           for kind in ("", "-chat") for size in ("7b", "13b", "70b")}
_DRAFT = "hub:JackFram/llama-68m"
_SPECHUB = "spechub"
_DEPTHS = (1, 2, 3, 4)


def get_config(presets="7b,xsum"):
  """Returns the configuration of `experiments.rsd`, see `rsd.py`.

  Args:
    presets: a model and a task; or "spechub".

  Returns:
    A ConfigDict.
  """
  if presets != _SPECHUB:
    return rsd.of_published(presets, _MODELS, _DRAFT)
  config = rsd.of_published("7b-chat,cnn_dailymail", _MODELS, _DRAFT)
  config.update(
      chat=False, temperatures=(0.6,), prompts=200, longest_prompt=128,
      too_long="right", max_new_tokens=128, lengths=_DEPTHS, budgets=(),
      bounds=0, trees={"length": {
          str(n): ({"name": "rsd_c", "branching": (2,) * n},)
          for n in _DEPTHS}})
  return config
