"""Launches programs: flags, configs, models, one-line errors."""

import contextlib
import difflib
import errno
import math
import operator
import os
import pathlib
import re
import runpy
import signal
import sys
import traceback

from absl import app
from absl import flags
from absl import logging
import jax
import ml_collections
from ml_collections import config_flags
from ml_collections.config_flags import config_path

from experiments.app import multihost
from experiments.app import preemption
from models.folders import resolve

# JAX drops the higher bits of larger seeds: two of them would give equal texts.
MOST_SEED = 2**32 - 1
# No count is as large: those that are overflow somewhere.
_MOST_INTEGER = 10**12
# So that --help lists `--config` as a flag of the program that defines it.
flags.disclaim_key_flags()
# Shipped configs, next to the programs in a clone and in an installed package.
CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs"
# What `--config` is without the flag: the program's.
_defaults: list[str] = []
# Our flags by their names in other engines.
_SYNONYMS = {
    "max_tokens": ("max_new_tokens",), "max_length": ("max_new_tokens",),
    "n": ("num_samples", "texts"), "model": ("target",),
    "tokenizer": ("target",), "batch_size": ("batch",),
    "speculative_model": ("draft",), "draft_model": ("draft",),
    "assistant_model": ("draft",), "prompt_file": ("prompts", "prompt"),
    "output": ("workdir",), "num_return_sequences": ("num_samples", "texts")}
# Sizes of methods that were flags.
_SIZES = ("width", "depth", "num_paths", "num_beams", "num_groups", "branching",
          "children", "verification", "sizes")
# A disk that is full or read-only is no bug.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
# Libraries without errno, such as TensorStore, have its text in a message.
_DISK_TEXTS = tuple(map(os.strerror, _DISK))


class UserError(Exception):
  """An error that only the user can correct, reported as one line."""


@contextlib.contextmanager
def user_errors(*kinds):
  """Turns exceptions of these kinds into `UserError`, around user input."""
  try:
    yield
  except RecursionError as e:
    raise UserError("the input is nested too deeply for Python's recursion "
                    f"limit of {sys.getrecursionlimit()} calls.") from e
  except kinds as e:
    if _disk_problem(e):
      raise
    raise UserError(str(e)) from e


def run(main):
  """Runs `main()`; user errors become one line and exit status 2."""
  def guarded(argv):
    try:
      if len(argv) > 1:
        raise UserError(f"unexpected argument {argv[1]!r}.")
      with _until_reader_leaves():
        main()
        preemption.check()
        sys.stdout.flush()
    except UserError as e:
      _fail(e)
    except KeyboardInterrupt:
      print("\ninterrupted; results written before are kept.",
            file=sys.stderr)
      multihost.end(130, interrupted=True)
    except preemption.Stopped:
      print("\nstopped; resume with the same command.", file=sys.stderr)
      multihost.end(0, interrupted=True)
    except Exception as e:
      problem = _disk_problem(e)
      if problem:
        _fail(f"{problem}; results written before are kept.", status=1)
      if not jax.distributed.is_initialized():
        raise
      if isinstance(e, jax.errors.JaxRuntimeError):
        _fail(multihost.failure(e), status=1)
      traceback.print_exc()
      multihost.end(1)

  # XLA reads this when it first compiles. On a CPU, loop unrolling takes a
  # fifth of the compilation time and gains nothing.
  os.environ.setdefault("XLA_FLAGS", "--xla_backend_extra_options="
                        "xla_cpu_disable_loop_unrolling")
  app.run(guarded, flags_parser=_parse_flags)


@contextlib.contextmanager
def _until_reader_leaves():
  """Ends without a message if the reader of the output has left."""
  try:
    yield
  except BrokenPipeError:
    # Drop what Python would still flush.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    multihost.end(128 + signal.SIGPIPE, interrupted=True)


@contextlib.contextmanager
def _help():
  """Ends with 0 after --help and its kin, where absl ends with 1."""
  try:
    yield
  except SystemExit as e:
    if e.code != 1:  # Of a mistake.
      raise
    sys.stdout.flush()
    sys.exit()


