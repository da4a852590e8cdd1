"""``edgerun run PROMPT``: one answer on stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from edgerun.cli.options import (
    add_constraint_options,
    add_disk_option,
    add_model_options,
    add_sampling_options,
    add_speculation_options,
    open_llm,
    read_prompt,
    reasoning_writer,
    sampling_params,
    speed_line,
    writer,
)
from edgerun.errors import RequestError

if TYPE_CHECKING:
    import argparse

    from edgerun.cli import Subparsers
    from edgerun.core import SamplingParams
    from edgerun.delivery import ChunkStream
    from edgerun.llm import LLM

__all__ = ["add_parser", "run"]

_EPILOG = """\
examples:
  edgerun run "Why is the sky blue?"
  edgerun run -m ./model.gguf -n 64 --temp 0 "Hello"
  git diff | edgerun run "Write a commit message for this change"
  edgerun run --raw "def fibonacci(n):"            the text as it is, no chat template
  edgerun run --json-schema person.json "Who wrote Emma?"
  edgerun run --json-schema '{"enum": ["yes", "no"]}' "Is water wet?"
  edgerun run --regex '[0-9]{4}' "When was the moon landing?"
"""


def add_parser(subparsers: Subparsers) -> None:
    p = subparsers.add_parser(
        "run",
        help="answer one prompt",
        description="Answer one prompt: the answer streams to stdout, speeds go to stderr. "
        "A model's reasoning shows dimmed on a terminal, and is left out of pipes and files.",
        epilog=_EPILOG,
    )
    p.add_argument("prompt", nargs="*", help="the prompt; text piped to stdin is added to it")
    p.add_argument("--system", metavar="TEXT", help="a system prompt")
    p.add_argument("--raw", action="store_true", help="complete the text without the chat template")
    p.add_argument("--json", action="store_true", help="print one JSON object instead of streaming")
    p.add_argument("-q", "--quiet", action="store_true", help="no speeds on stderr")
    add_model_options(p)
    add_sampling_options(p)
    add_constraint_options(p)
    add_speculation_options(p)
    add_disk_option(p)


def run(args: argparse.Namespace) -> int:
    params = sampling_params(args)
    if args.raw and args.system:
        raise RequestError(
            "--system needs the chat template that --raw leaves out: drop one of them",
            param="system",
        )
    prompt = read_prompt(args.prompt, args.model)
    with open_llm(args, chat=not args.raw) as llm:
        if args.json:
            return _print_json(llm, args, params, prompt)
        write = writer()
        think = reasoning_writer(write)
        last = None
        try:
            for last in _chunks(llm, args, params, prompt):
                think(last.reasoning)
                write(last.text)
        finally:
            if sys.stdout.isatty():
                write("\n")
        if last is not None and last.timings is not None and not args.quiet:
            print(speed_line(last.timings), file=sys.stderr)
    return 0


def _chunks(llm: LLM, args: argparse.Namespace, params: SamplingParams, prompt: str) -> ChunkStream:
    if args.raw:
        return llm.stream(prompt, params)
    return llm.stream_chat(_messages(llm, args, prompt), params)


def _messages(llm: LLM, args: argparse.Namespace, prompt: str) -> list[dict[str, str]]:
    if llm.chat_template().is_fallback:
        print("note: this model has no chat template; --raw may suit it better", file=sys.stderr)
    system = [{"role": "system", "content": args.system}] if args.system else []
    return [*system, {"role": "user", "content": prompt}]


def _print_json(llm: LLM, args: argparse.Namespace, params: SamplingParams, prompt: str) -> int:
    from edgerun.cli.show import to_json
    from edgerun.delivery import Collector

    collector = Collector(want_logprobs=False)
    for chunk in _chunks(llm, args, params, prompt):
        if (done := collector.add(chunk)) is not None:
            t = done.timings
            speeds = {
                "prefill_per_second": round(t.prefill_per_second, 2),
                "decode_per_second": round(t.decode_per_second, 2),
            }
            print(to_json({"model": llm.name, **done.to_dict(), **speeds}))
    return 0
