"""LogContext: what a handler logs says for which job and task it runs.

Next: agent/run/context.py
"""

from __future__ import annotations

import logging

from mainspring.agent.run.context import running


class LogContext(logging.Filter):
    """A logging filter, for handlers of the logging module: puts `job`, `task` and `attempt` on every record.

    Within a handler of Mainspring's, also in its thread, they are its own; elsewhere they are None. What a record
    brings along by `extra` stays.

        handler.addFilter(mainspring.LogContext())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        attempt = running.get(None)
        known = (None, None, None) if attempt is None else (attempt.job.name, attempt.armed.task, attempt.armed.attempt)
        for name, value in zip(("job", "task", "attempt"), known, strict=True):
            record.__dict__.setdefault(name, value)
        return True
