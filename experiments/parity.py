"""Compares a published model with its computation by transformers.

  python -m experiments.parity --model=<folder, GGUF file or hub:owner/name>

Compares tokens, next-token distributions of a text, greedy decoding, and the
chat template if there is one, all in float32. A GGUF file is read by either
side on its own. Needs the packages of the extra `parity`, and memory for two
copies of the weights.
"""

import importlib.util
from typing import NamedTuple

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

import decoding_jax as dj
from experiments.app import launch
from experiments.app import text_tables
from experiments.data import python_corpus
from experiments.rivals import engines
from models import checkpoints
from models import transformer
from models.gguf import files as gguf_files
from models.huggingface import config as hf_config
from models.text import chat_template
from models.text import tokenizers

_MODEL = flags.DEFINE_string("model", "", "Model: folder as transformers "
                             "writes it, .gguf file, package:name, or "
                             "hub:owner/name.")
_TOKENS = flags.DEFINE_integer(
    "tokens", 256, "Length of the text whose distributions are compared.")
# Texts on which different tokenizers disagree.
_TEXTS = (" ", "a  b\n\n\tc ", "don't I'll", "3.14159 1234567890 0x1F",
          "naïve café — “quotes”", "中文 العربية 한국어", "🙂👩‍👩‍👧",
          "\u200b\ufeff\u00a0", "x" * 100, "if x:\n        return  # it")
_TURNS = [{"role": "user", "content": " What is a rainbow? "},
          {"role": "assistant", "content": "Light."},
          {"role": "user", "content": "Why?"}]
_PROMPT, _NEW = 16, 32
# Least overlap, sum of min(p, q), of distributions that count as equal.
OVERLAP = 0.999
# Largest difference of a greedy token from the best one in nats, for ties.
TIE = 1e-3


class Finding(NamedTuple):
  """A comparison: what was compared, the result, and whether it passed."""
  what: str
  result: str
  right: bool


def main():
  if not _MODEL.value:
    raise launch.UserError("--model='': a folder, GGUF file or hub:owner/name "
                           "is needed.")
  results = findings(launch.model_folder(_MODEL.value), _TOKENS.value)
  print(text_tables.plain_table([["compared", "result", "right"], *(
      [x.what, x.result, "yes" if x.right else "NO"] for x in results)]))
  wrong = [x.what for x in results if not x.right]
  if wrong:
    raise launch.UserError(f"--model={_MODEL.value} differs from transformers: "
                           f"{', '.join(wrong)}.")


def findings(folder, length) -> list[Finding]:
  """Compares a folder or GGUF file with transformers, on `length` tokens."""
  missing = engines.missing("transformers")
  if gguf_files.is_gguf(folder) and not importlib.util.find_spec("accelerate"):
    missing.append("accelerate")
  if missing:
    raise launch.UserError(f"{', '.join(missing)} is not installed: "
                           f"{engines.ENGINES['transformers'].hint}.")
  with launch.user_errors(OSError, ValueError):
    if not hf_config.is_hf(folder):
      raise ValueError(f"--model={folder}: a folder as transformers writes it "
                       "is needed.")
    if length <= _PROMPT:
      raise ValueError(f"--tokens={length}: at least {_PROMPT + 1} are needed.")
    lm, params = checkpoints.load(folder, dtype="float32")
    tokenizer = tokenizers.load(folder)
  their_tokenizer, their_logits = _theirs(folder)
  _, source = python_corpus.modules(python_corpus.HELD_OUT)[0]
  length = min(length, (lm.max_length or length) - _NEW)
  text = np.array([tokenizer.encode(source).ids[:length]])
  results = [_tokens(tokenizer, their_tokenizer, [*_TEXTS, source]),
             _distributions(lm, params, their_logits, text),
             _greedy(lm, params, their_logits, text[:, :_PROMPT])]
  if their_tokenizer.chat_template:
    results.append(_chat(folder, their_tokenizer))
  return results


def _theirs(folder):
  """Loads their tokenizer, and a function from `[1, L]` to logits `[L, V]`."""
  import torch  # pylint: disable=import-outside-toplevel
  import transformers  # pylint: disable=import-outside-toplevel
  file = {}
  if gguf_files.is_gguf(folder):
    folder, file = folder.parent, {"gguf_file": folder.name}
  model = transformers.AutoModelForCausalLM.from_pretrained(
      folder, dtype=torch.float32, **file).eval()

  def logits(tokens):
    with torch.no_grad():
      return model(torch.tensor(np.asarray(tokens, np.int64))).logits[0].numpy()

  return transformers.AutoTokenizer.from_pretrained(folder, **file), logits


def _tokens(ours, theirs, texts):
  same = sum(ours.encode(text).ids == theirs(text)["input_ids"]
             for text in texts)
  return Finding("tokens", f"the same of {same} of {len(texts)} texts",
                 same == len(texts))


def _distributions(lm, params, their_logits, text):
  logits = np.asarray(jax.jit(transformer.causal_logits, static_argnums=0)(
      lm, params, jnp.asarray(text)))[0]
  theirs = their_logits(text)
  distributions = [special.softmax(np.float64(x), axis=-1)
                   for x in (logits, theirs)]
  overlap = np.minimum(*distributions).sum(axis=-1).min()
  return Finding(
      f"distributions of {text.shape[1]} tokens",
      f"overlap at least {overlap:.6f}, logits at most "
      f"{np.abs(logits - theirs).max():.1e} apart", bool(overlap >= OVERLAP))


def _greedy(lm, params, their_logits, prompt):
  out = dj.generate(
      jax.random.key(0), prompt, [prompt.shape[1]], target=lm,
      target_params=params, method=dj.methods.autoregressive(),
      max_new_tokens=_NEW, sampling=dj.Sampling(temperature=0.0))
  log_probs = special.log_softmax(np.float64(their_logits(out.tokens)), axis=-1)
  log_probs = log_probs[prompt.shape[1] - 1:-1]
  taken = np.take_along_axis(
      log_probs, np.asarray(out.tokens[0, prompt.shape[1]:, None]), axis=-1)
  gap = (log_probs.max(axis=-1) - taken[:, 0]).max()
  return Finding(
      f"greedy text of {_NEW} tokens",
      f"each at most {gap:.1e} nats below their best", bool(gap <= TIE))


def _chat(folder, theirs):
  with launch.user_errors(OSError, ValueError):
    ours = chat_template.load(folder)(_TURNS)
  same = ours == theirs.apply_chat_template(_TURNS, tokenize=False,
                                            add_generation_prompt=True)
  return Finding("chat template", "the same" if same else "not the same", same)


if __name__ == "__main__":
  launch.run(main)