def help_of(make) -> str:
  """Returns `make()`, the help of a flag; "" unless --help is given."""
  # What knows all drafters or methods imports them all.
  return make() if any(x.lstrip("-").startswith(("help", "?"))
                       for x in sys.argv[1:]) else ""


# Programs call it where they parse: a process may import several of them, whose
# flags have the same names.
def define_config(path, example):
  """Defines `--config`, whose fields are flags; returns the holder of it.

  `path` is the default: a file, or "rsd:smoke" for a preset of the package
  `configs`; `example` is one for `--help`.
  """
  _defaults.append(_installed(path))
  with _parts_of_configs():
    # ml_collections already looks for fields on the command line here.
    return config_flags.DEFINE_config_file(
        "config", _defaults[-1], "Settings: file, file:preset, or the name "
        f"of a shipped file, such as {example}.",
        sys_argv=_arguments(sys.argv))


@contextlib.contextmanager
def _parts_of_configs():
  try:
    yield
  except Exception as e:  # A config file is code: anything may be raised.
    _fail_in_config(e)
    if not isinstance(e, (IndexError, KeyError, TypeError, ValueError)) or (
        config_path.__file__ not in [
            x.filename for x in traceback.extract_tb(e.__traceback__)]):
      raise
    given = [x for x in sys.argv[1:] if x.startswith("--config.")]
    _fail(f"{' '.join(given)}: no such part of the config: {e}. Items of "
          "lists, and names that are numbers, stand in brackets, as in "
          "--config.trees.length['2'][0].")


def _fail_in_config(e):
  """Ends with file, line and error if code of a config file has raised it."""
  while e:
    # ml_collections gives this name to the module that it makes of the file.
    at = [(frame.f_code.co_filename, line)
          for frame, line in traceback.walk_tb(e.__traceback__)
          if frame.f_globals.get("__name__") == "config_config"]
    # Of the file, not of a value on the command line.
    if isinstance(e, SyntaxError) and os.path.isfile(e.filename or ""):
      at.append((e.filename, e.lineno))
    # Shipped ones raise ValueError for a preset that they do not know.
    if at and not (isinstance(e, ValueError) and CONFIGS in pathlib.Path(
        at[-1][0]).resolve().parents):
      file, line = at[-1]
      _fail(f"--config: {file}, line {line}: {type(e).__name__}: {e}")
    e = e.__cause__ or e.__context__


def _arguments(argv):
  """Arguments in which `--config` names a file, see `_installed`."""
  arguments = list(argv)
  for i, argument in enumerate(arguments):
    name, equals, value = argument.partition("=")
    if name in ("--config", "-config"):
      if equals:
        arguments[i] = f"{name}={_existing(value)}"
      elif i + 1 < len(arguments):
        arguments[i + 1] = _existing(arguments[i + 1])
  return arguments


def _installed(value):
  """Returns a config as named, else of the package `configs`: "rsd:smoke"."""
  path, colon, preset = value.partition(":")
  if path and not pathlib.Path(path).is_file() and (
      pathlib.PurePath(path).parent.name in ("", CONFIGS.name)):
    file = CONFIGS / f"{pathlib.PurePath(path).name.removesuffix('.py')}.py"
    if file.is_file():
      return f"{file}{colon}{preset}"
  return value


def _existing(value):
  """Returns what `_installed` does, and ends if there is no such file."""
  installed = _installed(value)
  if not pathlib.Path(installed.partition(":")[0]).is_file():
    shipped = sorted(x.stem for x in CONFIGS.glob("*.py")
                     if "\ndef get_config(" in x.read_text("utf-8"))
    _fail(f"--config={value}: there is no such file; shipped are "
          f"{', '.join(shipped)}.")
  return installed


