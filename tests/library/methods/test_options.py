"""Sizes and options that methods refuse, by the name of the argument."""

import pytest

import decoding_jax as dj
from support import tiny_models as tiny
from support.search_reference import search, table, V

# Arguments that are right, beside the wrong ones.
RIGHT = {
    **dict.fromkeys(("cdlh", "cdsl", "cdsl_extended"),
                    dict(num_candidates=2, lookahead=2)),
    "deal": dict(num_beams=2, num_candidates=2, lookahead=2),
    "a_star": dict(num_children=2, step_length=2, expansions=2),
    "lite_search": dict(step_length=2), "contrastive_search": dict(
        num_candidates=2)}
NAN, BOTH = float("nan"), "rollout='both': one of 'target', 'draft'"
# Names of methods, positional or named arguments, and words of the error.
WRONG = [
    ("speculative", (0,), "depth=0"), ("speculative", (1.5,), "depth=1.5"),
    ("rsd_c", ((),), "depth of branching=0"),
    ("rsd_c", ((2, 0),), "branching=0"), ("rsd_c", ([2, -1],), "branching=-1"),
    ("rsd_c", (3,), "branching=3: a tuple of integers"),
    ("rsd_c", ((2, 1.5),), "branching=.2, 1.5.: a tuple"),
    ("rsd_s", (0, 2), "width=0"), ("rsd_s", (2, 0), "depth=0"),
    ("specinfer", (0, 1), "num_paths=0"), ("specinfer", (1, 0), "depth=0"),
    ("specinfer", dict(expansion=(2, 0)), "expansion=0"),
    ("specinfer", dict(expansion=()), "depth of expansion=0"),
    ("specinfer", dict(num_paths=2, expansion=(2,)), "num_paths=2, depth=4"),
    ("specinfer", dict(models=0), "models=0"),
    ("spectr", (-2, 1), "num_paths=-2"), ("spectr", (1, -2), "depth=-2"),
    ("sequoia", (3,), r"children\[0\]=3: a tuple"),
    ("sequoia", (((1,), 3),), r"children\[1\]=3: a tuple"),
    ("sequoia", (((2,), (1,)),), r"children\[1\]=\(1,\): 2 integers"),
    ("sequoia", (((2,), (0, 0)),), r"children\[1\]"),
    ("sequoia", (((-1,),),), r"children\[0\]"),
    ("sequoia", (((1.5,),),), r"children\[0\]"),
    ("sequoia", ((),), "one level"),
    ("pearl", (1,), "depth=1: at least 2"), ("pearl", (0,), "depth=0"),
    ("pearl", (2.5,), "depth=2.5"),
    ("ssd", (0, 1), "depth=0"), ("ssd", (2, 0), "guesses=0"),
    ("ssd", (2, 1.5), "guesses=1.5"),
    ("ssd", (2, (2, 1)), "depth . 1 = 3 of them"),
    ("ssd", (1, (2, 0)), "guesses=0"),
    ("contrastive_search", dict(num_candidates=0), "num_candidates=0"),
    ("contrastive_search", dict(penalty=1.5), "penalty=1.5"),
    ("lud", (0, 0.5), "pads=0"), ("lud", (2, -0.1), "confidence=-0.1"),
    ("cdlh", dict(num_candidates=0), "num_candidates=0"),
    ("cdlh", dict(lookahead=1.5), "lookahead=1.5"),
    ("cdlh", dict(weight=2), "weight=2: one of 0, 1"),
    ("cdlh", dict(reward_weight=NAN), "reward_weight=nan"),
    ("cdlh", dict(rollout="both"), BOTH),
    *((name, arguments, words) for name in ("cdsl", "cdsl_extended")
      for arguments, words in (
          (dict(lookahead=0), "lookahead=0"),
          (dict(acceptance_threshold=1.5),
           "acceptance_threshold=1.5.* from 0 to 1"),
          (dict(reward_threshold="x"), "reward_threshold='x': a number"),
          (dict(rollout="both"), BOTH))),
    *(("cdsl_extended", arguments, words) for arguments, words in (
        (dict(commit="all"), "commit='all': one of 'prefix', 'rise', "),
        (dict(width=0), "width=0"), (dict(tree="x"), "'rsd_s', 'rsd_c'"),
        (dict(width=2, commit="full"), "commit of width > 1='full'"),
        (dict(slack=-1), "slack=-1"),
        (dict(commit_rollout="x"), "commit_rollout='x': one of False, True"),
        (dict(low_acceptance="cdlh"), "low_acceptance='cdlh': one of"),
        (dict(width=2, low_acceptance="prefix"), "low_acceptance of width > 1"),
        (dict(commit_rollout=True, rollout="draft"), "rollout='draft'"))),
    ("adadec", dict(num_candidates=0), "num_candidates=0"),
    ("adadec", dict(lookahead=0), "lookahead=0"),
    ("adadec", dict(threshold=-1.0), "threshold=-1.0"),
    ("deal", dict(num_beams=0), "num_beams=0"),
    ("deal", dict(lookahead=0), "lookahead=0"),
    ("deal", dict(reward_weight=float("inf")), "reward_weight=inf"),
    ("a_star", dict(num_children=0), "num_children=0"),
    ("a_star", dict(path_weight=-1.0), "path_weight=-1.0"),
    ("a_star", dict(step_end=("x",)), "step_end="),
    ("lite_search", dict(max_budget=1), "max_budget=1: an integer fr"),
    ("lite_search", dict(confidence=2.0), "confidence=2.0"),
    ("pg_td", dict(simulations=0), "simulations=0"),
    ("pg_td", dict(base=0.0), "base=0.0"),
    ("conditional_beam_search", (0, 1), "num_beams=0"),
    ("conditional_beam_search", (1, 0), "num_candidates=0"),
    ("conditional_beam_search", (1, 1, "x"), "weight='x'"),
    ("beam_search", dict(num_beams=2, rank="length"), "rank='length': one of"),
    ("beam_search", (2, 1.0, "reward"), "length_penalty=1.0"),
    ("beam_search", (0,), "num_beams=0: a positive integer"),
    ("beam_search", (2, "x"), "length_penalty='x'"),
    ("stochastic_beam_search", (1.5,), "num_beams=1.5"),
    ("best_of_n", (-1,), "num_samples=-1"),
    ("diverse_beam_search", (4, 3), "num_groups=3: a divisor"),
    ("diverse_beam_search", (4, 2, -1.0), "diversity=-1.0"),
    ("gsi", (0, 2), "num_samples=0: a positive integer"),
    ("gsi", (2, 0), "segment=0"), ("gsi", (2, 2, 0.0), "reward_weight=0.0"),
    ("gsi", (2, 2, 1.0, "x"), "threshold='x'"),
    ("gsi", dict(num_samples=2, segment=2, end=0.5), "end=0.5: the id"),
    ("particles", (0,), "num_particles=0: a positive integer"),
    ("particles", dict(num_particles=2, resample_below=1.5),
     "resample_below=1.5"),
    ("particles", dict(num_particles=2, constraint="x"), "constraint"),
    ("awrs", (2, None), "threshold=None"),
    ("samples", (0,), "num_samples=0: a positive integer"),
    ("samples", (2, -1), "answer_after=-1: the id"),
    ("first_finish", (2, 3), "num_finished=3: at most"),
    ("segment_search", (2, 0, 1), "num_samples=0"),
    ("segment_search", (2, 1, 0), "segment=0"),
    ("at_speed", (3, 2, 1), "draft_beams=2: at least num_b"),
    ("at_speed", (2, 2, 1, 1.0, True), "relaxed=True, length_p"),
    ("at_speed", (1, 1, 0), "depth=0: a positive integer")]


