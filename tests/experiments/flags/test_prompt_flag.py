"""Prompts of `experiments.generate`, as texts and as turns of a chat."""

from absl import flags
from absl.testing import flagsaver
import pytest

from experiments.app import launch
from experiments.flags import prompt_flag
from support import helpers


@pytest.fixture(name="encode")
def _encode(tmp_path):
  """The text that flags ask for, and what is printed in front of the answer."""
  tokenizer = helpers.chat_model(tmp_path)

  def encode(target=tmp_path, **values):
    with flagsaver.as_parsed(**values):
      return (tokenizer.decode(prompt_flag.encode(
          tokenizer, target)), prompt_flag.prompt_text())

  flags.FLAGS.mark_as_parsed()
  yield encode
  flags.FLAGS.unparse_flags()


def test_prompts(encode):
  assert encode(prompt="Hi") == ("Hi", "Hi")
  assert encode(prompt="Hi", chat="true") == ("[user]Hi[assistant]", "")
  assert encode(prompt="Hi", chat="true", system="Be brief.") == (
      "[system]Be brief.[user]Hi[assistant]", "")


@pytest.mark.parametrize("values, message", [
    (dict(prompt=""), "--prompt is empty"),
    (dict(prompt="", chat="true"), "--prompt is empty"),
    (dict(prompt="Hi", system="Be kind."), "--system='Be kind.' needs --chat"),
    (dict(prompt="Hi", chat="true", target="python-target"),
     "python-target' has no chat template")], ids=str)
def test_prompts_that_cannot_be(encode, values, message):
  with pytest.raises(launch.UserError, match=message):
    encode(**values)
