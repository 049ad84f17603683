"""The HTTP API: a thin skin over operations/, as one ASGI application.

    app.py            a request on its way: host, route, caller, role, parameters, operation, answer
    table.py rows.py  one row per operation: method, path, roles; all else comes from the operation's own signature
    parameters.py     path, query and body → the parameters of an operation
    problems.py       errors → application/problem+json
    openapi/          the table → OpenAPI 3.1
    access/           who may come in
    handlers/         rows that answer by themselves
    streams/          server-sent events
    metering/         what /metrics tells
Never imported by workers, agents or the SDK. Imports operations/, store/ and model/.
"""
