"""The front: HTTP/1.1 for any ASGI application, on the port of the agents or on an address of its own.

It knows neither the application nor the server behind it. uvicorn parses requests and runs them; what it does not bound
is bounded here. Only a process that serves HTTP loads it.
"""