def config(holder):
  """Returns the ConfigDict of a config flag; it is like the program's default.

  It has all fields of that, no number below 0, and numbers in lists of numbers.
  """
  try:
    with user_errors(OSError):
      settings = holder.value
  except flags.Error:  # It raises this for None.
    settings = None
  if not isinstance(settings, ml_collections.ConfigDict):
    # An OSError is raised when a field is read, and none has been.
    error = getattr(settings, "__dict__", {}).get("_error")
    if error:
      _fail_in_config(error)
    raise UserError("--config: get_config must return a ml_collections."
                    f"ConfigDict, not a {type(settings).__name__}.")
  settings.lock()
  _check_numbers("--config", settings.to_dict())
  path, _, preset = _defaults[-1].partition(":")
  make = runpy.run_path(path)["get_config"]
  default = make(preset) if preset else make()
  for name in default:
    if name not in settings:
      raise UserError(f"--config has no field {name!r}: a config of this "
                      "experiment is needed.")
  _check_like("--config", settings, default)
  if settings.get("seed", 0) > MOST_SEED:
    raise UserError(f"--config.seed={settings.seed}: 0 to {MOST_SEED} is "
                    "allowed.")
  return settings


def _check_like(name, value, default):
  """Raises `UserError` unless numbers are where a default has them."""
  if isinstance(default, (int, float)) and not isinstance(default, bool):
    if not isinstance(value, (int, float)):
      raise UserError(f"{name}={value!r}: a number is needed.")
    # No field of ours has a use for one; sizes of methods are not checked here.
    if value < 0:
      raise UserError(f"{name}={value}: at least 0 is needed.")
  elif isinstance(default, (list, tuple)) and default:
    if all(isinstance(x, int) for x in default) and any(
        isinstance(x, float) for x in value):
      raise UserError(f"{name}={value}: integers are needed.")
    for i, x in enumerate(value):
      _check_like(f"{name}[{i}]", x, default[0])
  elif isinstance(default, ml_collections.ConfigDict):
    for part in default:
      if part in value:
        _check_like(f"{name}.{part}", value[part], default[part])


def _parse_flags(argv):
  try:
    with _until_reader_leaves(), _help(), _parts_of_configs():
      argv = flags.FLAGS(_arguments(argv))
    for name, value in flags.FLAGS.flag_values_dict().items():
      _check_numbers(f"--{name}", value)
      if name == "workdir":  # Before minutes of loading.
        check_folder("--workdir", value)
    # absl shows INFO by default, of which orbax logs a lot; --verbosity=0 still
    # shows it.
    if flags.FLAGS["verbosity"].using_default_value:
      flags.FLAGS.verbosity = logging.WARNING
    # Warnings are sentences for the user: no prefix of date, file and line.
    logging.get_absl_handler().setFormatter(None)
    return argv
  except flags.UnrecognizedFlagError as e:
    _fail(_unknown_flag(e.flagname) or e)
  except flags.Error as e:
    _fail_in_config(e)
    # A config file that raises: only its message, not the traceback around it.
    _fail(_call_of_config(e) or (_root(e) if "Traceback" in str(e) else e))
  except AttributeError as e:
    hint = re.search('Did you mean "([^"]+)"', str(e))
    hint = f"; did you mean {hint[1]!r}?" if hint else "."
    _fail(_call_of_config(e) or f"--config has no field {_root(e)}{hint}")
  except (OSError, UserError) as e:
    _fail(e)


def _call_of_config(e):
  """Returns a line about a call of `get_config`; "" if it is no such error."""
  if "get_config" not in str(_root(e)):
    return ""
  given = re.findall(r"(?:^|\0)--?config[=\0]([^\0]*)", "\0".join(sys.argv))
  return (f"--config={[*_defaults[-1:], *given][-1]}: {_root(e)}: a function "
          "that takes the preset after the colon, or nothing, and returns a "
          "ConfigDict is needed.")


def _unknown_flag(name):
  """Returns what may be meant by a flag that is not there; "" if nothing."""
  if "config" in flags.FLAGS and name in (flags.FLAGS["config"].value or ()):
    return f"there is no flag --{name}, but --config.{name}."
  if name in _SIZES and "method" in flags.FLAGS:
    return (f"there is no flag --{name}: sizes of a method are part of it, as "
            'in --method="rsd_s(3, 4)".')
  ours = [x for x in _SYNONYMS.get(name, ()) if x in flags.FLAGS]
  return ours and f"there is no flag --{name}, but --{ours[0]}."


