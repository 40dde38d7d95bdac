"""Prompts of constrained tasks, by instructions, shots or chat templates."""

from collections.abc import Callable

from experiments.app import launch
from experiments.data import prompt_tasks
from models.text import chat_template


def encoder(config, tokenizer) -> Callable[[dict[str, str]], list[int]]:
  """Returns a function from fields of an example to its prompt's tokens."""
  form = config.prompt
  if not form.template:
    raise ValueError("prompt.template is empty: it says what the target is to "
                     "do with an example, such as '{prompt}'.")
  encode = prompt_tasks.encoder(config, tokenizer, form)
  return lambda values: encode(values).ids


def of_chats(config, tokenizer) -> Callable[[list], list[int]]:
  """Returns a function from messages to tokens, by the chat template."""
  encode = chat_template.encoder(launch.model_folder(config.target), tokenizer)
  return lambda messages: encode(messages).ids


def advice(config) -> str:
  """Returns a warning if a chat model is asked without its template, or ""."""
  if config.chat or config.prompt.shots:
    return ""
  try:
    chat_template.load(launch.model_folder(config.target))
  except (OSError, ValueError):
    return ""
  return (f"target={config.target!r} is a chat model, and reads prompts as "
          "plain text without solved examples: it may not understand them. "
          "--config.chat=True writes them with its template, --config.prompt."
          "shots are examples; configs/cdsl_llm.py has both.")