@pytest.mark.parametrize("name, arguments, words", WRONG)
def test_wrong_options(name, arguments, words):
  make = getattr(dj.methods, name)
  with pytest.raises(ValueError, match=words):
    if isinstance(arguments, tuple):
      make(*arguments)
    else:
      make(**{**RIGHT.get(name, {}), **arguments})


@pytest.mark.parametrize("method, words", [
    (dj.methods.conditional_beam_search(1, V + 1), "5 siblings"),
    (dj.methods.beam_search(V + 1), "5 siblings"),
    (dj.methods.best_of_n(2), "reward=None"),
    (dj.methods.gsi(2, 2), "reward=None"),
    (dj.methods.particles(2), "reward=None"),
    (dj.methods.segment_search(2, 1, 1), "reward=None")])
def test_searches_that_cannot_run(method, words):
  given = dict(reward=tiny.table_reward()) if "siblings" in words else {}
  with pytest.raises(ValueError, match=words):
    search(method, table(), **given)


def test_searches_of_other_temperatures_and_drafters():
  with pytest.raises(ValueError, match="temperatures above 0"):
    search(dj.methods.stochastic_beam_search(2), table(),
           sampling=dj.Sampling(0.0))
  with pytest.raises(ValueError, match="14 siblings"):
    tiny.generate(dj.methods.at_speed(2, 14, 1), tiny.llama_models(), eos_id=3)
