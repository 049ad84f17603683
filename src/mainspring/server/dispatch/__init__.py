"""Claim due tasks and arm agents with them; place daemons and broadcasts. Imports agents/, recording/ and cluster/."""
