"""The composition root: the only place that builds servers, agents and databases from settings."""
