"""Arguments and steps that the generating commands share."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import os
import select
import sys
import threading
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgerun.errors import RequestError, printable

if TYPE_CHECKING:
    from edgerun.core import Constraint, SamplingParams, Timings
    from edgerun.llm import LLM

__all__ = [
    "add_constraint_options",
    "add_disk_option",
    "add_model_options",
    "add_sampling_options",
    "add_speculation_options",
    "forgive_stdin",
    "given_params",
    "open_llm",
    "read_prompt",
    "reasoning_writer",
    "refuse_model",
    "sampling_params",
    "speed_line",
    "terminal_text",
    "writer",
]

#: Seconds after which a wait for piped input is explained.
_STDIN_PATIENCE = 1.0


def add_model_options(p: argparse.ArgumentParser, *, many: bool = False) -> None:
    """``many``: ``-m`` may be repeated, and name a folder."""
    g = p.add_argument_group("model")
    if many:
        g.add_argument(
            "-m",
            "--model",
            metavar="MODEL|FILE|FOLDER",
            action="append",
            help="a name from 'edgerun list', a GGUF file or a folder of them; repeatable "
            "(default: all that were pulled)",
        )
    else:
        g.add_argument(
            "-m", "--model", metavar="MODEL|FILE", help="a name from 'edgerun list' or a GGUF file"
        )
    g.add_argument(
        "--backend",
        default="auto",
        help="auto, cuda, mlx, cpu, reference or llama_cpp (default: auto)",
    )
    g.add_argument(
        "--exact",
        action="store_true",
        help="mlx: the same text whatever runs beside it, and with drafts; slower (cuda and cpu "
        "are so anyway)",
    )
    g.add_argument("--ctx", type=int, metavar="N", help="context in tokens (default: as trained)")
    g.add_argument(
        "--threads", type=int, metavar="N", help="threads of cpu (default: physical cores)"
    )
    g.add_argument(
        "--gpu-layers",
        type=int,
        metavar="N",
        help="how many layers a GPU gets, the CPU runs the others (default: as many as fit)",
    )
    g.add_argument(
        "--kv",
        metavar="TYPE",
        help="how K and V are stored: f16 (cpu's default), q8_0 (half the "
        "memory, faster in long contexts), q4r (a quarter, at a loss: for models of 2 billion "
        "parameters and more; q4r:force for any) or f32",
    )


def add_speculation_options(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("speculation: same text in fewer steps")
    g.add_argument(
        "--speculation", metavar="KIND", help="auto, off or ngram, which copies what repeats"
    )
    g.add_argument("--draft", metavar="MODEL|FILE", help="a small model of the same family")


def add_disk_option(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--kv-disk",
        metavar="SIZE|off",
        help="disk for long prompts that need not be read again after a restart (default: 2G, at "
        "most a tenth of what is free)",
    )


def add_sampling_options(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("sampling")
    g.add_argument("-n", "--max-tokens", type=int, metavar="N", help="most tokens; -1 = no limit")
    g.add_argument("--temp", type=float, metavar="T", help="temperature; 0 = greedy (default: 0.8)")
    g.add_argument(
        "--top-k", type=int, metavar="K", help="keep the K likeliest (default: 40; 0 = all)"
    )
    g.add_argument(
        "--top-p", type=float, metavar="P", help="keep this much probability (default: 0.95)"
    )
    g.add_argument(
        "--min-p", type=float, metavar="P", help="drop below P x the likeliest (default: 0.05)"
    )
    g.add_argument("--repeat-penalty", type=float, metavar="X", help="1 = off (default)")
    g.add_argument("--seed", type=int, metavar="S", help="same seed, same text (default: random)")
    g.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; repeatable"
    )
    g.add_argument("--ignore-eos", action="store_true", help="go on past the model's own end")
    g.add_argument(
        "--context-shift", action="store_true", help="when the context is full, drop the oldest"
    )
    g.add_argument(
        "--keep",
        type=int,
        metavar="N",
        help="first tokens never dropped (default: the system prompt's); -1 = the whole prompt",
    )


def add_constraint_options(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("constraints: what the answer must look like")
    one = g.add_mutually_exclusive_group()
    one.add_argument(
        "--json-schema", metavar="FILE|JSON", help="JSON that matches this schema; {} = any JSON"
    )
    one.add_argument("--regex", metavar="PATTERN", help="text that matches this whole expression")
    one.add_argument("--grammar", metavar="FILE", help="text of a grammar, in GBNF or Lark")


def _constraint(args: argparse.Namespace) -> Constraint | None:
    schema, regex, grammar = (
        getattr(args, name, None) for name in ("json_schema", "regex", "grammar")
    )
    if schema is regex is grammar is None:
        return None
    from edgerun.core import Constraint

    if schema is not None:
        inline = schema.lstrip().startswith("{")
        source = schema if inline else _read_file(schema, "json_schema")
        return Constraint("json_schema", source, "json_schema")
    if regex is not None:
        return Constraint("regex", regex, "regex")
    if grammar is not None:
        source = _read_file(grammar, "grammar")
        return Constraint("gbnf" if "::=" in source else "lark", source, "grammar")
    return None


def _read_file(path: str, param: str) -> str:
    try:
        with open(path, encoding="utf-8") as f:
            return f.read()
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8 text"
        raise RequestError(
            f"--{param.replace('_', '-')}: cannot read {printable(path)}: {why}", param=param
        ) from None


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """The options that were given, over the defaults.

    Raises:
        RequestError: a value is out of range; names the field.
    """
    from edgerun.core import SamplingParams

    return SamplingParams(**given_params(args))


def given_params(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of SamplingParams that the command line names."""
    fields = {
        "max_tokens": None if args.max_tokens == -1 else args.max_tokens,  # as over HTTP
        "temperature": args.temp,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "repeat_penalty": args.repeat_penalty,
        "seed": args.seed,
        "stop": args.stop,
        "ignore_eos": args.ignore_eos or None,
        "context_shift": args.context_shift or None,
        "n_keep": args.keep,
        "constraint": _constraint(args),
    }
    return {k: v for k, v in fields.items() if v is not None}


