"""Streams: what has changed, told to those who listen as server-sent events; many tasks submitted in one request.

    sse.py        one open answer: events as they come, and why it ends
    listener.py   what one listener is yet to be sent; a slow one is not buffered for
    hub.py        one sample per topic and second, however many listen
    topics.py     what the topics sample, and what of it a listener sees
    followed.py   tasks that are followed by themselves: one poll for all of them
    output.py     the output of a task: events, raw bytes, or a page
    events.py     the handlers of events
    lines.py      all pages of a list, one item a line
    bulk.py       many tasks in one request, submitted as they arrive
Reads   store.figures.changes
"""
