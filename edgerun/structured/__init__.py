"""Constrained generation: schemas, expressions and grammars, compiled for a model's tokens.

:class:`~edgerun.core.Constraint` says what a text must look like. :class:`.grammars.Grammars`, one
a model, compiles it with llguidance (https://github.com/guidance-ai/llguidance) and hands out a
:class:`.matcher.Matcher` for each answer, which the sampler asks for a mask before it chooses.

A ``lark`` constraint covers the whole text, and that is enough for tool calls:

- A schema is embedded with ``%json {...}``. It is checked like one of its own, and whitespace in
  it is bounded.
- A special token is named ``<tool_call>`` or ``<[151657]>``. Grammar text, free text included,
  never matches one; :func:`.vocabulary.lark_text` writes a text with special tokens in it.
- Free text before a call, which the model may or may not make, is a rule that ends where the
  trigger does. Where the trigger is plain text, mark the rule ``[lazy]``::

      start: (head %json {...} "</tool_call>")* TEXT
      head[lazy]: TEXT "<tool_call>"
      TEXT: /(.|\\n)*/

  Where it is a special token::

      start: free (<tool_call> %json {...} </tool_call> free)*
      free: TEXT? (<[1,2,5]> TEXT?)*
      TEXT: /(.|\\n)+/

  ``<[1,2,5]>`` being those other special tokens that may be said, such as ``<think>``;
  :func:`.vocabulary.lark_free` writes the rule.

The text may end wherever the grammar may; it must where nothing can follow.
"""