def open_llm(args: argparse.Namespace, *, chat: bool = False) -> LLM:
    """Resolve, pull if need be and load the model, with progress on a terminal's stderr.

    ``chat`` says that the model's chat template will be needed.
    """
    from edgerun import catalog
    from edgerun.cli._progress import load_progress, pull_progress
    from edgerun.llm import LLM
    from edgerun.loading import find

    with pull_progress(args.model or catalog.DEFAULT_MODEL) as pulling:
        model = find(args.model, progress=pulling)
    if chat:
        threading.Thread(target=_import_templates, daemon=True).start()
    if getattr(args, "draft", None) is not None:
        with pull_progress(args.draft) as pulling:
            find(args.draft, progress=pulling)
    # Commands that do not generate have no such options.
    options = {k: v for k in ("speculation", "draft") if (v := getattr(args, k, None)) is not None}
    kv_disk = getattr(args, "kv_disk", "off")
    with load_progress() as loading:
        llm = LLM(
            model.path,
            backend=args.backend,
            n_ctx=args.ctx,
            threads=args.threads,
            kv_type=args.kv,
            kv_disk="auto" if kv_disk is None else kv_disk,
            exact=args.exact,
            gpu_layers=args.gpu_layers,
            progress=loading,
            **options,
        )
    gc.freeze()  # what is there now stays: collections need not look at it
    gc.enable()
    return llm


def _import_templates() -> None:
    """Beside the load, which leaves the interpreter idle; the template itself is compiled later."""
    importlib.import_module("edgerun.text.template_program")


def read_prompt(words: list[str], model: str | None) -> str:
    """The prompt from the arguments, from stdin if it is piped, or both: arguments first.

    Raises:
        RequestError: neither holds any text, or the first word is a model while none is named.
    """
    refuse_model(words, model, "run")
    given = "" if words == ["-"] else " ".join(words)
    piped = ""
    if sys.stdin is not None and not sys.stdin.isatty():
        forgive_stdin()
        if given:
            _explain_waiting()
        piped = sys.stdin.read().removesuffix("\n")  # echo's, as $(...) drops it
    text = "\n\n".join(part for part in (given, piped) if part.strip())
    if not text.strip():
        raise RequestError("no prompt: give it as an argument or on stdin", param="prompt")
    return text


def refuse_model(words: list[str], model: str | None, command: str) -> None:
    """Other runtimes take the model first: here it would be answered as if it were the prompt.

    Raises:
        RequestError: no model is named, and the first of the prompt's ``words`` is one.
    """
    if not words or model is not None:
        return
    import shlex

    from edgerun import catalog

    word = words[0]
    is_file = word.lower().endswith(".gguf") and os.path.exists(word)
    if is_file or (" " not in word and word in catalog.load_catalog()):
        name = printable(shlex.quote(word))
        what = "prompt" if command == "run" else "question"
        raise RequestError(
            f"{name} is a model, not a {what}: edgerun {command} -m {name} {what.upper()}",
            param="prompt",
        )


def _explain_waiting() -> None:
    """Say so if stdin is an open pipe that brings nothing: else that looks like a hang."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError, ValueError):  # not a real file
        if not select.select([sys.stdin], [], [], _STDIN_PATIENCE)[0]:
            text = "waiting for more of the prompt on stdin (</dev/null if there is none)"
            print(text, file=sys.stderr, flush=True)


def forgive_stdin() -> None:
    """Bytes on stdin that are not text become U+FFFD instead of an error."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def terminal_text(text: str) -> str:
    """Model output for a terminal: control characters but newline and tab become U+FFFD, so that
    nothing can move the cursor, set the clipboard or change colours."""
    return "".join(c if c in "\n\t" or _shown(c) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _shown(c: str) -> bool:
    # Joiners and direction marks belong to emoji and to right-to-left text; overrides do not.
    category = unicodedata.category(c)
    return category not in ("Cc", "Cs", "Zl", "Zp") and not "\u202a" <= c <= "\u202e"


def writer() -> Callable[[str], None]:
    """Write model text to stdout at once; cleaned if it is a terminal, exact if it is not."""
    clean = terminal_text if sys.stdout.isatty() else str

    def write(text: str) -> None:
        sys.stdout.write(clean(text))
        sys.stdout.flush()

    return write


def reasoning_writer(write: Callable[[str], None]) -> Callable[[str], None]:
    """Write a model's reasoning dimmed to a terminal, and not at all elsewhere.

    Its result is called before each piece of the answer, with "" where there is no reasoning: then
    the first piece of text that ``write`` gets stands apart.
    """
    if not sys.stdout.isatty():
        return lambda text: None
    inside = False

    def think(text: str) -> None:
        nonlocal inside
        if text:
            inside = True
            sys.stdout.write("\x1b[2m")
            write(text)
            sys.stdout.write("\x1b[22m")
        elif inside:
            inside = False
            write("\n\n")

    return think


def speed_line(t: Timings) -> str:
    """``prefill 35 tokens, 1200.0 t/s · decode 12 tokens, 300.0 t/s``."""
    return (
        f"prefill {t.prefill_tokens} tokens, {t.prefill_per_second:.1f} t/s · "
        f"decode {t.decode_tokens} tokens, {t.decode_per_second:.1f} t/s"
    )
