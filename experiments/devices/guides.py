"""Targets of several models or prompts, as `--guide` names them.

A guide is a function of this module, from a pair whose parameters have been
read and its sizes to the guided target and its parameters; `models.guided` has
the mathematics. What is drafted stays as it is, and every method that keeps the
target's distribution keeps the guided target's.
"""

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import draft_kind
from models import checkpoints
from models import transformer
from models.text import tokenizer_files
from models.text import tokenizers
from models.text import vocab_alignment


def contrastive(pair, alpha=0.1, beta=0.5, amateur=""):
  """The target, less what an amateur likes; "": the draft is the amateur."""
  if amateur:
    lm, params = _model(pair, "amateur", amateur)
  elif isinstance(pair.draft, dj.LanguageModel):
    lm, params = pair.draft, pair.draft_params
  else:
    raise ValueError("contrastive: the draft is no model, or is not needed by "
                     "the method: name an amateur, as in contrastive(amateur="
                     "'python-draft').")
  from models import guided  # Few runs need it, as below.
  return (guided.contrastive(pair.target, lm, alpha, beta),
          (pair.target_params, params))


def proxy_tuned(pair, tuned, untuned, scale=1.0):
  """The target, moved by what tuning has changed in a small model."""
  small = [_model(pair, *named) for named in (("tuned", tuned),
                                              ("untuned", untuned))]
  lms, params = zip((pair.target, pair.target_params), *small)
  from models import guided
  return guided.proxy_tuned(*lms, scale), params


def classifier_free(pair, negative_prompt, scale=1.5):
  """The target after its prompt, moved away from it after another prompt."""
  tokens = tokenizer_files.encode(pair.tokenizer, negative_prompt).ids
  from models import guided
  return guided.classifier_free(pair.target, pair.target_params, tokens, scale)


_GUIDES = {guide.__name__: guide
           for guide in (contrastive, proxy_tuned, classifier_free)}
HELP = ("What changes the target's distribution: contrastive(alpha, beta, "
        "'amateur'), whose amateur is the draft by default; proxy_tuned("
        "'tuned', 'untuned', scale), of two small models; classifier_free("
        "'negative prompt', scale); '' for nothing. The numbers may be left "
        "out")


def apply(pair, spec: str, where: str = "--guide"):
  """Returns the pair with the target of a guide's call; "": itself."""
  def load(name):
    launch.check_known(where, [name], _GUIDES)
    return _GUIDES[name]

  if not spec:
    return pair
  if pair.mesh is not None:
    raise launch.UserError(f"{where}={spec!r}: one device is needed, a mesh "
                           "has one target.")
  if pair.drafts.is_head:
    raise launch.UserError(f"{where}={spec!r}: the head {pair.drafts} reads "
                           "the features of one target: a draft model, or a "
                           "method without one, is needed.")
  with launch.user_errors(OSError):
    target, params = method_specs.called(load, spec, where, pair)
  return pair._replace(target=target, target_params=params)


def _model(pair, size, name):
  """Returns a model of the target's tokenizer, and its parameters."""
  if not isinstance(name, str):
    raise ValueError(f"{size}={name!r}: a model is needed, named as --target "
                     "is.")
  folder, dtype = launch.model_folder(name), pair.source.dtypes[0]
  try:
    tokenizers.check_same(pair.tokenizer, tokenizers.load(folder))
  except ValueError as e:
    raise ValueError(f"{size}={name!r} needs the target's tokenizer: "
                     f"{e}") from e
  lm = transformer.language_model(draft_kind.architecture(
      name, dtype, pair.source.weights[0]))
  lm = vocab_alignment.cut(lm, min(lm.vocab_size, pair.target.vocab_size))
  return lm, checkpoints.load(folder, dtype=dtype or None,
                              weights=pair.source.weights[0])[1]
