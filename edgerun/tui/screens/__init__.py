"""The modal screens of the terminal chat. Each takes plain data and callbacks, and is imported
when it is first opened: nothing here is needed for the first paint."""
