"""The operations of operations/ over HTTP, with the same calls, views and errors as on the database.

    remote.py       Client: a server by its URL
    output.py       the output of a task, read and followed
    bulk.py         many tasks on one connection
    local.py        LocalClient: a database
    interface.py    what both offer: the command line calls one or the other
    namespaces.py   client.tasks.show(17) for client.call(operations.tasks.show, 17)
Imports api/ for its table only: no HTTP server is loaded.
"""
