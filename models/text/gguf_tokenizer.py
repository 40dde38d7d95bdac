"""Vocabularies of GGUF files as tokenizers of the `tokenizers` library.

"gpt2" is byte-level BPE with merges and the name of a splitting pattern;
"llama" is SentencePiece's BPE, whose merges follow from the scores.
"""

import collections
import re

import numpy as np
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from models.folders import json_files
from models.gguf import architectures
from models.gguf import files
from models.gguf import settings
from models.text import sentencepiece
from models.text import tokenizer_files

_PREFIX = "tokenizer.ggml."
_MODEL, _PRE, _MERGES = (f"{_PREFIX}{x}" for x in ("model", "pre", "merges"))
# What only fills a byte-level vocabulary up to the rows of the embedding.
_PADDING = re.compile(r"\[PAD\d+\]")
# Patterns of published tokenizers by what llama.cpp calls them.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|"
            rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}")
_QWEN_2 = _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(end, digits):
  """Returns a pattern that ends a word before a capital letter."""
  start = r"[^\r\n\p{L}\p{N}]?"
  return (rf"{start}{_UPPER}*{_LOWER}+{end}|{start}{_UPPER}+{_LOWER}*{end}|"
          rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}")


_GPT_4O = _by_case(f"{_CONTRACTIONS}?", r"\p{N}{1,3}")
_TEKKEN = _by_case("", r"\p{N}")
_SPLITS = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral",
                     "dbrx", "smaug-bpe"), _LLAMA_3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN_2),
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT_4O), "tekken": _TEKKEN}
# GPT-2's own pattern, and the same after each digit stands alone.
_GPT_2 = ("gpt-2", "mpt", "olmo", "phi-2", "jais")
_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
# Whose words that are tokens are not merged; and that begin with a token.
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral",
                "tekken")
_WITH_BOS = ("llama3", "llama-v3", "llama-bpe", "tekken")
# Keys that are understood, here or in `settings`, or for other uses than text.
_KNOWN = frozenset("""
    model pre tokens scores token_type merges bos_token_id eos_token_id
    eot_token_id eom_token_id unknown_token_id padding_token_id add_bos_token
    add_space_prefix remove_extra_whitespaces chat_template
    """.split())
_HARMLESS = re.compile(
    r"(fim_\w+|prefix|suffix|middle|seperator|separator|cls|mask)_(token_)?id"
    r"|add_sep_token|token_type_count")
# Whose SentencePiece adds no space to the first word, and orders merges by ids.
_GEMMA = ("gemma", "gemma2", "gemma3")


def load(path) -> tokenizers.Tokenizer:
  """Reads the tokenizer of a GGUF file. Raises ValueError naming the file, and
  a key that is missing, unknown, or has a value that is not supported."""
  metadata = files.read(path).metadata
  with json_files.naming(path):
    _check_keys(metadata)
    model = metadata.get(_MODEL)
    if not isinstance(model, str) or model not in _KINDS:
      raise ValueError(f"{_MODEL}={json_files.shown(model)} is not one of "
                       f"{', '.join(sorted(_KINDS))}.")
    tokens, types = _vocabulary(metadata)
    tokenizer, with_bos = _KINDS[model](metadata, tokens, types)
  fields = settings.read(path)[tokenizer_files.CONFIG]
  bos = fields.get("bos_token")
  if fields.get("add_bos_token", with_bos) and bos is not None:
    tokenizer_files.begin_with(tokenizer, bos)
  return tokenizer


def _check_keys(metadata):
  """Raises an error for a key that may change how texts are split."""
  for key, value in metadata.items():
    name = key.removeprefix(_PREFIX)
    if name == key or name in _KNOWN or _HARMLESS.fullmatch(name):
      continue
    if name == "add_eos_token" and value is False:
      continue
    raise ValueError(f"{key}={json_files.shown(value)} is not supported.")


