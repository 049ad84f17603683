"""How an application submits tasks and follows them: on its database, or over HTTP. App knows one of them."""
