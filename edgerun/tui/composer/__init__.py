"""Where questions are written: text, completion, attached files, history."""
