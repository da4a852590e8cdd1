"""One turn: an answer from its question to its end, stored piece by piece before it is shown. (WIP)

turn = Turn(conversation, partner, store, params, options)     # answers the conversation's head
transcript.add(turn.message)
async for chunk in turn:                  # merged chunks; never raises EdgerunError
    transcript.feed(turn.message.id, chunk.text, chunk.reasoning, chunk.tool_calls)
transcript.finish(turn.message)           # state, note, usage, timings are set
turn.stop()                               # from any handler: ends the work within a step
Turn(..., resume=message_id)              # goes on with a message that was cut short
"""