def nearest(name, names) -> str:
  """Returns "did you mean x, y?" of the names nearest to one; else all."""
  close = difflib.get_close_matches(str(name), names, n=3)
  return (f"did you mean {', '.join(close)}?" if close else
          f"there are {', '.join(names)}.")


def _check_numbers(name, value):
  """Raises `UserError` if a value, or one within it, is no usable number."""
  if isinstance(value, float) and not math.isfinite(value):
    raise UserError(f"{name}={value}: a finite number is needed.")
  if isinstance(value, int) and abs(value) > _MOST_INTEGER:
    raise UserError(f"{name}={value}: an integer from {-_MOST_INTEGER} to "
                    f"{_MOST_INTEGER} is needed.")
  if isinstance(value, (list, tuple)):
    value = {f"[{i}]": x for i, x in enumerate(value)}
  elif isinstance(value, dict):
    value = {f".{key}": x for key, x in value.items()}
  else:
    return
  for part, x in value.items():
    _check_numbers(f"{name}{part}", x)


def _disk_problem(exception):
  """Returns what a full or read-only disk has made impossible; None if none."""
  seen = exception
  while seen:
    if isinstance(seen, OSError) and seen.errno in _DISK:
      return str(seen)
    problem = next((text for text in _DISK_TEXTS if text in str(seen)), None)
    if problem:
      return f"a file could not be written: {problem}"
    seen = seen.__cause__ or seen.__context__
  return None


def _root(exception):
  while exception.__cause__ or exception.__context__:
    exception = exception.__cause__ or exception.__context__
  return exception


def _fail(message, status=2):
  line = " ".join(str(message).split())
  print(f"{pathlib.Path(sys.argv[0]).stem}: error: {line}", file=sys.stderr)
  multihost.end(status)


def decoders(methods, temperatures):
  """Returns the pairs or decoders of methods at temperatures, each once."""
  return list(dict.fromkeys(m.sampled if t else m.greedy for m in methods
                            for t in temperatures))


def numbers(flag) -> list[int]:
  """Returns the positive integers of a list flag, or raises `UserError`."""
  try:
    numbers_ = [int(x) for x in flag.value]
  except ValueError:
    numbers_ = []
  if not numbers_ or min(numbers_) < 1:
    raise UserError(f"--{flag.name}={','.join(flag.value)}: positive integers "
                    "are needed.")
  return numbers_


def check_positive(settings, *names):
  """Raises `UserError` unless fields, or their items, are at least 1."""
  for name in names:
    value = settings[name]
    items = value if isinstance(value, (list, tuple)) else [value]
    if not items or min(items) < 1:
      raise UserError(f"--config.{name}={value}: at least 1 is needed.")


def check_known(name, values, known):
  """Raises `UserError` unless values of a flag or field are all known."""
  for value in values:
    if value not in known:
      raise UserError(f"{name}={value!r} is not one of "
                      f"{', '.join(filter(None, known))}.")


def check_folder(flag, value):
  """Raises `UserError` for the address of a bucket, which is no folder."""
  if "://" in str(value):
    raise UserError(f"{flag}={value}: a folder is needed; a bucket is one "
                    "where it is mounted (gcsfuse), or copied afterwards.")


def check_used(settings, **needs):
  """Raises `UserError` for a field that is set without the one it needs."""
  for name, other in needs.items():
    if not settings[other]:
      check_unset(settings, name, there=f"without --config.{other}")


def check_unset(settings, *names, there=""):
  """Raises `UserError` for a field that is set, though the task ignores it."""
  for name in names:
    value = operator.attrgetter(name)(settings)
    if value:
      raise UserError(f"--config.{name}={value!r} has no effect "
                      f"{there or f'on --config.task={settings.task}'}.")


def model_folder(name):
  """Returns the folder of a model, see `models.folders.resolve`."""
  with user_errors(OSError, ValueError):
    try:
      return resolve.folder(name)
    except FileNotFoundError as e:
      close = difflib.get_close_matches(
          str(name), [x.name for x in resolve.PRETRAINED.glob("*")])
      hint = f" Did you mean {', '.join(close)}?" if close else ""
      raise FileNotFoundError(f"{e}{hint}") from e
