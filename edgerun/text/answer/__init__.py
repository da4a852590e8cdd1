"""From a model's answer to what it consists of: reasoning, text, and calls of tools."""
