"""The speeds that `--compare` prints."""

import types

import numpy as np

from experiments.flags import compare_flag
from experiments.timing import stopwatch


def test_both_are_decoded_in_turn_and_medians_compared(monkeypatch, capsys):
  calls, seconds = [], {"plain": [8.0, 2.0, 1.0], "drafted": [1.0, 0.5, 4.0]}

  def decoder(name):
    def decode():
      calls.append(name)
      return types.SimpleNamespace(
          stats=types.SimpleNamespace(emitted=np.array([8])))
    return decode

  def decoded(decode):
    out = decode()
    return out, seconds[calls[-1]].pop(0)

  monkeypatch.setattr(stopwatch, "decoded", decoded)
  line = compare_flag.report("speculative(2)", decoder("drafted"),
                             decoder("plain"))
  assert calls == ["plain", "drafted"] * 4  # The first of each compiles.
  assert line == ("autoregressive 4.0 tokens/s, speculative(2) 8.0 tokens/s: "
                  "2.00 times as fast")
  shown = capsys.readouterr().err
  assert "compiling plain decoding" in shown
  assert "comparing with plain decoding" in shown
