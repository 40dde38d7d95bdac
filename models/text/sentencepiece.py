"""SentencePiece models as tokenizers of the `tokenizers` library.

So converted folders need neither the model file nor `sentencepiece`.
"""

import pathlib

import tokenizers
from tokenizers import decoders, normalizers
from tokenizers.models import BPE, Unigram

from models.folders import json_files
from models.text import tokenizer_files

FILE = "tokenizer.model"
SPACE = "\u2581"
_UNIGRAM, _BPE = 1, 2


def load(folder) -> tokenizers.Tokenizer:
  """Reads the `tokenizer.model` of a folder, BPE or unigram. A text begins with
  a special token unless `add_bos_token` of its `tokenizer_config.json` is
  false. Raises ValueError without `sentencepiece`, or for a file that is
  damaged or of another type."""
  path = pathlib.Path(folder) / FILE
  try:
    # pylint: disable-next=g-import-not-at-top
    from sentencepiece import sentencepiece_model_pb2
  except ImportError as e:
    raise ValueError(f"'{path}' can only be read with sentencepiece: install "
                     "it, or add a tokenizer.json.") from e
  json_files.refuse_pointer(path)
  spec = sentencepiece_model_pb2.ModelProto()
  try:
    spec.ParseFromString(path.read_bytes())
  except Exception as e:  # Of protobuf, which is not ours to name.
    raise ValueError(f"'{path}' is damaged: {e}.") from e
  model_type = spec.trainer_spec.model_type
  if model_type not in (_UNIGRAM, _BPE) or not spec.pieces:
    raise ValueError(f"'{path}': model_type={model_type} with "
                     f"{len(spec.pieces)} pieces; BPE and unigram models are "
                     "supported.")
  pieces = [(x.piece, x.type, x.score) for x in spec.pieces]
  tokenizer = tokenizers.Tokenizer(_model(spec.trainer_spec, pieces))
  tokenizer.normalizer = _normalizer(spec.normalizer_spec)
  tokenizer.decoder = decoder(spec.normalizer_spec.add_dummy_prefix)
  tokenizer_files.keep_whole(tokenizer, [piece[:2] for piece in pieces])
  bos = spec.trainer_spec.bos_piece
  adds_bos = tokenizer_files.setting(path.parent, tokenizer_files.CONFIG,
                                     "add_bos_token", True)
  if adds_bos and tokenizer.token_to_id(bos) is not None:
    tokenizer_files.begin_with(tokenizer, bos)
  return tokenizer


def _model(spec, pieces):
  bytes_ = any(type_ == tokenizer_files.BYTE for _, type_, _ in pieces)
  if spec.model_type == _UNIGRAM:
    return Unigram([(text, score) for text, _, score in pieces],
                   unk_id=spec.unk_id, byte_fallback=bytes_)
  return bpe(pieces, spec.unk_piece, bytes_)


def bpe(pieces, unknown, byte_fallback=True) -> BPE:
  """Returns the model that merges pieces, a list of (text, type, score)."""
  scores = {text: score for text, type_, score in pieces
            if type_ in (tokenizer_files.NORMAL, tokenizer_files.USER)}
  return BPE({text: i for i, (text, *_) in enumerate(pieces)}, _merges(scores),
             unk_token=unknown, fuse_unk=True, byte_fallback=byte_fallback)


def _merges(scores):
  """Returns all pairs of pieces that make a piece, the best piece first."""
  merges = []
  for piece, score in scores.items():
    for cut in range(1, len(piece)):
      pair = piece[:cut], piece[cut:]
      if pair[0] in scores and pair[1] in scores:
        merges.append((-score, pair))
  # Python sorts stably: pairs of one piece stay in order.
  return [pair for _, pair in sorted(merges, key=lambda merge: merge[0])]


def _normalizer(spec):
  steps = []
  if spec.precompiled_charsmap:
    steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
  if spec.remove_extra_whitespaces:
    steps += [normalizers.Strip(),
              normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
  return normalizers.Sequence([*steps, spaces(spec.add_dummy_prefix)])


def spaces(prefixed: bool) -> normalizers.Normalizer:
  """Returns what spells spaces as pieces do, `prefixed` by one or not."""
  first = [normalizers.Prepend(SPACE)] if prefixed else []
  return normalizers.Sequence([*first, normalizers.Replace(" ", SPACE)])


def decoder(prefixed: bool) -> decoders.Decoder:
  """Returns what turns tokens into text; `prefixed` as in `spaces`."""
  steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(),
           decoders.Fuse()]
  if prefixed:
    steps.append(decoders.Strip(" ", 1, 0))
  return decoders.Sequence(steps)
