"""Method specifications as mappings and as strings."""

import ml_collections
import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch, method_specs


@pytest.mark.parametrize("spec", [
    {"name": "rsd_s", "width": 3, "depth": 4}, "rsd_s(3, 4)",
    "rsd_s(width=3, depth=4)", " rsd_s(3, depth=4) ",
    {"name": "rsd_s(3, 4)"}, {"name": "rsd_s(width=3)", "depth": 4},
    {"name": "rsd_s", "width": np.int64(3), "depth": 4},
    ml_collections.ConfigDict({"name": "rsd_s", "width": 3, "depth": 4}),
    ml_collections.FrozenConfigDict({"name": "rsd_s(3)", "depth": 4})],
                         ids=str)
def test_the_same_method_in_every_form(spec):
  assert method_specs.read(spec) is dj.methods.rsd_s(width=3, depth=4)


@pytest.mark.parametrize("spec, method", [
    ({"name": "rsd_c", "branching": [2, 1]}, dj.methods.rsd_c((2, 1))),
    ("rsd_c([2, 1])", dj.methods.rsd_c((2, 1))),
    ("autoregressive", dj.methods.autoregressive()),
    ("autoregressive()", dj.methods.autoregressive()),
    ("sequoia(((2,), [2, 0]))", dj.methods.sequoia(((2,), (2, 0)))),
    ("speculative(2, 'block')", dj.methods.speculative(2, "block")),
    ("speculative(2, block)", dj.methods.speculative(2, "block")),
    ("diverse_beam_search(4, 2, diversity=-0.0)",
     dj.methods.diverse_beam_search(4, 2, 0.0))])
def test_values_of_strings(spec, method):
  assert method_specs.read(spec).name == method.name


@pytest.mark.parametrize("name", [
    "rsd_s(7x3)", "rsd_s(7x3, traversal)", "rsd_c(4-2-1)", "spectr(2x3)",
    "specinfer(2x3)", "ppd(3-2, 3, short=1)", "sequoia(2/1,0, traversal)",
    "adaptive([speculative(2), rsd_s(3x4)], costs=[1, 1.5], horizon=8)",
    "copy_or_draft(1, copies=8, min_ngram=3, max_ngram=8, width=3)",
    "opt_tree(6, 3x2, rank_all=True, threshold=0.5)",
    "contrastive_search(3, penalty=0.6)",
    "suffix(8x4, num_paths=16, max_ngram=8, min_probability=0.1, "
    "nodes_per_match=4)"])
def test_names_of_tables_are_read(name):
  assert method_specs.from_flag(name).name == name


@pytest.mark.parametrize("spec, method", [
    ("rsd_s(2)", dj.methods.rsd_s(2, 4)),
    ("sequoia", dj.methods.sequoia(((2,), (2, 0), (1, 1)))),
    ("diverse_beam_search(num_groups=1)", dj.methods.diverse_beam_search(4, 1)),
    ("adaptive", dj.methods.adaptive([
        dj.methods.speculative(x, "block") for x in (2, 5)])),
    ("autoregressive", dj.methods.autoregressive())])
def test_sizes_that_a_flag_leaves_out_have_defaults(spec, method):
  assert method_specs.from_flag(spec).name == method.name


def test_a_size_without_a_default_is_asked_for(monkeypatch):
  monkeypatch.setattr(dj.methods, "rsd_c", lambda rounds, steps: None)
  with pytest.raises(launch.UserError, match=(
      r"needs rounds, steps: --method='rsd_c\(rounds=2, steps=2\)'")):
    method_specs.from_flag("rsd_c")


@pytest.mark.parametrize("spec, message", [
    ("adaptive(3)", r"methods=3: a list of methods is needed, as \["),
    ("adaptive([rsd_s(3), rsd_s(2, 2)])", "methods: rsd_s takes width, depth"),
    ("rsd_x", "'rsd_x' is no method: did you mean rsd_s, rsd_c"),
    ("atuo", "did you mean auto"), ("auto(3)", "it takes no sizes"),
    ("greedy", "it is autoregressive with --temperature=0 here"),
    ("eagle3", "it is a head, which drafts: --draft names"),
    ("cdsl", "--method=cdsl is steered by a reward.*cdsl has")])
def test_what_a_flag_may_mean(spec, message):
  with pytest.raises(launch.UserError, match=message):
    method_specs.from_flag(spec, ["auto"])


@pytest.mark.parametrize("spec, message", [
    ({"name": "medusa"}, "trees: 'medusa' is no method: it is a head"),
    ("zzz(2)", "trees: 'zzz' is no method: there are .*autoregressive, "),
    ({}, "needed, not None"), ({"name": 3}, "needed, not 3"),
    ({"name": {"a": 1}}, "needed, not {"),
    (3, "trees=3: a method as rsd_s.* or a mapping"),
    (None, "trees=None: a method"),
    ({"name": "rsd_s", "width": 3}, "takes width, depth, .*: missing.*'depth'"),
    ("rsd_s(3)", "takes width, depth, .*: missing.*'depth'"),
    ("rsd_s(1, 2, 'x', 4, 5)", "trees=.rsd_s.*: rsd_s takes width, depth, "),
    ("autoregressive(1)", "autoregressive takes no sizes"),
    ({"name": "speculative", "depth": 2, "width": 3},
     "takes depth, .*: .*'width'"),
    ({"name": "autoregressive", "depth": 2}, "takes no sizes: .*'depth'"),
    ({"name": "speculative", "depth": 0}, "trees: speculative: depth=0"),
    ("speculative(-1)", "depth=-1"),
    (f"rsd_s(3, {10**20})", f"width=3, depth={10**20}: smaller sizes are"),
    ({"name": "rsd_c", "branching": (2, 0)}, "branching=0"),
    ({"name": "rsd_c", "branching": ()}, "depth of branching=0"),
    ({"name": "rsd_s(3, 4)", "width": 3}, "rsd_s is given width twice"),
    ("rsd_s(3, width=3)", "rsd_s is given width twice"),
    ({"name": "rsd_s", "width": {"b": 1}, "depth": 2},
     "trees: width={'b': 1}: a number, a string, .* is needed"),
    ("rsd_c(({2}, 1))", "trees: branching=.* is needed"),
    ("rsd_s(width=x, depth=2)", "rsd_s: width='x'"),
    ("rsd_s(open('f'), 2)", "trees=.*: open.'f'. is not a number"),
    ("rsd_s(*[3, 4])", "is not a number, "),
    ("rsd_s(**{'width': 3})", "a method as rsd_s"),
    ("rsd_s(3, 4", r"trees='rsd_s\(3, 4': a method as rsd_s"),
    ("prompt_lookup(1x2, 3)",
     r"'prompt_lookup\(1x2, 3\)': a method as prompt_lookup\(depth=2\) or "),
    ("speculative(4-2)", r"depth=\(4, 2\): a positive integer"),
    ("os.system('ls')", "a method as rsd_s"), ("", "trees='': a method as"),
], ids=str)
def test_errors_name_the_field_and_what_is_allowed(spec, message):
  with pytest.raises(launch.UserError, match=message) as e:
    method_specs.read(spec, "trees")
  assert "\n" not in str(e.value)
