"""The table → OpenAPI 3.1: what is served at /openapi.json and committed as docs/openapi.json.

    document.py      the paths: an operation with its parameters, bodies, answers and errors
    arguments.py     the parameters of an operation, in its path, query and headers
    schemas.py       the types of bodies and answers, and their names
    descriptions.py  what parameters and members mean
    compatibility.py what a change of the document would break

`python -m mainspring.api.openapi` prints it.
"""

from mainspring.api.openapi.document import document

__all__ = ["document"]
