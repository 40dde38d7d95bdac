"""Speculative beam search (AtSpeed, arXiv 2410.05165)."""

from decoding_jax.search import beam, level_search, speculative_beams
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=2, draft_beams=4, depth=2),
            dict(num_beams=2, draft_beams=4, depth=2, relaxed=True))


def make(num_beams: int, draft_beams: int, depth: int,
         length_penalty: float = 0.0, relaxed: bool = False) -> Method:
  """Makes beam search whose levels are drafted: the texts of `beam_search`.

  The draft model searches N beams for some levels, and one call of the target
  takes all levels at which its own K best texts are among them: strict top-K
  verification.

  The relaxed one is **lossy**, see `search.relaxed_beams`: it takes a drafted
  text with the probability p / q of speculative sampling, although the drafts
  are no samples. More levels are accepted, and the texts are neither beam
  search's nor samples of the target.

  Args:
    num_beams: K.
    draft_beams: N, beams of the draft model, at least K.
    depth: levels that are drafted for a call of the target.
    length_penalty: see `beam_search`; 0 for relaxed verification.
    relaxed: whether to verify in the lossy way.

  Returns:
    The method; `stats.extra` has all beams, see `level_search.decoder`.
  """
  values.check_positives(num_beams=num_beams, draft_beams=draft_beams,
                         depth=depth)
  values.check_number("length_penalty", length_penalty)
  if draft_beams < num_beams:
    raise ValueError(f"draft_beams={draft_beams}: at least num_beams="
                     f"{num_beams} is needed.")
  if relaxed and length_penalty:
    raise ValueError(f"relaxed={relaxed}, length_penalty={length_penalty}: "
                     "relaxed verification needs length_penalty=0.")
  level = level_search.Level(level_search.of_beams(beam.plain, length_penalty),
                             level_search.per_length(length_penalty))
  sizes = speculative_beams.Sizes(num_beams, draft_beams, depth, bool(relaxed))
  decoder = speculative_beams.decoder(level, sizes)
  lossy = ", relaxed" if relaxed else ""
  return Method(f"at_speed({num_beams}, {draft_beams}x{depth}{lossy})",
                sampled=decoder, greedy=decoder)
