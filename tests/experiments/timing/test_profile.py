"""Parts of a step: from names in a program, and from a real trace."""

from absl.testing import flagsaver

import decoding_jax as dj
from experiments.timing import profile
from support import tiny_models as tiny

PROGRAM = """\
HloModule jit_f

%inner (p: f32[2]) -> f32[2] {
  %p = f32[2]{0} parameter(0)
  ROOT %exp.1 = f32[2]{0} exponential(%p), metadata={op_name="jit(f)/verify/x"}
}

%body (q: f32[2]) -> f32[2] {
  %q = f32[2]{0} parameter(0)
  %dot.1 = f32[2]{0} dot(%q, %q), metadata={op_name="a/draft/draft_forward/b"}
  %copy.1 = f32[2]{0} copy(%dot.1)
  %dot.2 = f32[2]{0} dot(%q, %q), metadata={op_name="jit(f)/target_forward/c"}
  %fusion.1 = f32[2]{0} fusion(%dot.2), kind=kLoop, calls=%inner
  ROOT %add.1 = f32[2]{0} add(%q, %q), metadata={op_name="jit(f)/a"}
}

ENTRY %main (r: f32[2]) -> f32[2] {
  %r = f32[2]{0} parameter(0)
  ROOT %while.1 = f32[2]{0} while(%r), condition=%inner, body=%body
}
"""
PLACES = {"dot.1": "draft_forward", "copy.1": "draft_forward",
          "dot.2": "target_forward", "fusion.1": "verify", "add.1": "rest"}


def test_parts_of_operations():
  """Also of those that have no name: by what is inside, or what they read."""
  result = profile._places([("jit_f", PROGRAM)])
  assert {name: result["jit_f", name][1] for name in PLACES} == PLACES
  assert result["jit_f", "while.1"][0] == "while"


def test_programs_without_parts_do_not_count():
  text = PROGRAM.replace("verify", "x").replace("draft", "x").replace(
      "target", "x")
  assert not profile._places([("jit_f", text)])


def test_sums_of_events():
  places = profile._places([("jit_f", PROGRAM)])
  events = [("jit_f", "dot.1", 4e6), ("jit_f", "copy.1", 1e6),
            ("jit_f", "dot.2", 9e6), ("jit_f", "while.1", 99e6),
            ("jit_g", "dot.1", 99e6), ("jit_f", "dot.2", 1e6)]
  of_step, operations = profile.parts(events, places, steps=2)
  assert of_step == [profile.Part("draft_forward", 2.5, 1.0),
                     profile.Part("target_forward", 5.0, 1.0)]
  assert operations[0] == profile.Part("target_forward: dot.2", 5.0, 1.0)
  lines = profile.table(of_step, operations).splitlines()
  assert lines[2].split() == ["draft_forward", "2.500", "33.3", "%", "1.0"]
  assert lines[4].split() == ["all", "7.500", "100.0", "%", "2.0"]


def test_a_trace_has_all_parts(tmp_path, capsys):
  models = tiny.llama_models()
  with flagsaver.as_parsed(profile=str(tmp_path)):
    profile.show({"a/b": lambda: int(tiny.generate(
        dj.methods.rsd_s(2, 2), models).steps)})
  text = (tmp_path / "a-b/profile.md").read_text("utf-8")
  assert capsys.readouterr().out == f"\na/b\n{text}"
  named = {line.split()[0] for line in text.splitlines()[2:]}
  assert {"draft_forward", "target_forward", "verify", "commit",
          "all"} <= named
