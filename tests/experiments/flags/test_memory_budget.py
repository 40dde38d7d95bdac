"""The flag for a budget of memory."""

from absl.testing import flagsaver
import pytest

from experiments.app import launch
from experiments.flags import model_flags


@pytest.mark.parametrize("text, expected", [
    ("", None), ("1000", 1000), ("900MB", 900 * 10**6), ("1.5GiB", 3 * 2**29),
    ("2 kib", 2048), ("7B", 7)])
def test_bytes(text, expected):
  with flagsaver.as_parsed(memory_budget=text):
    assert model_flags.memory_budget() == expected


@pytest.mark.parametrize("text", [
    "much", "-1", "3k", "1.5.2GB", "GB", "inf", "nan", "0", "0.4", "9" * 400,
    "9" * 5000 + "GB"])
def test_what_is_no_number_of_bytes(text):
  with flagsaver.as_parsed(memory_budget=text), pytest.raises(
      launch.UserError, match="^--memory_budget='.*a positive number of bytes "
                              "is needed") as error:
    model_flags.memory_budget()
  assert len(str(error.value)) < 200
