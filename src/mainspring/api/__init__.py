"""The HTTP API: a thin skin over operations/, as one ASGI application.

    table.py          one row per operation: method, path, roles; all else comes from the operation's own signature
    parameters.py     path, query and body ↔ the parameters of an operation
    app.py            a request on its way: host, route, caller, role, parameters, operation, answer
    problems.py       errors → application/problem+json
    openapi.py        the table → OpenAPI 3.1
Never imported by workers, agents or the SDK. Imports operations/, store/ and model/.
"""