def _vocabulary(metadata):
  tokens = metadata.get(settings.TOKENS)
  if not isinstance(tokens, list) or not tokens:
    raise ValueError(f"{settings.TOKENS} must be given.")
  if len(set(tokens)) < len(tokens):
    twice, _ = collections.Counter(tokens).most_common(1)[0]
    raise ValueError(f"{settings.TOKENS} has {json_files.shown(twice)} more "
                     "than once.")
  if f"{_PREFIX}token_type" not in metadata:
    return tokens, [tokenizer_files.NORMAL] * len(tokens)
  return tokens, _numbers(metadata, "token_type", tokens)


def _numbers(metadata, name, tokens):
  numbers = metadata.get(f"{_PREFIX}{name}")
  if not isinstance(numbers, np.ndarray) or len(numbers) != len(tokens):
    raise ValueError(f"{_PREFIX}{name} must have numbers, one for each of "
                     f"{len(tokens)} tokens.")
  return numbers.tolist()


def _byte_level(metadata, tokens, types):
  """Returns byte-level BPE, and whether a text begins with a token."""
  pre = metadata.get(_PRE)
  pre = json_files.shown(pre) if isinstance(pre, list) else pre
  padding = {token for token, type_ in zip(tokens, types)
             if type_ == tokenizer_files.UNUSED and _PADDING.fullmatch(token)}
  vocab = {token: i for i, token in enumerate(tokens) if token not in padding}
  merges = [tuple(str(x).split(" ")) for x in metadata.get(_MERGES, ())]
  wrong = next((x for x in merges if len(x) != 2 or not vocab.keys() >= {
      *x, "".join(x)}), None)
  if wrong:
    raise ValueError(f"{_MERGES} has {json_files.shown(' '.join(wrong))}, "
                     "which is no pair of tokens that makes a token.")
  tokenizer = tokenizers.Tokenizer(
      BPE(vocab, merges, ignore_merges=pre in _WHOLE_WORDS))
  tokenizer.pre_tokenizer = _splitter(pre)
  tokenizer.decoder = decoders.ByteLevel()
  if pre == "qwen2":
    tokenizer.normalizer = normalizers.NFC()
  tokenizer_files.keep_whole(tokenizer, list(zip(tokens, types)))
  return tokenizer, pre in _WITH_BOS


def _splitter(pre):
  """Returns what splits a text before bytes are merged."""
  if pre in _SPLITS:
    steps = [pre_tokenizers.Split(tokenizers.Regex(_SPLITS[pre]), "isolated")]
  elif pre in _DIGITS:
    steps = [pre_tokenizers.Digits(individual_digits=True)]
  elif pre in _GPT_2:
    steps = []
  else:
    known = sorted({*_SPLITS, *_DIGITS, *_GPT_2})
    raise ValueError(f"{_PRE}={pre!r} is not one of {', '.join(known)}.")
  steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False,
                                        use_regex=pre not in _SPLITS))
  return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


def _sentencepiece(metadata, tokens, types):
  """Returns the BPE of SentencePiece, and that a text begins with a token."""
  prefix, _ = architectures.of("", metadata)
  gemma = prefix in _GEMMA
  if gemma:
    # Runs of spaces are spelled as such here, and like spaces there.
    tokens = [sentencepiece.SPACE * len(token) if token.strip(" ") == ""
              else token for token in tokens]
    scores = [-i for i in range(len(tokens))]
  else:
    scores = _numbers(metadata, "scores", tokens)
  if metadata.get(f"{_PREFIX}remove_extra_whitespaces"):
    raise ValueError(f"{_PREFIX}remove_extra_whitespaces=True is not supported "
                     "of SentencePiece.")
  unknown = next((token for token, type_ in zip(tokens, types)
                  if type_ == tokenizer_files.UNKNOWN), "<unk>")
  tokenizer = tokenizers.Tokenizer(sentencepiece.bpe(
      list(zip(tokens, types, scores)), unknown if unknown in tokens else None))
  prefixed = metadata.get(f"{_PREFIX}add_space_prefix", not gemma)
  # As llama.cpp: a space before a text that has spaces of its own too, and
  # after each special token.
  tokenizer.normalizer = sentencepiece.spaces(prefixed)
  tokenizer.decoder = sentencepiece.decoder(prefixed)
  tokenizer_files.keep_whole(tokenizer, list(zip(tokens, types)))
  return tokenizer, True


_KINDS = {"gpt2": _byte_level, "llama": _sentencepiece}
